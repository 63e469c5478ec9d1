"""Tensor: orders. Short rows by comparing each element with every other, long ones by digits.

By digits (H. Seward, 1954): elements become unsigned integers of the same order, which are sorted
by their lowest four bits, then by the next four, and so on; each pass keeps the order of equals.
A pass counts the digits of each block of 64 elements. Running totals of the counts give the start
of a block's elements with a digit, and comparisons within the block give their order. An element
costs some hundred operations a pass, independent of the length of the row.
"""

from __future__ import annotations

import math
from typing import Any, Self

from ugpu.compiler.dtype import DType, bool_, float64, int32, int64, uint32, uint64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.along import KEPT
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.methods.core import integer_of
from ugpu.compiler.methods.order.running import Running
from ugpu.hcq.errors import BadArgument

SHORT = 1024  # elements of a row up to which every pair is compared
START = 1 << 25  # fixed cost of sorting by digits, in comparisons
EACH = 28  # cost of sorting an element by digits, in comparisons for each bit
LONGEST = 1024  # elements of a row up to which a host sorts rows side by side
LANES = 4  # minimum of a vector for that
LOW = 0xFFFFFFFF  # the part of a host's sort elements with the place of a key
FEW = 128  # elements of a row up to which a host finds an element by its rank by sorting all
ALL = 2  # likewise the first if they are more than 1 / ALL of the row
SHARE = 64  # the first of more than KEPT are those of some blocks if at most 1 / SHARE of the row
BITS = 4  # of a digit
BLOCK = 64  # elements whose digits are counted together
ROUND = 256  # rows are padded to a multiple of this, so that running totals have whole blocks


class Sorting(Running):
    """Sorting. All methods are stable; NaN counts as largest."""

    __slots__ = ()

    def argsort(self, axis: int = -1, descending: bool = False, *, stable: bool = True) -> Self:
        """Return the indices that sort the elements, as int64; equal elements keep their order,
        even with stable=False."""
        if not self.ndim:
            return self.reshape(1).argsort(axis, descending).reshape(())
        place = self._axis("argsort", axis)
        last = self.transpose(place, -1)
        if not self.numel():
            return self.cast(int64)
        if self._serial:
            return last._stored_along(place)._in_rows(descending).transpose(place, -1)
        bits = max(32, self.dtype.bits) if self.dtype.is_float else self.dtype.bits
        saved = self.numel() * (last.shape[-1] - EACH * bits)
        long = last.shape[-1] > SHORT and saved > START
        order = last._by_digits(descending) if long else last._by_pairs(descending)
        return order.transpose(place, -1)

    def sort(
        self, axis: int = -1, descending: bool = False, *, stable: bool = True
    ) -> tuple[Self, Self]:
        """Return the sorted elements and their indices (see argsort)."""
        if not self.ndim:
            found, order = self.reshape(1).sort(axis, descending)
            return found.reshape(()), order.reshape(())
        place = self._axis("sort", axis)
        if not self._serial or not self.numel():
            order = self.argsort(axis, descending)
            return self.gather(axis, order), order
        last = self.transpose(place, -1)._stored_along(place)
        order = last._in_rows(descending)
        values = last._values(descending)
        values = last._at(order) if values is None else values
        return values.transpose(place, -1), order.transpose(place, -1)

    def topk(
        self, count: int, axis: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[Self, Self]:
        """Return the first elements of `sort` and their indices, the largest (or smallest) first;
        in this order also if `sorted` is False."""
        if not self.ndim:
            value, index = self.reshape(1).topk(count, axis, largest)
            return (value, index) if not count else (value.reshape(()), index.reshape(()))
        place = self._axis("topk", axis)
        if not 0 <= integer_of("topk", "count", count) <= self.shape[place]:
            raise BadArgument(
                f"topk: count must be from 0 to the size of axis {axis} of shape {self._shown}, "
                f"got {count}"
            )
        if self._serial and self.numel():
            last = self.transpose(place, -1)._stored_along(place)
            order = last._first(count, largest)
            return last._at(order).transpose(place, -1), order.transpose(place, -1)
        order = self.argsort(place, largest)[(*[slice(None)] * place, slice(count))]
        return self.gather(place, order), order

    def median(self, axis: int | None = None, keepdims: bool = False) -> Any:
        """Return the median, the lower of two; NaN if any element is NaN. With an axis, also return
        its index (of the first NaN, if any), as int64. Raises BadArgument for empty axes."""
        if axis is None:
            found = self.reshape(self.numel()).median(0)[0]
            return found.reshape((1,) * self.ndim) if keepdims else found
        if not self.ndim:
            found, where = self.reshape(1).median(axis)
            return found.reshape(()), where.reshape(())
        place = self._axis("median", axis)
        size = self.shape[place]
        if not size:
            raise BadArgument(f"median: axis {axis} of shape {self._shown} is empty")
        if self.dtype.is_float:
            count = self.isnan().sum(place, keepdims=True)
            middle = count._compare("eq", 0).where((size - 1) // 2, size - count)
            where = self._place_of(middle, place).transpose(place, -1)
        else:
            where = self._place_of((size - 1) // 2, place).transpose(place, -1)
        last = self.transpose(place, -1)
        found, where = last._at(where).transpose(place, -1), where.transpose(place, -1)
        return (found, where) if keepdims else (found.squeeze(place), where.squeeze(place))

    def _place_of(self, rank: Self | int, place: int) -> Self:
        """Return where the element is that has a rank (of size 1 along the axis) in `argsort` along
        axis `place`."""
        last = self.transpose(place, -1)
        number = rank if isinstance(rank, int) else rank.transpose(place, -1)
        if self._serial and last.shape[-1] > FEW and self.numel():
            found = last._stored_along(place)._selected(number, False)
        else:
            order = last.argsort()
            if isinstance(number, int):
                found = order[..., number : number + 1]
            else:
                found = order._at(number)
        return found.transpose(place, -1)

    # ---- on a host ----------------------------------------------------------------------------

    def _stored_along(self, place: int) -> Self:
        """Return this tensor with axis `place` moved to the end and rows contiguous in memory."""
        return self if place == self.ndim - 1 else self.contiguous()

    def _in_rows(self, descending: bool) -> Self:
        """Return argsort along the last axis, by kernels that sort whole rows."""
        keys, bits = self._ordered(descending)
        if keys.shape[-1] == 1:
            return keys.cast(int64) * 0
        if bits == 64:
            lower = (keys & LOW).cast(uint32)._order_of(32)
            return lower._at((keys._at(lower) >> 32).cast(uint32)._order_of(32))
        return keys._order_of(bits)

    def _values(self, descending: bool) -> Self | None:
        """Return the sorted rows, by a kernel that does not compute their order; None where rows
        are few and short, or gradients need the order."""
        size = self.shape[-1]
        lanes = self.device.target.vector_bytes // max(4, self.dtype.itemsize)
        together = LANES <= lanes <= 2 * self.numel() // size and 1 < size <= LONGEST
        if self.node.tracked or self.dtype.is_float8 or not (together or size > FEW):
            return None
        return self._new(graph.sort_values(self.node, descending))

    def _selected(self, rank: Self | int, descending: bool, count: int = 0) -> Self:
        """Return the places of the elements at a rank, or of the first `count`, rising."""
        keys, bits = self._ordered(descending)
        if keys.shape[-1] > KEPT:
            keys = keys.contiguous()
        if isinstance(rank, int):
            number = graph.full(rank, int64, (*self.shape[:-1], 1))
        else:
            number = rank.cast(int64).contiguous().node
        return self._new(graph.select(keys.node, number, bits, count))

    def _order_of(self, bits: int) -> Self:
        """Return the places in the order of these keys of `bits` bits."""
        places = self._counted(self.shape[-1], self.ndim - 1).cast(uint64)
        packed = (self.cast(uint64) << 32) | places
        return self._new(graph.sort(packed.node, bits))

    def _at(self, places: Self) -> Self:
        """Return the elements at places of the last axis; the places must be in range."""
        entries = [
            places._counted(size, axis).expand(places.shape).node
            for axis, size in enumerate(places.shape[:-1])
        ]
        axes = tuple(range(self.ndim))
        return self._new(graph.gather(self.node, axes, [*entries, places.node], checked=True))

    def _first(self, count: int, descending: bool) -> Self:
        """Return the first `count` of `_in_rows`: these are selected and sorted. Of few in a long
        row, the least elements of the `blocks` blocks give the blocks to search: if one of the
        first elements were in another block, `count` blocks would have least elements before it."""
        size = self.shape[-1]
        if size <= FEW or not count or count * ALL > size:
            return self._in_rows(descending)[..., :count]
        if size <= KEPT or count * SHARE > size:
            first = self._selected(count - 1, descending, count)
            return first._at(self._at(first)._in_rows(descending))
        keys, bits = self._ordered(descending)
        length = 1 << round(math.log2(math.sqrt(size / count)))
        blocks = -(-size // length)
        most = (1 << bits) - 1
        pairs = [(0, 0)] * (keys.ndim - 1) + [(0, blocks * length - size)]
        least = keys.pad(pairs, most).reshape((*keys.shape[:-1], blocks, length)).min(-1)
        first = least._first(count, False)
        first = first._at(first._in_rows(False))  # ascending, so that equal keys stay in order
        first = first.unsqueeze(-1)
        places = first * length + first._counted(length, first.ndim - 1)
        places = places.reshape((*places.shape[:-2], count * length))
        near, _ = self._at(places.minimum(size - 1))._ordered(descending)
        near = (places < size).where(near, most)  # places beyond the end sort behind all others
        return places._at(near._first(count, False))

    # ---- short rows ----------------------------------------------------------------------------

    def _by_pairs(self, descending: bool) -> Self:
        """Return argsort along the last axis: an element's place is the number of elements before
        it."""
        size = self.shape[-1]
        one, two = self.unsqueeze(-1), self.unsqueeze(-2)  # [..., element, the other]
        less = one < two if descending else two < one
        same = one._compare("eq", two)
        if self.dtype.is_float:
            nan, other = one.isnan(), two.isnan()
            less = less | (nan & ~other if not descending else other & ~nan)
            same = same | (nan & other)
        here = one._counted(size, one.ndim - 2)
        earlier = one._counted(size, one.ndim - 1) < here
        rank = (less | (same & earlier))._number(one.ndim - 1).reshape((-1, size)).cast(int64)
        places = rank._counted(size, 1).expand(rank.shape)
        to = (rank + rank._counted(rank.shape[0], 0) * size).reshape((rank.numel(),))
        return places._moved_to(to).reshape(self.shape)

    # ---- long rows -----------------------------------------------------------------------------

    def _by_digits(self, descending: bool) -> Self:
        """Return argsort along the last axis, by digits."""
        shape, size = self.shape, self.shape[-1]
        keys, bits = self._ordered(descending)
        length = -(-size // ROUND) * ROUND
        most = (1 << bits) - 1
        keys = keys.reshape((-1, size)).pad([(0, 0), (0, length - size)], most)
        rows = keys.shape[0]
        counter = int32 if rows * length < 1 << 31 else int64
        places = self._new(graph.reshape(graph.cast(graph.iota(length), int32), (1, length)))
        order = places.expand((rows, length))
        for low in range(0, bits, BITS):
            keys = keys.contiguous()
            to = keys._targets(counter).contiguous()
            order = order._moved_to(to)
            if low + BITS < bits:
                keys = (keys >> BITS)._moved_to(to)
        return order[:, :size].cast(int64).reshape(shape)

    def _ordered(self, descending: bool) -> tuple[Self, int]:
        """Return unsigned integers of the same order, and the number of their significant bits."""
        if self.dtype.is_float:
            wide = self._real()
            kind, bits = (uint64, 64) if wide.dtype is float64 else (uint32, 32)
            found = wide._compare("eq", 0).where(0.0, wide).bitcast(kind)  # -0 is 0
            negative = (found >> bits - 1)._compare("ne", 0)
            most, sign = (1 << bits) - 1, self._new(graph.full(1 << bits - 1, kind, ()))
            keys = wide.isnan().where(most, found ^ negative.where(most, sign))
        else:
            bits = 1 if self.dtype is bool_ else self.dtype.bits
            kind = uint64 if bits == 64 else uint32
            keys = self.cast(kind)
            if self.dtype.kind == "i":
                keys = (keys ^ 1 << bits - 1) & (1 << bits) - 1
        return (keys ^ (1 << bits) - 1 if descending else keys), bits

    def _targets(self, counter: DType) -> Self:
        """Return the place of each key in an array of all rows, by its lowest digit."""
        rows, length = self.shape
        blocks, digits = length // BLOCK, 1 << BITS
        digit = (self & digits - 1).cast(int32).reshape((rows, blocks, BLOCK))
        known = digit.unsqueeze(1)._compare("eq", digit._counted(digits, 0).reshape((digits, 1, 1)))
        counts = known._number(3)  # [row, digit, block]
        ends = counts.reshape((rows, digits * blocks))._running("sum", 1, 0)
        starts = (ends.reshape(counts.shape) - counts).contiguous()
        here, other = digit.unsqueeze(-1), digit.unsqueeze(-2)
        earlier = here._counted(BLOCK, 3) < here._counted(BLOCK, 2)
        rank = (here._compare("eq", other) & earlier)._number(3)
        row, block = digit._counted(rows, 0), digit._counted(blocks, 1)
        at = [row.expand(digit.shape).node, digit.node, block.expand(digit.shape).node]
        first = self._new(graph.gather(starts.node, (0, 1, 2), at, checked=True))
        return (first.cast(counter) + rank + row.cast(counter) * length).reshape((rows * length,))

    def _number(self, axis: int) -> Self:
        """Return the number of true elements along an axis, as int32."""
        return self._reduce("sum", graph.cast(self.node, int32), (axis,), False)

    def _moved_to(self, places: Self) -> Self:
        """Move each element to its place in the flat array; places are distinct."""
        size = self.numel()
        start = graph.full(0, self.dtype, (size,))
        choice = Scatter(Region(((0, size),), (1,), (), (size,)), (0,), 0, "set", True)
        sources = (start, graph.reshape(self.node, (size,)), places.node)
        moved = Node("scatter", self.dtype, (size,), sources, choice)
        return self._new(graph.reshape(moved, self.shape))
