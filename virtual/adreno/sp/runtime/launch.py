"""Checked parameters of a dispatch for the launcher.

Source: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml (SP_CS_*, HLSQ_CS_NDRANGE_*),
src/freedreno/common/freedreno_devices.py (waves, local memory).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.adreno.shader import SHARED_CONSTANTS, Dispatch
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.shader.threads.worker import aligned

MOST_THREADS = 1024  # of a workgroup
MOST_LOCAL = 32 << 10
MOST_GROUPS = 65535 * 65535


class BadDispatch(Exception):
    """The registers describe a dispatch for which no wave can be launched."""


@dataclass(frozen=True)
class Launch:
    """A checked dispatch. ids: [waves][4][lanes], x, y, z and linear number. execs: [waves][2]
    halves of a mask. words: registers of the file; separate: the word where half registers begin
    that are not halves of full ones, 0 if they are merged."""

    lanes: int
    waves: int
    groups: int
    words: int
    separate: int
    ids: NDArray[np.uint32]
    execs: NDArray[np.uint64]
    constants: NDArray[np.uint32]
    tables: NDArray[np.uint64]

    @classmethod
    def of(cls, dispatch: Dispatch) -> Launch:
        """Check a dispatch. Raises BadDispatch."""
        _check(dispatch)
        x, y, z = dispatch.threads
        threads, lanes = x * y * z, dispatch.thread_size
        waves = -(-threads // lanes)
        number = np.arange(waves * lanes, dtype=np.uint32)
        ids = aligned(16 * waves * lanes).view(np.uint32).reshape(waves, 4, lanes)
        for axis, values in enumerate((number % x, number // x % y, number // (x * y), number)):
            ids[:, axis] = values.reshape(waves, lanes)
        execs = aligned(16 * waves).view(np.uint64).reshape(waves, 2)
        for wave in range(waves):
            mask = (1 << min(lanes, threads - wave * lanes)) - 1
            execs[wave] = mask & (1 << 64) - 1, mask >> 64
        words, separate = _registers(dispatch)
        groups = dispatch.groups[0] * dispatch.groups[1] * dispatch.groups[2]
        return cls(lanes, waves, groups, words, separate, ids, execs, _constants(dispatch),
                   _tables(dispatch))  # fmt: skip


def _check(dispatch: Dispatch) -> None:
    x, y, z = dispatch.threads
    if dispatch.generation not in (6, 7):
        raise BadDispatch(f"expected a GPU of generation 6 or 7, got {dispatch.gpu_id}")
    if dispatch.thread_size not in (64, 128):
        raise BadDispatch(f"expected waves of 64 or 128 threads, got {dispatch.thread_size}")
    if min(x, y, z) < 1 or x * y * z > MOST_THREADS:
        raise BadDispatch(f"expected 1 to {MOST_THREADS} threads in a group, got {x} x {y} x {z}")
    if min(dispatch.groups) < 0 or dispatch.groups[0] * dispatch.groups[1] > MOST_GROUPS:
        raise BadDispatch(f"expected a grid of groups, got {dispatch.groups}")
    if not 0 <= dispatch.local_size <= MOST_LOCAL:
        raise BadDispatch(f"expected at most {MOST_LOCAL} bytes of local memory, got "
                          f"{dispatch.local_size}")  # fmt: skip
    if dispatch.code_address % 32 or dispatch.code_address <= 0:
        raise BadDispatch(f"expected code at a multiple of 32, got {dispatch.code_address:#x}")
    if dispatch.code_size <= 0:
        raise BadDispatch("expected code, got an instruction length of 0")
    if not 0 <= dispatch.full_registers <= 64 or not 0 <= dispatch.half_registers <= 64:
        raise BadDispatch(f"expected footprints of at most 64 vec4, got "
                          f"{dispatch.full_registers} and {dispatch.half_registers}")  # fmt: skip
    if len(dispatch.constants) > layout.CONSTANT_WORDS:
        raise BadDispatch(f"expected at most {layout.CONSTANT_WORDS} words of constants, got "
                          f"{len(dispatch.constants)}")  # fmt: skip
    if len(dispatch.immediates) > layout.IMMEDIATE_WORDS:
        raise BadDispatch(f"expected at most {layout.IMMEDIATE_WORDS} immediates, got "
                          f"{len(dispatch.immediates)}")  # fmt: skip
    waves = -(-x * y * z // dispatch.thread_size)
    needed = waves * dispatch.thread_size * dispatch.private_size
    if dispatch.private_size and needed > dispatch.private_stride:
        raise BadDispatch(
            f"a group needs {needed} bytes of private memory, a shader processor has "
            f"{dispatch.private_stride}"
        )


def _registers(dispatch: Dispatch) -> tuple[int, int]:
    """Return the words of the register file, and where separate half registers begin in it.

    Without MERGEDREGS both footprints count (ir3_compiler.c, ir3_get_reg_dependent_max_waves: full
    registers plus half of the half registers).
    """
    full, halves = (min(48, n) for n in (dispatch.full_registers, dispatch.half_registers))
    half_words = -(-4 * halves // 2)
    if dispatch.merged_registers:
        return max(4 * full, -(-halves // 2) * 4), 0
    separate = 4 * max(full, 1)
    return separate + half_words, separate


def _constants(dispatch: Dispatch) -> NDArray[np.uint32]:
    found = np.zeros(layout.CONSTANT_WORDS, np.uint32)
    given = np.asarray(dispatch.constants, np.uint32)
    found[: len(given)] = given
    end = SHARED_CONSTANTS if dispatch.shared_constants else layout.CONSTANT_WORDS
    found[dispatch.constant_limit : end] = layout.UNDEFINED
    return found


def _tables(dispatch: Dispatch) -> NDArray[np.uint64]:
    found = aligned(layout.TABLES_BYTES).view(np.uint64)
    for place, table in (
        (layout.UBOS, dispatch.ubos), (layout.UAVS, dispatch.uavs),
        (layout.TEXTURES, dispatch.textures), (layout.SAMPLERS, dispatch.samplers),
    ):  # fmt: skip
        found[place // 8 : place // 8 + 2] = table.base, table.count
    for number, base in enumerate(tuple(dispatch.bindless)[:8]):
        found[layout.BINDLESS // 8 + number] = base
    found[layout.BORDERS // 8] = dispatch.border_colours
    return found
