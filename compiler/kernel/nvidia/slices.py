"""Slices of a matrix product's factor in a ring of swizzled local memory (NVIDIA, sm_80 on).

A slice is as deep as a row of 128 bytes is long. It has one of two layouts, both in rows of 128
bytes whose 16-byte chunks are exchanged (`Memory.swizzled`):

    along     row r holds the steps of the slice for row (or column) r of the tile
    turned    row (a, k) holds 128 bytes of the tile's rows (or columns) for step k; the blocks a
              are consecutive. Only for 16-bit types, whose units and `ldmatrix` transpose them.

Both are 128-byte swizzles of `wgmma`, K-major and MN-major. In both, eight rows that `ldmatrix`
reads at once use all banks.

A factor that is a plain array, read in whole chunks, is fetched: `cp.async` moves 16 bytes at a
time from memory to local memory without registers, with zeros beyond the end of the array. A factor
that is computed during the copy (or not aligned) goes through registers instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ugpu.compiler.expression.algebra import Index, Range, Validity, constant, substitute_all
from ugpu.compiler.expression.value import Load, Memory, Value, value, walk
from ugpu.compiler.kernel.gpu.cut import Side
from ugpu.compiler.kernel.ir import Fetch, thread_range
from ugpu.compiler.kernel.matrix_units import MATRICES, ROW
from ugpu.compiler.kernel.shared.spread import pack

CHUNK = 16  # bytes that move at once
CHUNKS = ROW // CHUNK
TURNED = 4  # steps that a thread joins if units do not transpose and memory runs across
WORD = 4  # bytes of the elements that it reads at once for that


@dataclass(frozen=True)
class Slices:
    """One factor's slices: [stages][size rows of ROW bytes]."""

    memory: Memory
    side: Side
    turned: bool
    threads: int

    @property
    def joins(self) -> bool:
        """Whether memory runs in another direction than the rows of a slice."""
        return (self.side.deep or not self.side.wide) == self.turned

    @property
    def length(self) -> int:
        """Number of elements of a row, and of steps of a slice."""
        return ROW // self.memory.dtype.itemsize

    @property
    def width(self) -> int:
        """Number of elements of a chunk."""
        return CHUNK // self.memory.dtype.itemsize

    def stage(self, number: Index) -> Index:
        """Return where a stage begins."""
        return number * (self.side.size * self.length)

    def place(self, across: Index, step: Index) -> Index:
        """Return the place of an element of a slice in its stage."""
        if not self.turned:
            return across * self.length + step
        block = across // self.length
        return (block * self.length + step) * self.length + across % self.length

    def matrices(self, base: Index, across: Index, step: Index) -> Value:
        """Return four 8 x 16-byte matrices: each lane gives the address of a row of one of them."""
        at = base + self.place(across, step)
        lanes = MATRICES // self.memory.dtype.itemsize
        arg = (Load(self.memory, at), self.turned)
        return value("matrices", self.memory.dtype, (), arg, lanes)

    # ---- copying -------------------------------------------------------------------------------

    def fetches(self, slice_start: Index, base: Index) -> list[Fetch]:
        """Return the fetches of the thread's part of a `direct` factor's slice to local memory."""
        found = []
        for across, step, lanes in self._chunks(slice_start):
            source = self._source(across, step, lanes)
            assert source is not None
            at = base + self.place(across, step)
            found.append(Fetch(self.memory, at, source, self.width))
        return found

    @cached_property
    def direct(self) -> bool:
        """Return whether every chunk is 16 aligned bytes of an array, wholly inside or wholly
        outside it."""
        factor = self.side.factor
        start = Range("slice", factor.deep.size // self.length).index() * self.length
        if self.joins or factor.root.op != "load":
            return False
        return all(self._source(*chunk) is not None for chunk in self._chunks(start))

    @property
    def is_rough(self) -> bool:
        """Return whether the factor goes through registers by loads that check the array's
        edges."""
        if self.direct:
            return False
        loads = [node for _, moved in self.pieces(constant(0)) for node in walk(moved)]
        return any(node.op == "load" and node.arg.conditions for node in loads)

    def _chunks(self, slice_start: Index) -> list[tuple[Index, Index, Index]]:
        """Return (row or column of the tile, step of the slice, the slice's start) of the thread's
        chunks; neighbouring threads take neighbouring chunks of a row."""
        thread = thread_range(self.threads).index()
        found = []
        for piece in range(self.side.size * CHUNKS // self.threads):
            number = thread + piece * self.threads
            row, first = number // CHUNKS, number % CHUNKS * self.width
            if self.turned:
                block = row // self.length * self.length
                found.append((block + first, row % self.length, slice_start))
            else:
                found.append((row, first, slice_start))
        return found

    def _source(self, across: Index, step: Index, slice_start: Index) -> Load | None:
        """Return the load of a chunk that is contiguous in memory; None if it is not."""
        factor, start = self.side.factor, self.side.start
        access: Load = factor.root.arg
        if access.memory.space != "global":
            return None
        along = factor.wide if self.turned else factor.deep
        place = {factor.wide: start + across, factor.deep: slice_start + step}
        index = access.index.substitute(place)
        if index.multiple() % self.width:
            return None
        second = {**place, along: place[along] + 1}
        if access.index.substitute(second) != index + 1:
            return None
        conditions = substitute_all(access.conditions, place)
        following = [condition.substitute(second) for condition in access.conditions]
        if not _alike(access.conditions, place, following, self.width):
            return None
        return Load(access.memory, index, conditions)

    def pieces(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Return the part of a slice that the thread loads through its registers: places, and
        vectors."""
        if self.joins:
            return self._joined(slice_start)
        factor, found = self.side.factor, []
        for across, step, start in self._chunks(slice_start):
            row, at = self.side.start + across, start + step
            if self.turned:
                values = factor.across(at, row, self.width)
            else:
                values = factor.along(row, at, self.width)
            found.append((self.place(across, step), pack(values)))
        return found

    def _joined(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Transpose, in each thread's registers, blocks of TURNED steps by a few elements;
        neighbouring threads take neighbouring elements."""
        thread, side = thread_range(self.threads).index(), self.side
        width = max(1, WORD // self.memory.dtype.itemsize)
        lines = side.size // width
        found = []
        for piece in range(lines * self.length // TURNED // self.threads):
            number = thread + piece * self.threads
            step, across = number // lines * TURNED, number % lines * width
            place = slice_start + step, side.start + across
            for i, vector in enumerate(side.factor.turned(*place, TURNED, width)):
                found.append((self.place(across + i, step), vector))
        return found


def _alike(
    conditions: Validity, place: dict[Range, Index], following: list[Index], width: int
) -> bool:
    """Return whether each condition holds for all elements of a chunk or for none. following: the
    conditions one element further on."""
    for condition, after in zip(conditions, following, strict=True):
        first = condition.substitute(place)
        change = after - first
        if not change.is_constant or change.constant not in (-1, 0, 1):
            return False
        # n - 1 - x >= 0 with x a multiple of the width: alike if n is also one; likewise x - n >= 0
        edge = first + 1 if change.constant < 0 else first
        if change.constant and edge.multiple() % width:
            return False
    return True
