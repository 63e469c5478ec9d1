"""Parts of an array that an assignment replaces: a box of it, or elements that indices choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.expression.algebra import Index, Validity, at_least_zero, both, constant, within
from compiler.graph import node as graph
from compiler.graph.node import Node, Shape


@dataclass(frozen=True)
class Region:
    """A box of an array: start, stop and step > 0 for each axis, then axes to reverse, then the
    shape the result has (axes of size 1 dropped and inserted)."""

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
        """Where in the array the region's elements are."""
        return tuple(
            (constant(count - 1) - index if axis in self.flipped else index) * step + start
            for axis, (index, count, step, (start, _)) in enumerate(
                zip(indices, self.counts, self.steps, self.box, strict=True)
            )
        )

    def inner(self, indices: Sequence[Index]) -> tuple[Validity, tuple[Index, ...]]:
        """When the array's elements are in the region, and where."""
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
        """The elements of the region."""
        node = graph.flip(graph.shrink(source, self.box), self.flipped)
        return graph.reshape(graph.stride(node, self.steps), self.shape)


@dataclass(frozen=True)
class Scatter:
    """Elements of an array chosen by indices. The values to write have `ordered` axes first, along
    which an element may be written several times: in order, so that the last one stays, or, where
    they are joined, each takes part in that order. What lies along the others is written once.

    region: which elements there are to choose from, of counts as the array has axes; all of it
    along `axes`, whose indices are sources. The others are the values' last axes, in order.
    mode: "set", or how what is there and the value are joined: "add", "mul", "max", "min".
    checked: all indices are known to lie inside; otherwise what lies outside is not written, and
    negative ones count from the end. masked: a last source says by bools what is written.
    """

    region: Region
    axes: tuple[int, ...]
    ordered: int
    mode: str = "set"
    checked: bool = False
    masked: bool = False
