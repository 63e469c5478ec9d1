"""Running totals along an axis: the base of `cumsum`, sorting and causal masks."""

from __future__ import annotations

from typing import Self

from ugpu.compiler.dtype import DType, float32, is_narrow
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods.operations import Operations

BLOCK = 64  # elements of a block: how many are read for each running total
PIECE = 16384  # elements of a piece of a long row, on a host


class Running(Operations):
    """Has no public methods."""

    __slots__ = ()

    def _running(
        self, operation: str, place: int, start: int | float, dtype: DType | None = None
    ) -> Self:
        """Return running totals. A host computes them element by element. Other devices use blocks:
        each element reads its own block, and the totals of the blocks before are added in the same
        way. 16-bit floats are joined in float32 and rounded once. dtype: of the results, by default
        of the elements."""
        dtype, size = dtype or self.dtype, self.shape[place] if self.ndim else 0
        if not self.numel() or size == 1:
            return self.cast(dtype)._same()
        wide = self.cast(float32) if is_narrow(self.dtype) else self
        if self._serial:
            return self._new(wide._in_turn(operation, place, start, dtype))
        order = [axis for axis in range(self.ndim) if axis != place]
        last = wide.permute(*order, place)
        found = last._along_last(operation, start).cast(dtype)
        back = [*range(place), self.ndim - 1, *range(place, self.ndim - 1)]
        return found.permute(*back)

    @property
    def _serial(self) -> bool:
        """Return whether the device's kernels can go along an axis element by element."""
        return self.device.target.abi == "host"

    def _in_turn(self, operation: str, place: int, start: int | float, dtype: DType) -> Node:
        """Compute totals element by element. Long rows that would leave processors without work are
        cut in pieces; the totals of the pieces before are added to each."""
        size, units = self.shape[place], self.device.target.compute_units
        if size == 1:  # the first of two pieces
            return graph.cast(self.node, dtype)
        whole = operation == "prod" and self.dtype.is_float  # zero times infinity is not zero
        if whole or self.numel() // size >= units or size < 2 * PIECE:
            return graph.scan(operation, self.node, place, dtype)
        pieces = size // PIECE
        length = -(-size // pieces)
        pairs = [(0, 0)] * self.ndim
        pairs[place] = (0, pieces * length - size)
        before, behind = self.shape[:place], self.shape[place + 1 :]
        cut = self.pad(pairs, start).reshape((*before, pieces, length, *behind))
        totals = cut[(*[slice(None)] * place, slice(pieces - 1))]
        kept = graph.reduce(operation, totals.node, (place + 1,))
        kept = graph.reshape(kept, (*before, pieces - 1, *behind))
        totals = self._new(self._new(kept)._in_turn(operation, place, start, self.dtype))
        totals = totals.reshape((*before, pieces - 1, 1, *behind))
        pairs = [(0, 0)] * (self.ndim + 1)
        pairs[place] = (1, 0)
        begin = totals.pad(pairs, start)
        found = self._new(graph.scan(operation, cut.node, place + 1, dtype, begin.node))
        joined = found.reshape((*before, pieces * length, *behind))
        return joined[(*[slice(None)] * place, slice(size))].node

    def _along_last(self, operation: str, start: int | float) -> Self:
        size = self.shape[-1]
        if size <= 2 * BLOCK:
            # [..., element, the elements it reads]
            seen = self.unsqueeze(-2).expand((*self.shape[:-1], size, size))
            seen = seen._triangle_or(start)
            node = seen._reduce(operation, seen.node, (seen.ndim - 1,), False).node
            return self._new(graph.cast(node, self.dtype))
        blocks = -(-size // BLOCK)
        pairs = [(0, 0)] * (self.ndim - 1) + [(0, blocks * BLOCK - size)]
        cut = self.pad(pairs, start).reshape((*self.shape[:-1], blocks, BLOCK))
        inner = cut._along_last(operation, start).contiguous()
        totals = inner[..., BLOCK - 1]._along_last(operation, start)
        before = totals[..., :-1].pad([(0, 0)] * (self.ndim - 1) + [(1, 0)], start).unsqueeze(-1)
        join = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[operation]
        joined: Self = getattr(inner, join)(before)
        return joined.reshape((*self.shape[:-1], blocks * BLOCK))[..., :size]

    def _triangle_or(self, start: int | float) -> Self:
        """Return the elements on or below the diagonal of the last two axes, else `start`."""
        down = self._counted(self.shape[-2], self.ndim - 2)
        across = self._counted(self.shape[-1], self.ndim - 1)
        return (across <= down).where(self, self._filled(start))
