"""Matrix instructions as their documents describe them: what each lane holds, lane by lane.

Written down apart from compiler.kernel.matrix_units, so that a misreading there shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.kernel.matrix_units import UNITS

Array = NDArray[Any]
Place = Callable[[int, int], tuple[int, int]]


def whole(lanes: Array, rows: int, depth: int, place: Place) -> Array:
    """A matrix from what each lane holds; place: (lane, element) to (row, step). Where several
    lanes hold an element, they hold the same."""
    places = [place(*held) for held in np.ndindex(lanes.shape)]
    at = tuple(np.array(places).T)
    matrix = np.full((rows, depth), np.nan)
    matrix[at] = lanes.reshape(-1)
    assert (matrix[at] == lanes.reshape(-1)).all(), "several lanes hold an element, and differ"
    assert len(set(places)) == matrix.size, "no lane holds an element"
    return matrix


def wmma_gfx11(a: Array, b: Array, c: Array) -> Array:
    """RDNA3 ISA: lanes 0-15, repeated in 16-31, hold a row of A (a column of B); register r of C
    holds row 2r in lanes 0-15 and row 2r + 1 in lanes 16-31."""
    left = whole(a, 16, 16, lambda lane, e: (lane % 16, e))
    right = whole(b, 16, 16, lambda lane, e: (lane % 16, e))
    product = left @ right.T
    return np.array([[c[lane, r] + product[2 * r + lane // 16, lane % 16] for r in range(8)]
                     for lane in range(32)])  # fmt: skip


def wmma_gfx12(a: Array, b: Array, c: Array) -> Array:
    """RDNA4 ISA: lanes 0-15 hold steps 0-7 of a row, lanes 16-31 steps 8-15; register r of C holds
    row r in lanes 0-15 and row r + 8 in lanes 16-31."""
    left = whole(a, 16, 16, lambda lane, e: (lane % 16, 8 * (lane // 16) + e))
    right = whole(b, 16, 16, lambda lane, e: (lane % 16, 8 * (lane // 16) + e))
    product = left @ right.T
    return np.array([[c[lane, r] + product[r + 8 * (lane // 16), lane % 16] for r in range(8)]
                     for lane in range(32)])  # fmt: skip


def mfma(a: Array, b: Array, c: Array) -> Array:
    """CDNA3 ISA, 16x16xK, one block: lane l holds row l % 16 and the (l / 16)-th part of its steps;
    register r of C holds row 4 * (l / 16) + r, column l % 16."""
    held = a.shape[1]
    left = whole(a, 16, 4 * held, lambda lane, e: (lane % 16, held * (lane // 16) + e))
    right = whole(b, 16, 4 * held, lambda lane, e: (lane % 16, held * (lane // 16) + e))
    product = left @ right.T
    return np.array([[c[lane, r] + product[4 * (lane // 16) + r, lane % 16] for r in range(4)]
                     for lane in range(64)])  # fmt: skip


def mma_m16n8(a: Array, b: Array, c: Array) -> Array:
    """PTX ISA, mma.m16n8k16, m16n8k32 and m16n8k8: groupID = lane / 4, t = lane % 4; registers of w
    elements (2 of 16 bits, 4 of 8 bits, 1 of tf32)."""
    width = a.shape[1] // 4
    depth = 8 * width

    def in_a(lane: int, i: int) -> tuple[int, int]:
        register, part = i // width, i % width
        row = lane // 4 + (8 if register in (1, 3) else 0)
        return row, lane % 4 * width + part + (depth // 2 if register >= 2 else 0)

    def in_b(lane: int, i: int) -> tuple[int, int]:
        return lane // 4, lane % 4 * width + i % width + (depth // 2 if i >= width else 0)

    left, right = whole(a, 16, depth, in_a), whole(b, 8, depth, in_b)
    product = left @ right.T
    return np.array([[c[lane, i] + product[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2]
                      for i in range(4)] for lane in range(32)])  # fmt: skip


def hardware(name: str, left: Array, right: Array, total: Array) -> Array:
    """Wave by wave. AMD's instructions get our right factor as A, see
    compiler.codegen.instructions.matrix."""
    family, wave = name.partition(".")[0], UNITS[name].wave
    parts = []
    for first in range(0, left.shape[0], wave):
        lanes = slice(first, first + wave)
        if family.startswith("sm_"):
            parts.append(mma_m16n8(left[lanes], right[lanes], total[lanes]))
        else:
            instruction = {"gfx11": wmma_gfx11, "gfx12": wmma_gfx12}.get(family, mfma)
            parts.append(instruction(right[lanes], left[lanes], total[lanes]))
    return np.concatenate(parts).astype(total.dtype)
