"""Run a dispatch on the oracle, with the memory and the initial registers that the cores have.

Source of the initial registers: LLVM AMDGPUUsage, "Initial kernel execution state", gfx11.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lab.oracles.gfx11.execute import Mode, WaveState, run_group
from tests.support.shader_memory import PAGE, ArrayMemory
from ugpu.virtual.amd.shader import Dispatch
from ugpu.virtual.shader.memory import Access

LANES = 32
CODE_WINDOW = 1 << 16


class PageWalker:
    """The oracle's way into an `ArrayMemory`: page by page, faults latched there."""

    def __init__(self, memory: ArrayMemory) -> None:
        self._memory = memory
        self._tlb = memory.new_tlb()

    def load(self, address: int, size: int) -> bytes:
        """See `oracle.Memory`."""
        found = b""
        for place, count in _pieces(address, size):
            found += ctypes.string_at(self._memory.refill(self._tlb, place, Access.READ), count)
        return found

    def store(self, address: int, data: bytes) -> None:
        """See `oracle.Memory`."""
        for place, count in _pieces(address, len(data)):
            host = self._memory.refill(self._tlb, place, Access.WRITE)
            ctypes.memmove(host, data[place - address :][:count], count)


def _pieces(address: int, size: int) -> Iterator[tuple[int, int]]:
    end = address + size
    while address < end:
        count = min(end - address, PAGE - address % PAGE)
        yield address, count
        address += count


def run_oracle(dispatch: Dispatch, memory: ArrayMemory, limit: int = 200_000) -> int:
    """Run every workgroup, one after the other; return the number of instructions executed."""
    base, code = _code(dispatch.code_address, memory)
    walker = PageWalker(memory)
    count = 0
    for z in range(dispatch.groups[2]):
        for y in range(dispatch.groups[1]):
            for x in range(dispatch.groups[0]):
                count += run_group(code, _waves(dispatch, base, walker, (x, y, z)), limit)
    return count


def _code(address: int, memory: ArrayMemory) -> tuple[int, bytes]:
    """Return the executable pages around an address, and where they begin."""
    faults = len(memory.faults)
    base = address // PAGE * PAGE
    found = memory.fetch(base, PAGE) or b""
    while len(found) < CODE_WINDOW and (page := memory.fetch(base - PAGE, PAGE)) is not None:
        base, found = base - PAGE, page + found
    while len(found) < CODE_WINDOW and (page := memory.fetch(base + len(found), PAGE)) is not None:
        found += page
    del memory.faults[faults:]
    return base, found


def _waves(
    dispatch: Dispatch, base: int, walker: PageWalker, group: tuple[int, int, int]
) -> list[WaveState]:
    threads = dispatch.threads[0] * dispatch.threads[1] * dispatch.threads[2]
    lds = np.zeros((dispatch.rsrc2 >> 15 & 0x1FF) * 512, np.uint8)
    return [
        _wave(dispatch, base, walker, group, first, threads, lds)
        for first in range(0, threads, LANES)
    ]


def _wave(
    dispatch: Dispatch,
    base: int,
    walker: PageWalker,
    group: tuple[int, int, int],
    first: int,
    threads: int,
    lds: NDArray[np.uint8],
) -> WaveState:
    user = dispatch.rsrc2 >> 1 & 0x1F
    state = WaveState(
        exec=(1 << min(LANES, threads - first)) - 1,
        mode=Mode(dispatch.rsrc1 >> 12 & 0xFF, ieee=bool(dispatch.rsrc1 >> 23 & 1)),
        lds=lds,
        memory=walker,
        scratch=np.zeros((LANES, dispatch.scratch_wave_size // LANES), np.uint8),
        shared_aperture=dispatch.shared_aperture,
        private_aperture=dispatch.private_aperture,
        code_base=base,
        pc=dispatch.code_address - base,
    )
    state.sgprs[:user] = dispatch.user_data[:user]
    at = user
    for number, wanted in enumerate(group):
        if dispatch.rsrc2 >> (7 + number) & 1:
            state.sgprs[at] = wanted
            at += 1
    x, y, _ = dispatch.threads
    for lane in range(LANES):
        number = first + lane
        place = (number % x, number // x % y, number // (x * y))
        state.vgprs[0, lane] = place[0] | place[1] << 10 | place[2] << 20
    return state
