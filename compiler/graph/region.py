"""Operations by indices: gather, and writes of a box or of elements chosen by indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Validity,
    at_least_zero,
    both,
    constant,
    within,
)
from ugpu.compiler.expression.lookup import looked_up
from ugpu.compiler.expression.value import Value, binary, const, gate, value
from ugpu.compiler.graph import movement
from ugpu.compiler.graph.node import Kind, Node, Shape, Trace


@dataclass(frozen=True)
class Region:
    """A box of an array: start, stop and step > 0 for each axis, then the axes to reverse, then the
    shape of the result (axes of size 1 dropped and inserted)."""

    box: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    flipped: tuple[int, ...]
    shape: Shape

    @property
    def counts(self) -> Shape:
        """Return the number of elements along each axis of the array."""
        pairs = zip(self.box, self.steps, strict=True)
        return tuple(-(-(stop - start) // step) for (start, stop), step in pairs)

    def outer(self, indices: Sequence[Index]) -> tuple[Index, ...]:
        """Return the indices in the array of the region's elements."""
        return tuple(
            (constant(count - 1) - index if axis in self.flipped else index) * step + start
            for axis, (index, count, step, (start, _)) in enumerate(
                zip(indices, self.counts, self.steps, self.box, strict=True)
            )
        )

    def inner(self, indices: Sequence[Index]) -> tuple[Validity, tuple[Index, ...]]:
        """Return when an element of the array is in the region, and its indices there."""
        inside: Validity = ()
        places = []
        for axis, (index, (start, stop)) in enumerate(zip(indices, self.box, strict=True)):
            step, from_start = self.steps[axis], index - start
            inside = both(inside, within(index, start, stop))
            inside = both(inside, at_least_zero((from_start % step) * -1))
            place = from_start // step
            last = constant(self.counts[axis] - 1)
            places.append(last - place if axis in self.flipped else place)
        return inside, tuple(places)

    def read(self, source: Node) -> Node:
        """Return the elements of the region."""
        node = movement.flip(movement.shrink(source, self.box), self.flipped)
        return movement.reshape(movement.stride(node, self.steps), self.shape)


@dataclass(frozen=True)
class Scatter:
    """Elements of an array chosen by indices. The first `ordered` axes of the values to write are
    the axes along which an element may be written several times. The values are taken in order:
    the last one stays, or, with a joining mode, each is joined in that order. Along the other axes
    each element is written once.

    region: the elements to choose from, with as many counts as the array has axes. It is whole
    along `axes`, whose indices are sources. The other axes are the last of the values, in order.
    mode: "set", or how the existing element and the value are joined: "add", "mul", "max", "min".
    checked: all indices are known to be in range; otherwise negative indices count from the end,
    and indices out of range write nothing. masked: the last source has bools: what to write.
    """

    region: Region
    axes: tuple[int, ...]
    ordered: int
    mode: str = "set"
    checked: bool = False
    masked: bool = False


def gather(source: Node, axes: tuple[int, ...], indices: Sequence[Node], checked: bool) -> Node:
    """Take elements by indices along `axes`; the axes of the indices replace these, in front.
    Negative indices count from the end; an index outside its axis reads zero. checked: the indices
    are known to be in range."""
    rest = tuple(size for axis, size in enumerate(source.shape) if axis not in axes)
    shape = (*indices[0].shape, *rest)
    return Node("gather", source.dtype, shape, (source, *indices), (axes, checked))


def _gathered(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    axes, checked = node.arg
    source, *givens = node.sources
    if node.size == 0 or source.size == 0:
        return const(0, node.dtype)
    common = len(givens[0].shape)
    rest = iter(at[common:])
    found: dict[int, Index] = {}
    inside: list[Value] = []
    for axis, given in zip(axes, givens, strict=True):
        number = trace.value(given, at[:common], valid)
        found[axis] = looked_up(number, source.shape[axis], checked, inside)
    inner = tuple(found[i] if i in found else next(rest) for i in range(len(source.shape)))
    piece = trace.value(source, inner, valid)
    if not inside:
        return piece
    allowed = reduce(partial(binary, "and"), inside)
    return value("where", node.dtype, (allowed, piece, const(0, node.dtype)))


Kind("gather", _gathered, repeats=True, positional=True)


def _assigned(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    """Express the first source, its region (arg) set to the second, where the third, if any, is
    true."""
    old, given, *masks = node.sources
    inside, inner = node.arg.inner(at)
    outside = trace.value(old, at, valid)
    if inside == NEVER:
        return outside
    new = trace.value(given, inner, both(valid, inside))
    for mask in masks:
        test = trace.value(mask, inner, both(valid, inside))
        new = value("where", node.dtype, (test, new, outside))
    return gate(inside, new, outside)


Kind("assign", _assigned, writes=True)
# The first source, with the second's elements at the indices that follow, as the Scatter says.
Kind("scatter", writes=True, stored=True, positional=True)
