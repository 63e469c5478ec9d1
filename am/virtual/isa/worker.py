"""One worker thread's native state: its context, TLB, local memory and wave states."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
from numpy.typing import NDArray

from am.virtual.isa import layout
from am.virtual.isa.launch import Launch
from am.virtual.isa.runtime import LDS_SPACE, PAGE
from am.virtual.shader import Abort, Access, Dispatch, ShaderMemory

REFILL = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
NO_GROUP = 0xFFFFFFFFFFFFFFFF


def aligned(size: int) -> NDArray[np.uint8]:
    """Allocate zeroed bytes at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


class Run:
    """What all workers of one dispatch share.

    counter: the next workgroup to begin. stop: set when a wave has halted, so that the others end.
    """

    def __init__(
        self, dispatch: Dispatch, launch: Launch, memory: ShaderMemory, abort: Abort
    ) -> None:
        self.dispatch = dispatch
        self.launch = launch
        self.memory = memory
        self.abort = abort
        self.counter = np.zeros(1, np.uint64)
        self.stop = np.zeros(1, np.uint32)


class Worker:
    """What the native code of one thread works on. Used by one thread at a time."""

    def __init__(self) -> None:
        self.context = aligned(layout.CONTEXT_SIZE)
        self._lds = aligned(LDS_SPACE + 64)
        self._sink = aligned(2 * PAGE)
        self._states = aligned(0)
        self._tlbs: list[tuple[ShaderMemory, NDArray[np.uint64]]] = []
        self._run: Run | None = None  # also keeps alive what the context points to
        self._tlb: NDArray[np.uint64] | None = None
        self._refill = REFILL(self._on_miss)
        self.error: BaseException | None = None

    def _on_miss(self, address: int, access: int) -> int:
        """Refill for native code; an exception must not pass through it, so it is kept."""
        assert self._run is not None and self._tlb is not None
        try:
            return self._run.memory.refill(self._tlb, address, Access(access))
        except Exception as error:  # raised again by the thread that started the dispatch
            self.error = error
            self._run.stop[0] = 1
            return int(self._sink.ctypes.data) + address % PAGE

    def _tlb_for(self, memory: ShaderMemory) -> NDArray[np.uint64]:
        for known, tlb in self._tlbs:
            if known is memory:
                return tlb
        tlb = memory.new_tlb()
        self._tlbs = [*self._tlbs[-15:], (memory, tlb)]
        return tlb

    def prepare(
        self,
        run: Run,
        first_wave: int,
        code_base: int,
    ) -> None:
        """Fill the context for a dispatch. first_wave: this worker's first scratch slot."""
        self.error = None
        dispatch, launch = run.dispatch, run.launch
        self._run = run
        self._tlb = tlb = self._tlb_for(run.memory)
        stride = layout.STATE_VGPR + 128 * launch.vgprs
        if len(self._states) < stride * launch.waves:
            self._states = aligned(stride * launch.waves)
        wave_size = dispatch.scratch_wave_size if launch.scratch else 0
        quads = {
            layout.TLB: tlb.ctypes.data,
            layout.REFILL: ctypes.cast(self._refill, ctypes.c_void_p).value or 0,
            layout.ABORT: run.abort.flag.ctypes.data,
            layout.STOP: run.stop.ctypes.data,
            layout.LDS: self._lds.ctypes.data,
            layout.LDS_SIZE: launch.lds_bytes,
            layout.SCRATCH: dispatch.scratch_base + first_wave * wave_size,
            layout.SCRATCH_WAVE: wave_size,
            layout.SHARED_HIGH: dispatch.shared_aperture >> 32,
            layout.PRIVATE_HIGH: dispatch.private_aperture >> 32,
            layout.COUNTER: run.counter.ctypes.data,
            layout.TOTAL: launch.total_groups,
            layout.SGPR_TEMPLATE: launch.scalars.ctypes.data,
            layout.VGPR_TEMPLATE: launch.ids.ctypes.data,
            layout.EXEC_TEMPLATE: launch.execs.ctypes.data,
            layout.STATES: self._states.ctypes.data,
            layout.STATE_STRIDE: stride,
            layout.CODE_BASE: code_base,
            layout.RESUME_GROUP: NO_GROUP,
        }
        words = {
            layout.GROUPS_X: dispatch.groups[0],
            layout.GROUPS_Y: dispatch.groups[1],
            layout.WAVES: launch.waves,
            layout.MXCSR: launch.mxcsr,
            layout.SLOT_X: launch.slots[0],
            layout.SLOT_Y: launch.slots[1],
            layout.SLOT_Z: launch.slots[2],
            layout.SLOT_INFO: launch.slots[3],
            layout.RESUME_WAITING: 0,
        }
        for offset, value in quads.items():
            struct.pack_into("<Q", self.context.data, offset, value)
        for offset, value in words.items():
            struct.pack_into("<I", self.context.data, offset, value)

    def quad(self, offset: int) -> int:
        """Read a 64-bit field of the context."""
        return int(struct.unpack_from("<Q", self.context.data, offset)[0])

    def word(self, offset: int) -> int:
        """Read a 32-bit field of the context."""
        return int(struct.unpack_from("<I", self.context.data, offset)[0])

    def resume_here(self, moved: int, waves: int) -> None:
        """Make the next launch go on with the group that stopped.

        moved: bytes by which the base that code offsets count from has changed meanwhile.
        """
        struct.pack_into("<Q", self.context.data, layout.RESUME_GROUP, self.quad(layout.HALT_GROUP))
        if not moved:
            return
        base = self.quad(layout.CODE_BASE) + moved
        struct.pack_into("<Q", self.context.data, layout.CODE_BASE, base)
        stride = self.quad(layout.STATE_STRIDE)
        for at in range(layout.STATE_RESUME, stride * waves, stride):
            (resume,) = struct.unpack_from("<I", self._states.data, at)
            if resume:
                struct.pack_into("<I", self._states.data, at, (resume - moved) & 0xFFFF_FFFF)
