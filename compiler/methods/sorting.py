"""Tensor: orders. Short rows by comparing each element with each other one, long ones by digits.

By digits (H. Seward, 1954): elements become unsigned integers of the same order, which are sorted
by their lowest four bits, then by the next ones, and so on; each pass keeps the order of equals.
A pass counts the digits of each block of 64 elements; running totals of the counts say where a
block's elements with a digit begin, and comparisons within the block which of them is which. So an
element costs some hundred operations a pass, whatever the length of the row.
"""

from __future__ import annotations

from typing import Self

from compiler.dtype import DType, bool_, float32, int32, int64, uint32, uint64
from compiler.graph import node as graph
from compiler.graph.node import Node
from compiler.graph.region import Region, Scatter
from compiler.methods.core import integer_of
from compiler.methods.scans import Scans
from hcq.errors import BadArgument

SHORT = 1024  # elements of a row up to which each is compared with each
START = 1 << 25  # comparisons that take as long as to begin with digits
EACH = 28  # comparisons that take as long as an element's digits, for each bit
BITS = 4  # of a digit
BLOCK = 64  # elements whose digits are counted together
ROUND = 256  # rows are made a multiple of it, so that running totals have whole blocks


class Sorting(Scans):
    """Orders are stable; NaN counts as largest."""

    __slots__ = ()

    def argsort(self, axis: int = -1, descending: bool = False) -> Self:
        """The places of the elements in order, as int64; equal ones stay in theirs. NaN counts as
        largest."""
        if not self.ndim:
            return self.reshape(1).argsort(axis, descending).reshape(())
        place = self._axis("argsort", axis)
        last = self.transpose(place, -1)
        if not self.numel():
            return self.cast(int64)
        bits = 32 if self.dtype.is_float else self.dtype.bits
        saved = self.numel() * (last.shape[-1] - EACH * bits)
        long = last.shape[-1] > SHORT and saved > START
        order = last._by_digits(descending) if long else last._by_pairs(descending)
        return order.transpose(place, -1)

    def sort(self, axis: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """The elements in order, and where they were (see argsort)."""
        if not self.ndim:
            found, order = self.reshape(1).sort(axis, descending)
            return found.reshape(()), order.reshape(())
        order = self.argsort(axis, descending)
        return self.gather(axis, order), order

    def topk(self, count: int, axis: int = -1, largest: bool = True) -> tuple[Self, Self]:
        """The first of `sort`, the largest (or smallest) first."""
        place = self._axis("topk", axis)
        if not 0 <= integer_of("topk", "count", count) <= self.shape[place]:
            raise BadArgument(f"topk: {count} along axis {axis} of {self._shown}")
        order = self.argsort(place, largest)[(*[slice(None)] * place, slice(count))]
        return self.gather(place, order), order

    # ---- short rows ----------------------------------------------------------------------------

    def _by_pairs(self, descending: bool) -> Self:
        """argsort along the last axis: an element's place is the number of those before it."""
        size = self.shape[-1]
        one, two = self.unsqueeze(-1), self.unsqueeze(-2)  # [..., which, the other]
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
        """argsort along the last axis."""
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
        """Unsigned integers of the same order, and how many bits of them count."""
        if self.dtype.is_float:
            wide = self.cast(float32)
            found = wide._compare("eq", 0).where(0.0, wide).bitcast(uint32)  # -0 is 0
            negative = (found >> 31)._compare("ne", 0)
            keys = found ^ negative.where(0xFFFFFFFF, 0x80000000).cast(uint32)
            keys, bits = wide.isnan().where(0xFFFFFFFF, keys).cast(uint32), 32
        else:
            bits = 1 if self.dtype is bool_ else self.dtype.bits
            kind = uint64 if bits == 64 else uint32
            keys = self.cast(kind)
            if self.dtype.kind == "i":
                keys = (keys ^ 1 << bits - 1) & (1 << bits) - 1
        return (keys ^ (1 << bits) - 1 if descending else keys), bits

    def _targets(self, counter: DType) -> Self:
        """Where each key goes in an array of all rows, by its lowest digit."""
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
        """How many are true along an axis, as int32."""
        return self._reduce("sum", graph.cast(self.node, int32), (axis,), False)

    def _moved_to(self, places: Self) -> Self:
        """Each element at its place in the flat array; no two have one."""
        size = self.numel()
        start = graph.full(0, self.dtype, (size,))
        choice = Scatter(Region(((0, size),), (1,), (), (size,)), (0,), 0, "set", True)
        sources = (start, graph.reshape(self.node, (size,)), places.node)
        moved = Node("scatter", self.dtype, (size,), sources, choice)
        return self._new(graph.reshape(moved, self.shape))
