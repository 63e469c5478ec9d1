"""Parts of an array that an assignment replaces: a box, or elements chosen by indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.compiler.expression.algebra import Index, Validity, at_least_zero, both, constant, within
from ugpu.compiler.graph import node as graph
from ugpu.compiler.graph.node import Node, Shape


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
        node = graph.flip(graph.shrink(source, self.box), self.flipped)
        return graph.reshape(graph.stride(node, self.steps), self.shape)


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
