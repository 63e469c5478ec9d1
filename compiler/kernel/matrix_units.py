"""Matrix instructions as data: shapes, types, and the elements that each lane holds.

One instruction of a wave adds the product of a left and a right fragment to a total. In the
kernel IR the left fragment gives the rows of the result and the right one its columns:

    left   [rows][depth]      a lane holds `row_blocks` rows, `held` steps of each
    right  [columns][depth]   a lane holds one column, `held` steps
    total  [rows][columns]    a lane holds those rows, `run` columns of each

A lane is a position (its row and column) and a part (its steps of the depth, and its columns of the
total); the IR's operands list a lane's elements row after row. A sum of products does not depend on
which steps a part holds, as long as both factors agree, so the kernel gives each part steps that
are neighbours in memory.

On AMD the instruction's first operand is our right one. Each lane's part of the total is then
columns of one row, which are neighbours in memory.

Sources: RDNA3 ISA, "Wave Matrix Multiply Accumulate" (gfx11); RDNA4 ISA, the same section (gfx12);
CDNA3 and CDNA4 ISA, "Matrix Arithmetic Instructions" (gfx942, gfx950); PTX ISA, "Matrix Fragments
for mma.m16n8k16", "... m16n8k32", "... m16n8k8" (sm_80, tf32; float8: sm_89), and "Asynchronous
Warpgroup Level Matrix Multiply-Accumulate Instructions" (sm_90a).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ugpu.compiler.dtype import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float16,
    float32,
    int8,
    int32,
)
from ugpu.compiler.expression.algebra import Index


@dataclass(frozen=True)
class MatrixUnit:
    """One matrix instruction.

    positions: their number, so that there are lanes / positions parts; parts_first: whether the
    part is the lane's remainder. depth_parts: how many parts share the steps of a row
    (1: every part holds all of them). interleaved: whether a part's columns are `columns / run`
    apart rather than side by side. chunks: an operand of the left fragment lists, for each chunk of
    a row's steps, all row blocks.
    """

    name: str
    element: DType
    total: DType
    rows: int
    columns: int
    depth: int
    wave: int
    positions: int
    depth_parts: int
    parts_first: bool = False
    interleaved: bool = False
    chunks: int = 1

    @property
    def row_blocks(self) -> int:
        """Number of rows that a lane holds; the second is `positions` below the first."""
        return self.rows // self.positions

    @property
    def parts(self) -> int:
        return self.wave // self.positions

    @property
    def held(self) -> int:
        """Number of steps that a lane holds of a row, and of a column."""
        return self.depth // self.depth_parts

    @property
    def run(self) -> int:
        """Number of columns that a lane holds of a row of the total."""
        return self.columns // self.parts

    @property
    def left_lanes(self) -> int:
        return self.row_blocks * self.held

    @property
    def total_lanes(self) -> int:
        return self.row_blocks * self.run

    def position(self, lane: Index) -> Index:
        """Return the row (of each block) and the column of the operands that a lane holds."""
        return lane // self.parts if self.parts_first else lane % self.positions

    def part(self, lane: Index) -> Index:
        """Return a lane's part of the columns of the total; for operands, see `depth_part`."""
        return lane % self.parts if self.parts_first else lane // self.positions

    def depth_part(self, lane: Index) -> Index:
        """Return a lane's part of the depth: it holds `held` steps from held * depth_part on."""
        return self.part(lane) if self.depth_parts > 1 else lane * 0

    def column_part(self, column: Index) -> tuple[Index, Index]:
        """Return the part that holds a column of the total, and its place in that part's run."""
        if self.interleaved:
            return column % self.parts, column // self.parts
        return column // self.run, column % self.run

    def dealt(self, fragment: int, part: Index, place: Index, joined: int) -> Index:
        """Return the column of a place in a part's run of one of `joined` fragments, of whose
        columns each part has a run of neighbours."""
        first, inside = fragment // joined * joined, fragment % joined
        return part * (self.run * joined) + place + (first * self.columns + inside * self.run)


def _typed(base: MatrixUnit, element: DType, depth: int) -> MatrixUnit:
    """Return the same shape for another element type."""
    name = f"{base.name.partition('.')[0]}.{element.name}"
    total = int32 if element is int8 else float32
    return replace(base, name=name, element=element, total=total, depth=depth)


_GFX11 = MatrixUnit(
    "gfx11.float16", float16, float32, 16, 16, 16,
    wave=32, positions=16, depth_parts=1, interleaved=True,
)  # fmt: skip
_GFX12 = MatrixUnit(
    "gfx12.float16", float16, float32, 16, 16, 16, wave=32, positions=16, depth_parts=2
)
_GFX942 = MatrixUnit(
    "gfx942.float16", float16, float32, 16, 16, 16, wave=64, positions=16, depth_parts=4
)
_GFX950 = replace(_GFX942, name="gfx950.float16", depth=32)
_SM80 = MatrixUnit(
    "sm_80.float16", float16, float32, 16, 8, 16,
    wave=32, positions=8, depth_parts=4, parts_first=True, chunks=2,
)  # fmt: skip
# float32, of which the unit reads the upper 19 bits
_TF32 = replace(_SM80, name="sm_80.tf32", element=float32, depth=8)

_AMPERE = (_SM80, _typed(_SM80, bfloat16, 16), _typed(_SM80, int8, 32), _TF32)
_SM89 = replace(_SM80, name="sm_89.float16")
_ADA = (*_AMPERE, _typed(_SM89, float8_e4m3fn, 32), _typed(_SM89, float8_e5m2, 32))
ROW = 128  # bytes of a row of swizzled local memory, and of a slice of the depth
CORE = 128  # bytes of a core matrix, of 8 rows of 16 bytes (PTX ISA, "Core matrices")
MATRICES = 16  # bytes that a lane receives from four matrices

# From TargetSpec.matrix to the units of that family
FAMILIES: Mapping[str, tuple[MatrixUnit, ...]] = {
    "gfx11": (_GFX11, _typed(_GFX11, bfloat16, 16), _typed(_GFX11, int8, 16)),
    "gfx12": (
        _GFX12, _typed(_GFX12, bfloat16, 16), _typed(_GFX12, int8, 16),
        _typed(_GFX12, float8_e4m3fn, 16), _typed(_GFX12, float8_e5m2, 16),
    ),
    "gfx942": (
        _GFX942, _typed(_GFX942, bfloat16, 16), _typed(_GFX942, int8, 32),
        _typed(_GFX942, float8_e4m3fnuz, 32), _typed(_GFX942, float8_e5m2fnuz, 32),
    ),
    "gfx950": (
        _GFX950, _typed(_GFX950, bfloat16, 32), _typed(_GFX950, int8, 64),
        _typed(_GFX950, float8_e4m3fn, 32), _typed(_GFX950, float8_e5m2, 32),
    ),
    "sm_80": _AMPERE,
    "sm_89": _ADA,
    "sm_90a": _ADA,
}  # fmt: skip
UNITS: Mapping[str, MatrixUnit] = {u.name: u for units in FAMILIES.values() for u in units}


@dataclass(frozen=True)
class GroupUnit:
    """An asynchronous matrix instruction of four waves: 64 rows of the left factor by a multiple of
    8 columns of the right one, both in swizzled local memory, totals in registers. depth: steps of
    one instruction. turns: whether factors may run across in memory. Of 8 columns, lane l of
    wave w holds rows 16 w + l / 4 and 8 below, columns 2 (l % 4) and the next."""

    name: str
    element: DType
    total: DType
    depth: int
    turns: bool

    rows: ClassVar[int] = 64
    columns: ClassVar[int] = 8  # the count is a multiple of this
    wave: ClassVar[int] = 128


_WGMMA = GroupUnit("sm_90a.float16", float16, float32, 16, turns=True)
GROUP_FAMILIES: Mapping[str, tuple[GroupUnit, ...]] = {
    "sm_90a": (
        _WGMMA,
        replace(_WGMMA, name="sm_90a.bfloat16", element=bfloat16),
        replace(_WGMMA, name="sm_90a.tf32", element=float32, depth=8, turns=False),
        replace(_WGMMA, name="sm_90a.int8", element=int8, total=int32, depth=32, turns=False),
        *(
            replace(_WGMMA, name=f"sm_90a.{each.name}", element=each, depth=32, turns=False)
            for each in (float8_e4m3fn, float8_e5m2)
        ),
    ),
}
GROUP_UNITS: Mapping[str, GroupUnit] = {
    unit.name: unit for units in GROUP_FAMILIES.values() for unit in units
}


def find_group_unit(family: str, element: DType, total: DType) -> GroupUnit | None:
    """Return the unit of four waves that sums products of `element` in `total`, or None."""
    for unit in GROUP_FAMILIES.get(family, ()):
        if unit.element is element and unit.total is total:
            return unit
    return None


def find_unit(family: str, element: DType, total: DType) -> MatrixUnit | None:
    """Return the unit of a family that sums products of `element` in `total`, or None."""
    for unit in FAMILIES.get(family, ()):
        if unit.element is element and unit.total is total:
            return unit
    return None
