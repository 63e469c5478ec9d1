"""Attention on matrix units: the unit that suits, the tiles that a group holds, and its factors."""

from __future__ import annotations

from ugpu.compiler.dtype import DType, float32
from ugpu.compiler.expression.value import Value
from ugpu.compiler.kernel.choices import Attention
from ugpu.compiler.kernel.matrix_units import MatrixUnit, find_unit
from ugpu.compiler.pattern.online import Online
from ugpu.hcq.state.target import TargetSpec

VECTOR = 8  # 16-bit elements that a thread moves at once
LONGEST = 128  # columns of a group: totals of a lane
SHARE = 40 << 10  # bytes of local memory that a group should not exceed


def suits(parts: Online, target: TargetSpec) -> MatrixUnit | None:
    """Return the unit for both products if all factors and the weights are of one 16-bit type."""
    kinds = {_narrow(side) for side in (parts.left, parts.right, parts.factor)}
    kinds.add(parts.rounded)
    kind = kinds.pop()
    if kinds or kind is None or kind.itemsize != 2:
        return None
    unit = find_unit(target.matrix, kind, float32)
    return unit if unit is not None and unit.wave == target.wave_size else None


def _narrow(side: Value) -> DType | None:
    return side.sources[0].dtype if side.op == "cast" else None


def local_bytes(parts: Online, unit: MatrixUnit, wanted: Attention) -> int:
    """Return the bytes of local memory that a kernel takes."""
    deep, wide = deep_size(parts, unit) + VECTOR, wide_size(parts, unit)
    tile = wanted.keys * deep + wide * (wanted.keys + VECTOR)
    return wanted.buffers * tile * unit.element.itemsize


def fits(parts: Online, unit: MatrixUnit, wanted: Attention, target: TargetSpec) -> bool:
    """Return whether a group holds its tiles and its threads share the copying evenly."""
    return (
        wanted.keys % unit.depth == 0
        and wanted.keys % unit.columns == 0
        and wanted.block <= target.max_threads_per_group
        and local_bytes(parts, unit, wanted) <= target.local_memory
    )


def vector_of(unit: MatrixUnit) -> int:
    """Return the elements along the depth that a lane takes at once."""
    return max(unit.held, VECTOR)


def deep_size(parts: Online, unit: MatrixUnit) -> int:
    """Return the depth, rounded up to whole vectors of all parts."""
    span = vector_of(unit) * unit.depth_parts
    return -(-parts.depth.size // span) * span


def wide_size(parts: Online, unit: MatrixUnit) -> int:
    """Return the columns of a group, in whole fragments."""
    blocks = -(-parts.columns.size // LONGEST)
    return -(-parts.columns.size // (blocks * unit.columns)) * unit.columns
