"""Tensor: x[...] = value by ints, slices, None, ..., arrays, integer tensors and masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np

from ugpu.compiler.dtype import bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.origin import here
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.methods.core import TensorCore, broadcast, broadcast_shape
from ugpu.compiler.methods.operations import Operations
from ugpu.compiler.methods.shape.indexing import Key, is_bool
from ugpu.hcq.errors import BadArgument, NotSupported


class Assignment(Operations):
    """Replacing elements. Elements are written in place unless the old value can still be observed:
    other tensors keep their values."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign as in NumPy; `value` is broadcast and converted. Where indices repeat, the last
        value stays. An out-of-range index writes nothing if a tensor holds it; if it is known on
        the host it raises an error. A tensor mask takes one value for all elements that it selects
        along its axes; an array mask also takes one value for each of them."""
        listed = tuple(
            self._new(graph.full(bool(entry), bool_, ())) if is_bool(entry) else entry
            for entry in (key if isinstance(key, tuple) else (key,))
        )
        masks = [entry for entry in listed if _is_mask(entry)]
        if masks:
            self._assign_masked(listed, value)
            return
        entries = self._full_key(listed)
        if any(isinstance(entry, TensorCore | np.ndarray) for entry in entries):
            self._assign_chosen(entries, value)
            return
        region = self._region(entries)
        node = self._given(value, region.shape)
        self._replace("assign", region, graph.reshape(node, region.counts))

    def assign(self, value: Any) -> Self:
        """Replace all elements, as `x[...] = value` does; return self."""
        self[...] = value
        return self

    def _replace(self, op: str, arg: Region | Scatter, given: Node, *others: Node) -> None:
        if given.size:
            sources = (self.node, given, *others)
            self.node = Node(op, self.dtype, self.shape, sources, arg)
            self.node.origin = here()

    def _given(self, value: Any, shape: Shape) -> Node:
        """Return the value to write, converted and broadcast."""
        given = self._lift("assign", value)
        if not isinstance(given, TensorCore):
            return self._constant("assign", given, self.dtype, shape)
        more = given.ndim - len(shape)
        if more > 0 and prod(given.shape[:more]) == 1:  # as in NumPy
            given = self._new(graph.reshape(given.node, given.shape[more:]))
        if broadcast_shape("assign", given.node, shape) != shape:
            raise BadArgument(
                f"assign: the value's shape {given._shown} must broadcast to the region's shape "
                f"{list(shape)}"
            )
        return broadcast(graph.cast(given.node, self.dtype), shape)

    # ---- by indices ----------------------------------------------------------------------------

    def _assign_chosen(self, entries: Sequence[Key], value: Any) -> None:
        chosen = self._choose(entries)
        side_by_side, common = chosen.side_by_side, chosen.common
        source = self._region(chosen.basic)  # of the array, the indexed axes whole
        rest = [size for place, size in enumerate(source.shape) if place not in chosen.places]
        first = chosen.places[0] if side_by_side else 0
        node = self._given(value, (*rest[:first], *common, *rest[first:]))
        order = list(range(len(node.shape)))
        moved = order[first : first + len(common)]
        node = graph.permute(node, (*moved, *order[:first], *order[first + len(common) :]))
        counts = tuple(n for axis, n in enumerate(source.counts) if axis not in chosen.axes)
        shape = (*common, *counts)
        ones = (1,) * len(counts)
        indices = [
            graph.expand(graph.reshape(index, (*index.shape, *ones)), shape)
            for index in (broadcast(index, common) for index in chosen.indices)
        ]
        once = prod(common) <= 1 or chosen.distinct(self.shape)
        ordered = 0 if once else len(common)
        choice = Scatter(source, tuple(chosen.axes), ordered, "set", chosen.checked)
        self._replace("scatter", choice, graph.reshape(node, shape), *indices)

    # ---- by masks ------------------------------------------------------------------------------

    def _assign_masked(self, key: Sequence[Any], value: Any) -> None:
        place = next(i for i, entry in enumerate(key) if _is_mask(entry))
        mask = key[place]
        self._lift("assign", mask)
        entries = self._full_key((*key[:place], *[slice(None)] * mask.ndim, *key[place + 1 :]))
        if any(isinstance(entry, TensorCore | np.ndarray) for entry in entries):
            raise NotSupported("assignment by a mask in a tensor combined with other indices")
        start = place  # the mask's first entry; behind "..." entries are counted from the end
        if any(entry is Ellipsis for entry in key[:place]):
            start = len(entries) - (len(key) - place - 1) - mask.ndim
        stop = start + mask.ndim
        first = sum(entry is not None for entry in entries[:start])
        own = self.shape[first : first + mask.ndim]
        if own != mask.shape:
            raise BadArgument(
                f"assign: the mask's shape {mask._shown} must equal the axes {list(own)}"
            )
        numbers = [i for i, entry in enumerate(entries) if isinstance(entry, int)]
        chosen = sorted([*numbers, *range(start, stop)])
        apart = any(later - place != 1 for place, later in pairwise(chosen))
        region = self._region(entries)
        start -= sum(number < start for number in numbers)  # from here on of the region's shape
        stop = start + mask.ndim
        rest = (*region.shape[:start], *region.shape[stop:])
        node = self._for_mask(value, rest, 0 if apart else start)
        node = graph.reshape(node, (*rest[:start], *[1] * mask.ndim, *rest[start:]))
        node = broadcast(node, region.shape)
        ones = [1] * (len(region.shape) - stop)
        picked = broadcast(graph.reshape(mask.node, (*mask.shape, *ones)), region.shape)
        counts = region.counts
        self._replace("assign", region, graph.reshape(node, counts), graph.reshape(picked, counts))

    def _for_mask(self, value: Any, rest: Shape, place: int) -> Node:
        """Return the value to write in each place of a mask. rest: the other axes; place: the
        position among them of NumPy's axis of selected elements."""
        given = self._lift("assign", value)
        if not isinstance(given, TensorCore):
            return self._constant("assign", given, self.dtype, rest)
        own = (1,) * (len(rest) + 1 - given.ndim) + given.shape
        if len(own) != len(rest) + 1:
            raise BadArgument(
                f"assign: shape {given._shown} does not match the elements selected "
                f"by the mask from shape {self._shown}"
            )
        if own[place] != 1:
            raise NotSupported(
                f"assign: shape {given._shown} cannot be assigned by a mask in a tensor, "
                "since the number of selected elements depends on data; pass one value, or "
                "the mask as an array"
            )
        shape = (*own[:place], *own[place + 1 :])
        node = graph.reshape(graph.cast(given.node, self.dtype), shape)
        if broadcast_shape("assign", shape, rest) != rest:
            raise BadArgument(
                f"assign: the value's shape {given._shown} must broadcast to the region's shape "
                f"{list(rest)}"
            )
        return broadcast(node, rest)


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, TensorCore) and entry.dtype is bool_
