"""Index algebra: integers that are functions of ranges, kept in one normal form.

An Index is a constant plus a sum of atoms times coefficients; an atom is a Range, or the floor
quotient or remainder of an Index by a positive constant. Integers are unbounded here: only the
emitter picks 32 or 64 bits, from `low` and `high`. Division floors and remainders are never
negative, as in Python, so every rule holds for negative values too. Building an Index simplifies
it; equal normal forms are equal Python values. The rules are checked by enumeration in
tests/compiler/expression/test_compiler_index.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import ClassVar


@dataclass(frozen=True)
class Range:
    """An integer variable 0 <= value < size. kind: "loop", "group" (grid axis) or "thread"."""

    name: str
    size: int
    kind: str = "loop"

    low: ClassVar[int] = 0

    @property
    def high(self) -> int:
        return max(0, self.size - 1)

    @property
    def key(self) -> str:
        return self.name

    def __hash__(self) -> int:  # of the name alone, which rarely has two sizes
        return hash(self.name)

    def index(self) -> Index:
        """Return the Index that is just this variable."""
        return Index(((self, 1),), 0) if self.size > 1 else Index((), 0)

    def __str__(self) -> str:
        return self.name


class _Quotient:
    """`value // divisor` or `value % divisor`, not reducible further."""

    __slots__ = ("_hash", "divisor", "high", "key", "low", "value")
    sign = ""

    def __init__(self, value: Index, divisor: int) -> None:
        self.value = value
        self.divisor = divisor
        self.key = f"({value}){self.sign}{divisor}"
        self._hash = hash((self.sign, value, divisor))
        self.low, self.high = self._bounds()

    def _bounds(self) -> tuple[int, int]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, _Quotient)
            and self._hash == other._hash
            and self.divisor == other.divisor
            and self.value == other.value
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.key


class Div(_Quotient):
    """Floor quotient."""

    __slots__ = ()
    sign = "//"

    def _bounds(self) -> tuple[int, int]:
        return self.value.low // self.divisor, self.value.high // self.divisor


class Mod(_Quotient):
    """Remainder, 0 <= result < divisor."""

    __slots__ = ()
    sign = "%"

    def _bounds(self) -> tuple[int, int]:
        return 0, self.divisor - 1


class Opaque(ABC):
    """A bounded integer that other modules can compute (compiler.expression.lookup)."""

    __slots__ = ()

    low: int
    high: int
    key: str

    @abstractmethod
    def indices(self) -> Iterable[Index]:
        """Yield the indices it depends on."""

    @abstractmethod
    def rebuild(self, leaf: Callable[[Range], Index]) -> Index:
        """Return the same over `leaf(range)` for each range."""

    @abstractmethod
    def guarded(self, conditions: Validity) -> Index:
        """Return the same, reading memory only where the conditions hold."""

    @abstractmethod
    def magnitude(self) -> int:
        """See Index.magnitude."""

    def __str__(self) -> str:
        return self.key


Atom = Range | Div | Mod | Opaque
Terms = tuple[tuple[Atom, int], ...]


class Index:
    """constant + sum of coefficient * atom; low and high bound its value. Immutable."""

    __slots__ = ("_hash", "_text", "constant", "high", "low", "terms")

    def __init__(self, terms: Terms, constant: int) -> None:
        self.terms = terms
        self.constant = constant
        low = high = constant
        for atom, factor in terms:
            if factor > 0:
                low, high = low + factor * atom.low, high + factor * atom.high
            else:
                low, high = low + factor * atom.high, high + factor * atom.low
        self.low, self.high = low, high
        self._hash = hash((terms, constant))
        self._text: str | None = None

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def ranges(self) -> frozenset[Range]:
        """Return every variable in it."""
        return _ranges(self)

    def coefficient(self, atom: Atom) -> int:
        """Return the factor of `atom` at the top level, 0 if absent."""
        return next((c for a, c in self.terms if a == atom), 0)

    def linear(self, *ranges: Range) -> tuple[int, ...] | None:
        """Return the coefficients of ranges if the index depends on them in no other way."""
        factors = tuple([self.coefficient(each) for each in ranges])
        pairs = zip(ranges, factors, strict=True)
        rest = self - sum((each.index() * factor for each, factor in pairs), Index((), 0))
        return factors if rest.ranges().isdisjoint(ranges) else None

    def multiple(self) -> int:
        """Return the largest known divisor of every value it takes; 0 for the constant 0."""
        return gcd(self.constant, *(c for _, c in self.terms))

    def substitute(self, values: Mapping[Range, Index]) -> Index:
        """Replace ranges, all at once."""
        if self.ranges().isdisjoint(values):
            return self
        return self.rebuild(lambda r: values[r] if r in values else r.index())

    def rebuild(
        self, leaf: Callable[[Range], Index], opaque: Callable[[Opaque], Index] | None = None
    ) -> Index:
        """Return the same expression over `leaf(range)` for each range; opaque atoms are rebuilt,
        or replaced by `opaque(atom)`."""
        pairs: list[tuple[Atom, int]] = []
        offset = self.constant
        for atom, factor in self.terms:
            if isinstance(atom, Range):
                part = leaf(atom)
            elif isinstance(atom, Opaque):
                part = atom.rebuild(leaf) if opaque is None else opaque(atom)
            elif isinstance(atom, Div):
                part = atom.value.rebuild(leaf, opaque) // atom.divisor
            else:
                part = atom.value.rebuild(leaf, opaque) % atom.divisor
            pairs += [(inner, times * factor) for inner, times in part.terms]
            offset += part.constant * factor
        return _total(pairs, offset)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return its value for given values of each range, by name, and opaque atom, by key."""
        total = self.constant
        for atom, factor in self.terms:
            if isinstance(atom, Range):
                part = values[atom.name]
            elif isinstance(atom, Opaque):
                part = values[atom.key]
            elif isinstance(atom, Div):
                part = atom.value.evaluate(values) // atom.divisor
            else:
                part = atom.value.evaluate(values) % atom.divisor
            total = total + part * factor  # not in place: tests evaluate for arrays
        return total

    def magnitude(self) -> int:
        """Return the largest absolute value of any intermediate result."""
        worst = abs(self.constant)
        for atom, factor in self.terms:
            worst += max(abs(factor * atom.low), abs(factor * atom.high))
            if isinstance(atom, Opaque):
                worst = max(worst, atom.magnitude())
            elif not isinstance(atom, Range):
                worst = max(worst, atom.value.magnitude(), atom.divisor)
        return worst

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms:
            return self + other.constant
        return _total((*self.terms, *other.terms), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return constant(0)
        return Index(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __neg__(self) -> Index:
        return self * -1

    def __floordiv__(self, divisor: int) -> Index:
        return _divide(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return _remainder(self, divisor)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Index)
            and self._hash == other._hash
            and self.constant == other.constant
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            parts = [str(a) if c == 1 else f"{a}*{c}" for a, c in self.terms]
            if self.constant or not parts:
                parts.append(str(self.constant))
            self._text = " + ".join(parts)
        return self._text

    __repr__ = __str__


def constant(value: int) -> Index:
    return Index((), value)


@lru_cache(maxsize=65536)
def _ranges(index: Index) -> frozenset[Range]:
    found: set[Range] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Range):
            found.add(atom)
        elif isinstance(atom, Opaque):
            found |= frozenset().union(*(_ranges(inner) for inner in atom.indices()))
        else:
            found |= _ranges(atom.value)
    return frozenset(found)


def _total(pairs: Iterable[tuple[Atom, int]], offset: int) -> Index:
    """Normal form of a sum: like atoms joined, `k*c*(y//c) + k*(y%c)` folded to `k*y`, sorted."""
    factors: dict[Atom, int] = {}
    for atom, factor in pairs:
        factors[atom] = factors.get(atom, 0) + factor
    for atom in [a for a in factors if isinstance(a, Mod)]:
        assert isinstance(atom, Mod)
        factor = factors.get(atom, 0)
        if not factor:
            continue
        quotient = atom.value // atom.divisor
        if len(quotient.terms) == 1 and quotient.terms[0][1] == 1 and not quotient.constant:
            whole = quotient.terms[0][0]
            if factors.get(whole, 0) == factor * atom.divisor:  # y%c = y - c*(y//c)
                del factors[atom], factors[whole]
                return _total(factors.items(), offset) + atom.value * factor
    kept = [(atom, factor) for atom, factor in factors.items() if factor]
    kept.sort(key=lambda pair: pair[0].key)
    return Index(tuple(kept), offset)


def _split(index: Index, divisor: int) -> tuple[Index, Index]:
    """Return index = divisor * quotient + rest, with 0 <= rest.constant < divisor."""
    quotient = tuple((a, c // divisor) for a, c in index.terms if c % divisor == 0)
    rest = tuple((a, c) for a, c in index.terms if c % divisor)
    return (
        Index(quotient, index.constant // divisor),
        Index(rest, index.constant % divisor),
    )


def _common(index: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """Find g > 1 dividing `divisor` with index = g*outer + inner and 0 <= inner < g."""
    seen: set[int] = set()
    for _, factor in index.terms:
        g = gcd(factor, divisor)
        if g > 1 and g not in seen:
            seen.add(g)
            outer, inner = _split(index, g)
            if inner.low >= 0 and inner.high < g:
                return g, outer, inner
    return None


@lru_cache(maxsize=65536)
def _divide(index: Index, divisor: int) -> Index:
    assert divisor > 0
    if divisor == 1:
        return index
    whole, rest = _split(index, divisor)
    if rest.low // divisor == rest.high // divisor:
        return whole + rest.low // divisor
    common = _common(rest, divisor)
    if common is not None:
        g, outer, _ = common
        return whole + outer // (divisor // g)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div):  # (y//d + k)//c = (y + k*d)//(c*d)
            inner = atom.value + rest.constant * atom.divisor
            return whole + inner // (divisor * atom.divisor)
        if isinstance(atom, Mod) and rest.constant == 0 and atom.divisor % divisor == 0:
            # (y % (c*d))//c = (y//c) % d
            return whole + (atom.value // divisor) % (atom.divisor // divisor)
    return whole + Index(((Div(rest, divisor), 1),), 0)


@lru_cache(maxsize=65536)
def _remainder(index: Index, divisor: int) -> Index:
    assert divisor > 0
    if divisor == 1:
        return constant(0)
    _, rest = _split(index, divisor)
    if rest.low // divisor == rest.high // divisor:
        return rest - divisor * (rest.low // divisor)
    for atom, factor in rest.terms:  # k*(y % d) = k*y modulo c if c divides k*d
        if isinstance(atom, Mod) and (factor * atom.divisor) % divisor == 0:
            others = Index(tuple(pair for pair in rest.terms if pair[0] != atom), rest.constant)
            return (others + atom.value * factor) % divisor
    common = _common(rest, divisor)
    if common is not None:
        g, outer, inner = common
        return (outer % (divisor // g)) * g + inner
    return Index(((Mod(rest, divisor), 1),), 0)


# A condition is an Index that must not be negative; a validity is a set of conditions, all to hold.
Validity = tuple[Index, ...]
NEVER: Validity = (constant(-1),)


def at_least_zero(index: Index) -> Validity:
    """Return the validity `index >= 0`, simplified: () always holds, NEVER does not."""
    if index.low >= 0:
        return ()
    if index.high < 0:
        return NEVER
    g = gcd(*(c for _, c in index.terms))
    if g > 1:
        index = Index(tuple((a, c // g) for a, c in index.terms), index.constant // g)
    return (index,)


def within(index: Index, start: int, stop: int) -> Validity:
    """Return the validity `start <= index < stop`."""
    return both(at_least_zero(index - start), at_least_zero(constant(stop - 1) - index))


def both(left: Validity, right: Validity) -> Validity:
    """Return the validity that both hold, sorted and without repeats: equal sets are equal."""
    if left == NEVER or right == NEVER:
        return NEVER
    if not left or left == right:
        return right
    if not right:
        return left
    return tuple(sorted({*left, *right}, key=str))


def substitute_all(conditions: Validity, values: Mapping[Range, Index]) -> Validity:
    """Replace ranges in every condition and simplify again."""
    result: Validity = ()
    for condition in conditions:
        result = both(result, at_least_zero(condition.substitute(values)))
    return result


def flatten(indices: Iterable[Index], shape: Iterable[int]) -> Index:
    """Return the row-major position of `indices` in `shape`."""
    position = constant(0)
    for index, size in zip(indices, shape, strict=True):
        position = position * size + index
    return position


def unflatten(position: Index, shape: tuple[int, ...]) -> list[Index]:
    """Return the indices in `shape` of a row-major position below its size."""
    indices: list[Index] = []
    for size in reversed(shape[1:]):
        indices.append(position % size if size else constant(0))
        position = position // size if size else constant(0)
    if shape:
        indices.append(position)
    return indices[::-1]
