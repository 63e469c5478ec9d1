"""The context of native code in one host thread, as far as all shader cores share it."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader.memory import Access, LaneMemory
from ugpu.virtual.shader.tlb import PAGE

_REFILL = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
_KEPT_SPACES = 16  # address spaces whose TLB a worker keeps


def aligned(size: int, at: int = 128) -> NDArray[np.uint8]:
    """Allocate zeroed bytes at a multiple of `at`."""
    raw = np.zeros(size + at, np.uint8)
    start = -raw.ctypes.data % at
    return raw[start : start + size]


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
