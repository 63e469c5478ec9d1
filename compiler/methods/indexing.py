"""Tensor: x[...] by ints, slices, None, ..., arrays, lists and integer tensors, as in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Self

import numpy as np

from compiler.dtype import int64
from compiler.graph import node as graph
from compiler.graph.node import Node, Shape
from compiler.graph.origin import here
from compiler.index.algebra import Index, Validity, at_least_zero, both, constant, within
from compiler.methods.core import TensorCore, broadcast, broadcast_shape
from compiler.methods.movement import Movement
from hcq.errors import BadArgument, NotSupported

Key = int | slice | None | TensorCore | np.ndarray[Any, Any]


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
        """How many elements along each axis of the array."""
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


class Indexing(Movement):
    """Reading elements. Results are values of their own, never views that change together."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        """As in NumPy. Integer tensors, arrays and lists select elements (gather); a bool array
        selects where it is true. An index held by a tensor that is outside its axis gives zero;
        one that is known on the host is refused."""
        entries = self._full_key(key if isinstance(key, tuple) else (key,))
        if any(isinstance(entry, TensorCore | np.ndarray) for entry in entries):
            return self._gather(entries)
        return self._new(self._region(entries).read(self.node))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Replace the elements at ints and slices; `value` is broadcast and converted. Written in
        place unless somebody may still see the old value: other tensors keep what they had."""
        entries = self._full_key(key if isinstance(key, tuple) else (key,))
        if any(isinstance(entry, TensorCore | np.ndarray) for entry in entries):
            raise NotSupported("assignment to elements chosen by arrays or tensors is not built")
        region = self._region(entries)
        given = self._lift("assign", value)
        if isinstance(given, TensorCore):
            if broadcast_shape("assign", given.node, region.shape) != region.shape:
                raise BadArgument(f"assign: {given._shown} to a region of {list(region.shape)}")
            node = broadcast(graph.cast(given.node, self.dtype), region.shape)
        else:
            node = self._constant("assign", given, self.dtype, region.shape)
        if node.size:
            sources = (self.node, graph.reshape(node, region.counts))
            self.node = Node("assign", self.dtype, self.shape, sources, region)
            self.node.origin = here()

    def assign(self, value: Any) -> Self:
        """Replace all elements, as `x[...] = value` does; returns self."""
        self[...] = value
        return self

    def take(self, indices: Any, axis: int) -> Self:
        """The elements at `indices` along one axis."""
        place = self._axis("take", axis)
        return self[(*[slice(None)] * place, indices)]

    def _region(self, entries: Sequence[Key]) -> Region:
        box: list[tuple[int, int]] = []
        steps: list[int] = []
        flipped: list[int] = []
        result: list[int] = []  # the final shape
        axis = 0
        for entry in entries:
            if entry is None:
                result.append(1)
                continue
            size = self.shape[axis]
            if isinstance(entry, slice):
                start, stop, step = entry.indices(size)
                count = len(range(start, stop, step))
                low, high = sorted((start, start + (count - 1) * step)) if count else (0, -1)
                box.append((low, high + 1))
                steps.append(abs(step))
                if step < 0 and count:
                    flipped.append(axis)
                result.append(count)
            else:
                assert isinstance(entry, int)
                place = self._place(entry, axis)
                box.append((place, place + 1))
                steps.append(1)
            axis += 1
        return Region(tuple(box), tuple(steps), tuple(flipped), tuple(result))

    def _place(self, index: int, axis: int) -> int:
        size = self.shape[axis]
        if not -size <= index < size:
            raise BadArgument(f"index {index} is outside axis {axis} of shape {self._shown}")
        return index % size

    def _gather(self, entries: Sequence[Key]) -> Self:
        """First what is basic, each indexed axis kept whole; then the gather over those axes."""
        whole = slice(None)
        advanced = [e for e in entries if isinstance(e, int | TensorCore | np.ndarray)]
        basic = [whole if isinstance(e, int | TensorCore | np.ndarray) else e for e in entries]
        places = [i for i, e in enumerate(entries) if isinstance(e, int | TensorCore | np.ndarray)]
        axes = [sum(e is not None for e in entries[:place]) for place in places]
        nodes, checked = [], True
        for entry, axis in zip(advanced, axes, strict=True):
            node, known = self._index_node(entry, axis)
            nodes.append(node)
            checked = checked and known
        common = broadcast_shape("index", *nodes)
        source = self._region(basic).read(self.node)
        indices = [broadcast(node, common) for node in nodes]
        node = graph.gather(source, tuple(places), indices, checked)
        side_by_side = places == list(range(places[0], places[0] + len(places)))
        if side_by_side:  # the new axes stand where the indexed ones stood; otherwise first
            order = list(range(len(node.shape)))
            moved = [*order[len(common) : len(common) + places[0]], *order[: len(common)]]
            node = graph.permute(node, (*moved, *order[len(common) + places[0] :]))
        return self._new(node)

    def _index_node(self, entry: Any, axis: int) -> tuple[Node, bool]:
        """An index as a node, and whether all of it is known to lie inside."""
        size = self.shape[axis]
        if isinstance(entry, TensorCore):
            checked = self._lift("index", entry)
            assert isinstance(checked, TensorCore)
            if not entry.dtype.is_integer:
                raise NotSupported(
                    f"indexing by a tensor of {entry.dtype.name}: only integers; "
                    "a result's shape cannot depend on data"
                )
            return entry.node, False
        array = np.asarray(self._place(entry, axis) if isinstance(entry, int) else entry)
        if array.size and not (-size <= array.min() and array.max() < size):
            worst = array.max() if array.max() >= size else array.min()
            raise BadArgument(f"index {worst} is outside axis {axis} of shape {self._shown}")
        wrapped = np.where(array < 0, array + size, array).astype(np.int64)
        if wrapped.ndim == 0:
            return self._constant("index", int(wrapped), int64, ()), True
        return self._from_array(wrapped).node, True

    def _full_key(self, key: tuple[Any, ...]) -> list[Key]:
        """The key with "..." written out and arrays checked, one entry for each axis besides the
        Nones."""
        entries: list[Key | EllipsisType] = []
        for entry in key:
            entries += self._entries(entry)
        dots = [i for i, entry in enumerate(entries) if isinstance(entry, EllipsisType)]
        if len(dots) > 1:
            raise BadArgument("an index holds ... at most once")
        given = sum(1 for entry in entries if entry is not None) - len(dots)
        if given > self.ndim:
            raise BadArgument(f"{given} indices for shape {self._shown}")
        place = dots[0] if dots else len(entries)
        rest: list[Key] = [slice(None)] * (self.ndim - given)
        full = [*entries[:place], *rest, *entries[place + len(dots) :]]
        listed = [entry for entry in full if not isinstance(entry, EllipsisType)]
        self._check_masks(key, listed)
        return listed

    def _entries(self, entry: Any) -> list[Key | EllipsisType]:
        """One entry of a key; a bool array is an integer array for each of its axes."""
        if isinstance(entry, bool):
            raise NotSupported("indexing by a bool is not built; by arrays of bools it is")
        if entry is None or isinstance(entry, slice | EllipsisType | TensorCore):
            return [entry]
        if isinstance(entry, int | np.integer):
            return [int(entry)]
        if isinstance(entry, list):
            entry = np.asarray(entry, None if entry else np.int64)
        if isinstance(entry, np.ndarray) and entry.dtype.kind in "iu":
            return [entry]
        if isinstance(entry, np.ndarray) and entry.dtype.kind == "b" and entry.ndim:
            return list(entry.nonzero())
        raise BadArgument(
            f"a tensor is indexed by int, slice, None, ... or integers, not {entry!r}"
        )

    def _check_masks(self, key: Sequence[Any], entries: Sequence[Key]) -> None:
        """A mask has the sizes of the axes it stands for."""
        axis = 0
        dots = False
        for entry in key:
            mask = np.asarray(entry) if isinstance(entry, list) else entry
            if isinstance(mask, np.ndarray) and mask.dtype.kind == "b":
                stop = self.ndim if dots else axis + mask.ndim
                own = self.shape[stop - mask.ndim : stop]
                if not dots and own != mask.shape:
                    raise BadArgument(f"a mask of shape {list(mask.shape)} for {self._shown}")
                axis += mask.ndim
            elif isinstance(entry, EllipsisType):
                dots = True
            elif entry is not None:
                axis += 1
