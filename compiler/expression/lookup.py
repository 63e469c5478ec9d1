"""Indices that come from memory: an integer value as an atom of the index algebra.

The places that a gather reads are then index arithmetic like any other, through every reshape, pad
and slice. A Lookup is clamped into its bounds when it is computed, so that every element read with
it exists; its creator decides which of these elements are used (see ranges, "gather").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from ugpu.compiler.dtype import int64
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Opaque, Range, Validity, both
from ugpu.compiler.expression.text import operation_text
from ugpu.compiler.expression.value import (
    Value,
    binary,
    cast,
    const,
    indices_of,
    load,
    own_indices,
    rebuild,
    substitute,
    unseen,
    value,
    walk,
)


class Lookup(Opaque):
    """The integer `source`, clamped to 0 .. size-1."""

    __slots__ = ("high", "key", "low", "source")

    def __init__(self, source: Value, size: int) -> None:
        self.source = source
        self.low, self.high = 0, size - 1
        self.key = f"<{_text(source)} below {size}>"

    def index(self) -> Index:
        return Index(((self, 1),), 0)

    def indices(self) -> Iterator[Index]:
        return indices_of(self.source)

    def rebuild(self, leaf: Callable[[Range], Index]) -> Index:
        used = {r: leaf(r) for index in self.indices() for r in index.ranges()}
        return Lookup(substitute(self.source, used), self.high + 1).index()

    def magnitude(self) -> int:
        sizes = [8 * index.magnitude() for index in self.indices()]  # 8: the widest elements
        return max(self.high, *sizes, 0)

    def guarded(self, conditions: Validity) -> Index:
        return Lookup(guard(self.source, conditions), self.high + 1).index()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lookup):
            return False
        return self.source is other.source and self.high == other.high

    def __hash__(self) -> int:
        return hash((id(self.source), self.high))

    def __str__(self) -> str:
        return self.key


def lookup(source: Value, size: int) -> Index:
    """Return the index that `source` computes."""
    if source.op == "index" and source.arg.low >= 0 and source.arg.high < size:
        found: Index = source.arg
        return found
    return Lookup(source, size).index()


def looked_up(number: Value, size: int, checked: bool, inside: list[Value]) -> Index:
    """Return the index into an axis that a value gives. Unless it is known to be in range
    (`checked`), negative values count from the end, and `inside` receives the conditions for it."""
    if not checked and not (number.op == "index" and number.arg.low >= 0):
        number = _from_end(number, size)
    sure = number.op == "index" and number.arg.low >= 0 and number.arg.high < size
    if not checked and not sure:
        inside += _in_bounds(number, size)
    return lookup(ops.expand(number), size)


def _from_end(number: Value, size: int) -> Value:
    """Return an index in which negative values count from the end."""
    if number.dtype.kind != "i":
        return number
    wide = cast(number, int64)
    negative = binary("lt", wide, const(0, int64))
    return value("where", int64, (negative, binary("add", wide, const(size, int64)), wide))


def _in_bounds(number: Value, size: int) -> list[Value]:
    """Return the conditions for 0 <= number < size."""
    wide = cast(number, int64)
    if number.dtype.name == "uint64":
        return [binary("lt", number, const(size, number.dtype))]
    low = binary("le", const(0, int64), wide)
    return [low, binary("lt", wide, const(size, int64))]


def guard(root: Value, conditions: Validity) -> Value:
    """Restrict every load in `root`, those in its indices too, to where the conditions hold."""
    if not conditions:
        return root

    def change(node: Value, _: tuple[Value, ...]) -> Value | None:
        if node.op == "index":
            return value("index", node.dtype, (), guarded(node.arg, conditions))
        if node.op != "load" or node.arg.memory.space != "global":
            return None
        access = node.arg
        index = guarded(access.index, conditions)
        return load(access.memory, index, both(access.conditions, conditions), node.lanes)

    return rebuild(root, change)


def guarded(index: Index, conditions: Validity) -> Index:
    """Return an index whose own loads happen only where the conditions hold."""
    if not any(isinstance(atom, Opaque) for atom in atoms(index)):
        return index
    return index.rebuild(lambda r: r.index(), lambda atom: atom.guarded(conditions))


def atoms(index: Index) -> Iterator[object]:
    """Yield every atom of an index, including those inside quotients."""
    for atom, _ in index.terms:
        yield atom
        if not isinstance(atom, Range | Opaque):
            yield from atoms(atom.value)


def reduces(root: Value) -> bool:
    """Return whether a value contains a reduction, in an index that it reads at, too."""
    seen: set[int] = set()
    roots = [root]
    while roots:
        for node in unseen(roots.pop(), seen):
            if node.op == "reduce":
                return True
            roots += looked_up_in(node)
    return False


def looked_up_in(node: Value) -> Iterator[Value]:
    """Yield the integers that the value's own indices look up; these may contain more lookups."""
    for index in own_indices(node):
        for atom in atoms(index):
            if isinstance(atom, Lookup):
                yield atom.source


@lru_cache(maxsize=4096)
def _text(root: Value) -> str:
    shown: dict[int, str] = {}
    for node in walk(root):
        shown[id(node)] = operation_text(node, [shown[id(source)] for source in node.sources])
    return shown[id(root)]
