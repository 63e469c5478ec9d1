"""One worker thread's native state: its context, TLB, local memory, constants and wave states."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcq.emu import context
from hcq.emu.lanes.every import LDS_SPACE
from hcq.emu.memory import Abort, Access
from hcq.emu.tlb import PAGE
from hcq.emu.worker import NativeWorker, aligned
from qcom.virtual.shader import Accessing, Dispatch, ShaderMemory
from qcom.virtual.sp.program import INSTRUCTION, Program
from qcom.virtual.sp.runtime import layout
from qcom.virtual.sp.runtime.launch import Launch

_MXCSR = 0x1F80  # all exceptions masked, round to nearest even, subnormal numbers kept
_WIDEST = 16  # bytes of an access
_WORD = (1 << 64) - 1


def _place(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


class Run:
    """What all workers of one dispatch share.

    counter: the next workgroup to begin. stop: set when a wave cannot go on.
    """

    def __init__(
        self, dispatch: Dispatch, launch: Launch, program: Program, memory: ShaderMemory,
        abort: Abort,
    ) -> None:  # fmt: skip
        self.dispatch, self.launch, self.program = dispatch, launch, program
        self.memory, self.abort = memory, abort
        self.counter = np.zeros(1, np.uint64)
        self.stop = np.zeros(1, np.uint32)


class Worker(NativeWorker):
    """What the native code of one thread works on. Used by one thread at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.context = aligned(layout.SIZE)
        self._constants = aligned(4 * layout.CONSTANT_WORDS + 64).view(np.uint32)
        self._local = aligned(LDS_SPACE + 64)
        self._states = aligned(0)
        self._run: Run | None = None  # also keeps alive what the context points to
        self._tlb: NDArray[np.uint64] | None = None

    def translate(self, address: int, access: Access) -> int:
        """Return the host address of an address that the TLB lacks."""
        assert self._run is not None and self._tlb is not None
        page = address // PAGE
        return self._run.memory.refill(self._tlb, address, access, lambda: self._accessing(page))

    def failed(self, address: int) -> None:
        """End the waves on all threads."""
        assert self._run is not None
        self._run.stop[0] = 1

    def _accessing(self, page: int) -> Accessing:
        """Describe the access that touches a page."""
        assert self._run is not None
        index, words = self.word(layout.ACCESS), self._run.program.words
        pc = self._run.dispatch.code_address + INSTRUCTION * index
        text = ""
        for op in self._run.program.ops():
            if op.index == index and index < len(words):
                text = op.text
        group, wave = self.running()
        return Accessing(pc, text, self._lane_of(page), group, wave)

    def running(self) -> tuple[tuple[int, int, int], int]:
        """Return the group and the number of the wave that runs, or ran last."""
        at = self.quad(layout.RUNNING) - _place(self._states)
        x, y, z, wave = struct.unpack_from("<4I", self._states.data, at + layout.GROUP_X)
        return (x, y, z), wave

    def _lane_of(self, page: int) -> int:
        data = self.context.data
        low = np.frombuffer(data, np.uint32, 128, layout.ACCESSED).astype(np.uint64)
        high = np.frombuffer(data, np.uint32, 128, layout.ACCESSED + 4 * 128).astype(np.uint64)
        address = (high << np.uint64(32) | low) + np.uint64(self.quad(layout.ACCESSED_BASE))
        active = self.mask(layout.ACCESSING)
        for lane in range(128):
            first = int(address[lane])
            if active >> lane & 1 and first // PAGE <= page <= (first + _WIDEST - 1) // PAGE:
                return lane
        return -1

    def prepare(self, run: Run, number: int) -> None:
        """Fill the context for a dispatch. number: of this worker among those that share it."""
        self.error = None
        self._run, dispatch, launch = run, run.dispatch, run.launch
        self._tlb = self.tlb_for(run.memory)
        stride = layout.state_size(launch.words, launch.lanes)
        if len(self._states) < stride * launch.waves:
            self._states = aligned(stride * launch.waves)
        self._constants[: layout.CONSTANT_WORDS] = launch.constants
        self._local[: dispatch.local_size] = 0x5A  # what a group finds there is not defined
        for place, value in (
            (context.TLB, _place(self._tlb)), (context.REFILL, self.refill),
            (context.ABORT, _place(run.abort.flag)), (context.STOP, _place(run.stop)),
            (context.SHARED, _place(self._local)), (context.SHARED_SIZE, dispatch.local_size),
            (context.COUNTER, _place(run.counter)), (context.TOTAL, launch.groups),
            (context.STATES, _place(self._states)), (context.STATE_STRIDE, stride),
            (context.RESUME_GROUP, context.NO_GROUP),
            (layout.CONSTANTS, _place(self._constants)), (layout.IDS, _place(launch.ids)),
            (layout.EXECS, _place(launch.execs)), (layout.TABLES, _place(launch.tables)),
            (layout.RUNNING, _place(self._states)),
            (layout.PRIVATE, dispatch.private_base + number * dispatch.private_stride),
        ):  # fmt: skip
            struct.pack_into("<Q", self.context.data, place, value)
        for place, value in (
            (context.GROUPS_X, dispatch.groups[0]), (context.GROUPS_Y, dispatch.groups[1]),
            (context.WAVES, launch.waves), (context.MXCSR, _MXCSR), (context.RESUME_WAITING, 0),
            (layout.PREAMBLE, 0), (layout.PRIVATE_SIZE, dispatch.private_size),
        ):  # fmt: skip
            struct.pack_into("<I", self.context.data, place, value)

    def quad(self, offset: int) -> int:
        """Read a 64-bit field of the context."""
        return int(struct.unpack_from("<Q", self.context.data, offset)[0])

    def word(self, offset: int) -> int:
        """Read a 32-bit field of the context."""
        return int(struct.unpack_from("<I", self.context.data, offset)[0])

    def mask(self, offset: int) -> int:
        """Read lanes, one bit each, of which the context has 128."""
        return self.quad(offset) | self.quad(offset + 8) << 64
