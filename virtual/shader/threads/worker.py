"""The context of native code in one host thread, as far as all shader cores share it."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import LDS_SPACE
from ugpu.virtual.shader.memory import Abort, Access, LaneMemory, place_of
from ugpu.virtual.shader.tlb import PAGE

_REFILL = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
_KEPT_SPACES = 16  # address spaces whose TLB a worker keeps


def aligned(size: int, at: int = 128) -> NDArray[np.uint8]:
    """Allocate zeroed bytes at a multiple of `at`."""
    raw = np.zeros(size + at, np.uint8)
    start = -raw.ctypes.data % at
    return raw[start : start + size]


M = TypeVar("M", bound=LaneMemory)


class Run(Generic[M]):
    """State that all workers of a launch share.

    counters: the next group to begin, and one for the core's own use. stop: set when a wave cannot
    go on, so that the others end.
    """

    def __init__(self, memory: M, abort: Abort) -> None:
        self.memory = memory
        self.abort = abort
        self.counters = np.zeros(2, np.uint64)
        self.stop = np.zeros(1, np.uint32)

    def restart(self) -> None:
        """Begin the launch once more, after all workers have ended it."""
        self.counters[:] = 0
        self.stop[0] = 0


R = TypeVar("R", bound=Run[Any])


class NativeWorker(ABC):
    """A thread's TLBs, and the callback from native code to the page-table walker.

    error: raised by a callback. An exception must not cross native code, so the thread that started
    the launch raises it again. refill: the address of the refill callback.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.tlbs: list[tuple[LaneMemory, NDArray[np.uint64]]] = []  # of recent address spaces
        self._sink = aligned(2 * PAGE, PAGE)
        self._refill = _REFILL(self._on_miss)
        self.refill = ctypes.cast(self._refill, ctypes.c_void_p).value or 0

    @abstractmethod
    def translate(self, address: int, access: Access) -> int:
        """Return the host address of an address that the TLB lacks."""

    @abstractmethod
    def failed(self, address: int) -> None:
        """Make sure that the launch ends: `error` is set."""

    def _on_miss(self, address: int, access: int) -> int:
        try:
            return self.translate(address, Access(access))
        except Exception as error:  # raised again by the thread that started the launch
            self.error = error
            self.failed(address)
            return int(self._sink.ctypes.data) + address % PAGE

    def tlb_for(self, memory: LaneMemory) -> NDArray[np.uint64]:
        """Return this thread's TLB of an address space."""
        for known, tlb in self.tlbs:
            if known is memory:
                return tlb
        tlb = memory.new_tlb()
        self.tlbs = [*self.tlbs[1 - _KEPT_SPACES :], (memory, tlb)]
        return tlb


class WaveWorker(NativeWorker, Generic[R]):
    """State of the native code of one thread, whose waves `threads.waves` runs: its context, local
    memory and wave states. Only one thread may use it at a time.

    place: address of the context. size: of the context. filling: byte with which local memory
    begins, which is never cleared.
    """

    def __init__(self, size: int, filling: int = 0) -> None:
        super().__init__()
        self.context = aligned(size)
        self._quads = memoryview(self.context.data).cast("B").cast("Q")
        self._words = memoryview(self.context.data).cast("B").cast("I")
        self._local = aligned(LDS_SPACE + 64)
        self._local[:] = filling
        self._states = aligned(0)
        self._states_at = 0
        self._run: R | None = None  # also keeps alive what the context points to
        self._tlb: NDArray[np.uint64] | None = None
        self._tlb_at = 0
        self.place = place_of(self.context)
        self._quads[context.REFILL // 8] = self.refill
        self._quads[context.SHARED // 8] = place_of(self._local)

    def failed(self, address: int) -> None:
        """End the waves on all threads."""
        assert self._run is not None
        self._run.stop[0] = 1

    def _begin(
        self, run: R, tlb: NDArray[np.uint64], groups: tuple[int, int, int], waves: int,
        stride: int, local_size: int, mxcsr: int,
    ) -> None:  # fmt: skip
        """Fill the context for a launch of so many groups, with `waves` waves each, whose states
        take `stride` bytes."""
        self._enter(run, tlb)
        quads, words = self._quads, self._words
        if len(self._states) < stride * waves:
            self._states = aligned(stride * waves)
            self._states_at = quads[context.STATES // 8] = place_of(self._states)
        quads[context.ABORT // 8] = place_of(run.abort.flag)
        quads[context.STOP // 8] = place_of(run.stop)
        quads[context.COUNTER // 8] = place_of(run.counters)
        quads[context.SHARED_SIZE // 8] = local_size
        quads[context.TOTAL // 8] = groups[0] * groups[1] * groups[2]
        quads[context.STATE_STRIDE // 8] = stride
        quads[context.RESUME_GROUP // 8] = context.NO_GROUP
        quads[context.HALT_GROUP // 8] = context.NO_GROUP
        words[context.GROUPS_X // 4], words[context.GROUPS_Y // 4] = groups[:2]
        words[context.WAVES // 4] = waves
        words[context.MXCSR // 4] = mxcsr
        words[context.RESUME_WAITING // 4] = 0

    def _enter(self, run: R, tlb: NDArray[np.uint64]) -> None:
        """Note the launch that begins, and its TLB."""
        self.error = None
        self._run = run
        if tlb is not self._tlb:
            self._tlb, self._tlb_at = tlb, place_of(tlb)
        self._quads[context.TLB // 8] = self._tlb_at

    def quad(self, offset: int) -> int:
        """Read a 64-bit field of the context."""
        return self._quads[offset // 8]

    def word(self, offset: int) -> int:
        """Read a 32-bit field of the context."""
        return self._words[offset // 4]

    def set_quad(self, offset: int, value: int) -> None:
        """Write a 64-bit field of the context."""
        self._quads[offset // 8] = value

    def state(self, wave: int) -> NDArray[np.uint8]:
        """Return the state of a wave of the current group; not a copy."""
        stride = self.quad(context.STATE_STRIDE)
        return self._states[wave * stride : (wave + 1) * stride]

    def local(self, size: int) -> bytes:
        """Return the first `size` bytes of the current group's local memory."""
        return self._local[:size].tobytes()
