"""Layout of packed factors of matrix products, for bulk copies and for `wgmma`.

A bulk copy keeps the order of bytes. The unit reads core matrices, 8 consecutive rows of 16 bytes
(PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", no swizzling). A preceding
kernel therefore lays the factor out in memory in exactly that order:

    block    64 rows of 128 bytes, a slice of the depth, 8 KiB:
             [8 times 8 rows][8 chunks of the slice][8 rows][16 bytes along the depth]
    turned   [8 chunks across][8 times 8 steps][8 steps][16 bytes across]
             for 16-bit types whose memory runs across: chunks are copied unchanged
    packed   [batch][slices][blocks across]

The blocks of a slice are consecutive, so the part of a slice that a tile of any width needs is one
piece of memory. A tile may reach beyond the last block. There it reads another slice, or the tail
behind the array; these values count only for rows and columns that are not stored. Behind the
factor's own rows and steps there are zeros. Eight rows of a core matrix use all banks. Nothing is
swizzled, so indices alone describe the layout: any other kernel can read a packed array.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
    unflatten,
)
from ugpu.compiler.expression.value import Load, Value
from ugpu.compiler.kernel.matrix_units import ROW

BLOCK = 64  # rows of a block
WIDEST = 256  # rows of the widest tile, that of one instruction
LINE = 8  # rows of a core matrix, and chunks of a row of 128 bytes
CHUNK = 16  # bytes


@dataclass(frozen=True)
class Packed:
    """The layout of one factor. across: number of rows or columns; depth: number of steps."""

    dtype: DType
    across: int
    depth: int
    turned: bool

    @property
    def width(self) -> int:
        """Number of elements of a chunk."""
        return CHUNK // self.dtype.itemsize

    @property
    def length(self) -> int:
        """Number of steps of a slice."""
        return ROW // self.dtype.itemsize

    @property
    def block(self) -> int:
        """Number of elements of a block."""
        return BLOCK * self.length

    @property
    def blocks(self) -> int:
        return -(-self.across // BLOCK)

    @property
    def slices(self) -> int:
        return -(-self.depth // self.length)

    @property
    def size(self) -> int:
        """Number of elements of the factor, for one batch entry."""
        return self.slices * self.blocks * self.block

    def count(self, batch: int) -> int:
        """Return the elements of the array, including what tiles may read behind the last block."""
        return batch * self.size + (WIDEST // BLOCK - 1) * self.block

    def inside(self, across: Index, step: Index) -> Index:
        """Return an element's offset from the start of its slice; equal in a tile's stage."""
        group = across // LINE * (LINE * self.length)
        if self.turned:
            return group + step // LINE * (LINE * LINE) + step % LINE * LINE + across % LINE
        chunk = step // self.width * (LINE * self.width)
        return group + chunk + across % LINE * self.width + step % self.width

    def slice_start(self, batch: Index, number: Index, tile_start: Index) -> Index:
        """Return where a tile's contiguous part of a slice starts. tile_start: in whole blocks."""
        first = batch * self.size + number * (self.blocks * self.block)
        return first + tile_start * self.length

    def place(self, batch: Index, across: Index, step: Index) -> Index:
        """Return the position of an element."""
        slice_number, inner = step // self.length, step % self.length
        first = batch * self.size + slice_number * (self.blocks * self.block)
        return first + self.inside(across, inner)

    def element(self, position: Index, batch: tuple[int, ...]) -> tuple[list[Index], Index, Index]:
        """Return the batch's places, row and step of a position. batch: sizes of the batch."""
        shape = (*batch, self.slices, self.blocks, LINE, LINE, LINE, self.width)
        *places, number, block, group, chunk, line, lane = unflatten(position, shape)
        across, step = block * BLOCK + group * LINE, number * self.length
        if self.turned:
            return places, across + lane, step + chunk * LINE + line
        return places, across + line, step + chunk * self.width + lane

    def conditions(self, across: Index, step: Index) -> Validity:
        """Return when an element belongs to the factor. Whole chunks are tested once."""
        return both(
            _below(across, self.across, LINE if self.turned else 1),
            _below(step, self.depth, 1 if self.turned else self.width),
        )

    def padding(self, count: int) -> NDArray[np.bool_]:
        """Return which of an array's `count` elements are outside the factors: those are zeros."""
        block, group, line = (np.arange(size) for size in (self.blocks, LINE, LINE))
        rows = (block[:, None, None] * BLOCK + group[:, None] * LINE + line).ravel() >= self.across
        steps = np.arange(self.slices * self.length) >= self.depth
        shape = (self.slices, self.blocks, LINE, LINE, LINE, self.width)
        rows = rows.reshape(self.blocks, LINE, LINE)
        if self.turned:
            across = rows.reshape(self.blocks, LINE, 1, 1, self.width)
            deep = steps.reshape(self.slices, 1, 1, LINE, LINE, 1)
        else:
            across = rows.reshape(self.blocks, LINE, 1, LINE, 1)
            deep = steps.reshape(self.slices, 1, 1, LINE, 1, self.width)
        one = np.broadcast_to(across | deep, shape).ravel()
        found = np.ones(count, np.bool_)  # includes the tail behind the factors
        whole = (count - self.count(0)) // self.size
        found[: whole * self.size] = np.tile(one, whole)
        return found


def _below(index: Index, size: int, chunk: int) -> Validity:
    if size % chunk:
        chunk = 1
    return at_least_zero(constant(size // chunk - 1) - index // chunk)


def layouts(dtype: DType, across: int, depth: int, turns: bool) -> Iterator[Packed]:
    """Yield the layouts in which a unit can read a factor. turns: whether it reads turned ones."""
    yield Packed(dtype, across, depth, turned=False)
    if turns:
        yield Packed(dtype, across, depth, turned=True)


def recognise(
    factor: Value, across: Range, depth: Range, turns: bool
) -> tuple[Packed, Load, Index] | None:
    """Return the layout of a factor that is read from a packed array, the load, and where the array
    of the batch begins; None for any other factor. The factor may be a result of
    `gpu_matrix.narrow`."""
    if factor.op == "bitcast" and factor.sources[0].op == "and":  # rounded again, without effect
        inner = factor.sources[0].sources[0]
        if inner.op == "bitcast":
            factor = inner.sources[0]
    if factor.op != "load" or factor.arg.conditions or factor.arg.memory.space != "global":
        return None
    access: Load = factor.arg
    for layout in layouts(access.memory.dtype, across.size, depth.size, turns):
        rest = access.index - layout.place(constant(0), across.index(), depth.index())
        known = not rest.ranges() & {across, depth} and rest.multiple() % layout.size == 0
        if known and rest.low >= 0 and rest.high + layout.count(1) <= access.memory.count:
            return layout, access, rest
    return None
