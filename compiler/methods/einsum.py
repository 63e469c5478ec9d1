"""Tensor: sums of products by an equation (einsum).

Operands are joined two at a time. Two operands are multiplied over the axes of the result and the
summed axes, in this order. Lowering recognises this as a matrix product, batched or not; no axis is
moved in memory for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.methods.operations import Operations
from ugpu.hcq.errors import BadArgument


@dataclass(frozen=True)
class _Factor:
    """An operand with named axes."""

    node: Node
    names: tuple[str, ...]

    def size(self, name: str) -> int:
        return self.node.shape[self.names.index(name)] if name in self.names else 1


class Einsum(Operations):
    """See einsum."""

    __slots__ = ()

    @classmethod
    def einsum(cls, equation: str, *operands: Self) -> Self:
        """Multiply the operands with axes named by letters, and sum over the axes missing after
        "->".

        As in numpy.einsum: a letter that occurs twice in one operand selects its diagonal; "..."
        stands for any axes, which broadcast; without "->", letters that occur once are kept, in
        alphabetical order. Types as in matmul. Raises BadArgument with the equation.
        """
        if not operands or not isinstance(operands[0], Einsum):
            raise BadArgument(f"einsum {equation!r}: expected at least one tensor")
        first = operands[0]
        return first._joined(
            equation, [first._tensor(f"einsum {equation!r}", each) for each in operands]
        )

    def _joined(self, equation: str, operands: Sequence[TensorCore]) -> Self:
        dtype = operands[0].dtype
        for operand in operands[1:]:
            dtype = dtypes.promote(dtype, operand.dtype)
        inner = dtypes.inner(dtype)
        names, kept = _parsed(equation, operands)
        factors = [
            self._diagonal(equation, _Factor(operand.node, each))
            for operand, each in zip(operands, names, strict=True)
        ]
        _check_sizes(equation, factors, operands)
        while len(factors) > 1:
            one, two = min(combinations(range(len(factors)), 2), key=lambda p: _cost(factors, p))
            rest = [factor for i, factor in enumerate(factors) if i not in (one, two)]
            later = {name for factor in rest for name in factor.names}
            pair = factors[one], factors[two]
            wanted = kept
            if rest:
                both = dict.fromkeys((*pair[0].names, *pair[1].names))
                wanted = tuple([name for name in both if name in later or name in kept])
            alone = [self._summed(one, (*wanted, *other.names, *later), dtype, inner)
                     for one, other in (pair, pair[::-1])]  # fmt: skip
            factors = [self._product(alone[0], alone[1], wanted, dtype, inner), *rest]
        last = self._summed(factors[0], kept, dtype, inner)
        result = graph.cast(last.node, dtype)
        return self._new(graph.permute(result, tuple(last.names.index(name) for name in kept)))

    def _diagonal(self, equation: str, factor: _Factor) -> _Factor:
        """Return the factor with one axis for each name: the diagonal of axes with the same
        name."""
        node, names = factor.node, factor.names
        for name, count in Counter(names).items():
            if count == 1:
                continue
            axes = tuple(axis for axis, each in enumerate(names) if each == name)
            sizes = {node.shape[axis] for axis in axes}
            if len(sizes) > 1:
                raise BadArgument(
                    f"einsum {equation!r}: axis {name!r} has different sizes: {sorted(sizes)}"
                )
            places = [graph.iota(sizes.pop())] * count
            node = graph.gather(node, axes, places, checked=True)
            names = (name, *(each for each in names if each != name))
        return _Factor(node, names)

    def _summed(self, factor: _Factor, kept: Sequence[str], dtype: DType, inner: DType) -> _Factor:
        """Sum over the axes that no other factor names."""
        gone = tuple(axis for axis, name in enumerate(factor.names) if name not in kept)
        if not gone:
            return factor
        names = tuple([name for name in factor.names if name in kept])
        total = self._reduce("sum", graph.cast(factor.node, inner), gone, False)
        return _Factor(graph.cast(total.node, dtype), names)

    def _product(
        self, left: _Factor, right: _Factor, kept: Sequence[str], dtype: DType, inner: DType
    ) -> _Factor:
        both = dict.fromkeys((*left.names, *right.names))
        named = tuple([name for name in kept if name in both])
        over = tuple([name for name in both if name not in kept])
        order = (*named, *over)
        shape = tuple(max(left.size(name), right.size(name)) if
                      min(left.size(name), right.size(name)) else 0 for name in order)  # fmt: skip
        sides = []
        for factor in (left, right):
            axes = [factor.names.index(name) for name in order if name in factor.names]
            node = graph.permute(graph.cast(factor.node, inner), tuple(axes))
            spread = graph.reshape(node, tuple(factor.size(name) for name in order))
            sides.append(graph.expand(spread, shape))
        products = graph.elementwise("mul", inner, *sides)
        if over:
            axes = list(range(len(named), len(order)))
            products = self._reduce("sum", products, tuple(axes), False).node
        return _Factor(graph.cast(products, dtype), named)


def _cost(factors: Sequence[_Factor], pair: tuple[int, int]) -> tuple[int, int]:
    """Return the number of multiplications to join two; for equal ones, earlier pairs first."""
    left, right = factors[pair[0]], factors[pair[1]]
    both = dict.fromkeys((*left.names, *right.names))
    return prod(max(left.size(name), right.size(name)) for name in both), pair[0] + pair[1]


def _parsed(
    equation: str, operands: Sequence[TensorCore]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return the names of each operand's axes and of the result's; axes of "..." are numbered from
    the last one."""
    sides = equation.replace(" ", "").split("->")
    terms = sides[0].split(",")
    if len(sides) > 2 or len(terms) != len(operands):
        raise BadArgument(f"einsum {equation!r}: the equation must name {len(operands)} operands")
    names = []
    most = 0
    for term, operand in zip(terms, operands, strict=True):
        known = len(_letters(equation, term))
        spare = operand.ndim - known
        if spare < 0 or (spare and "..." not in term):
            raise BadArgument(
                f"einsum {equation!r}: {term!r} does not match the axes of shape {operand._shown}"
            )
        most = max(most, spare)
        names.append(_named(term, spare))
    found = Counter(name for each in names for name in each)
    if len(sides) == 2:
        dots = most if "..." in sides[1] else 0
        _letters(equation, sides[1])
        kept = _named(sides[1], dots)
    else:
        once = sorted(n for n, count in found.items() if count == 1 and not n.isdigit())
        kept = (*_named("..." if most else "", most), *once)
    unknown = [name for name in kept if name not in found]
    if unknown or len(set(kept)) < len(kept):
        raise BadArgument(
            f"einsum {equation!r}: the result must name each axis once, and only axes of "
            "the operands"
        )
    return names, kept


def _letters(equation: str, term: str) -> str:
    letters = term.replace("...", "", 1)
    if not all(letter.isascii() and letter.isalpha() for letter in letters):
        raise BadArgument(f"einsum {equation!r}: {term!r} must be letters")
    return letters


def _named(term: str, dots: int) -> tuple[str, ...]:
    before, _, after = term.partition("...")
    return (*before, *(str(place) for place in reversed(range(dots))), *after)


def _check_sizes(equation: str, factors: Sequence[_Factor], operands: Sequence[TensorCore]) -> None:
    sizes: dict[str, int] = {}
    for factor in factors:
        for name, size in zip(factor.names, factor.node.shape, strict=True):
            known = sizes.get(name, 1)
            if size != known and 1 not in (size, known):
                shapes = " and ".join(operand._shown for operand in operands)
                raise BadArgument(f"einsum {equation!r}: shapes {shapes} do not agree")
            sizes[name] = size if known == 1 else known
