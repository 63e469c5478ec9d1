"""The card's own memory: sparse host memory that starts out as noise."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from hcq.errors import OutOfMemory

_MAP_NORESERVE = 0x4000  # Linux; mmap names it from Python 3.13 on
_NOISE_TILE = 1 << 20


class Vram:
    """Video memory as the engines see it. Addresses are offsets; sizes are bytes.

    CPU writes through BAR0 reach it only by way of `Hdp`. Out-of-range access is the caller's bug.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._memory = mmap.mmap(-1, size, flags=flags)
        except OSError as error:  # vm.overcommit_memory=2, or a limit on address space
            raise OutOfMemory(
                "this machine does not let us reserve address space for the virtual card's memory;"
                " give it less, as in hcq.open('virtual:navi31', vram=1 << 30)",
                wanted=size,
                reason=error.strerror,
            ) from error
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def host_address(self, address: int) -> int:
        """Return where `address` lies in this process."""
        assert 0 <= address < self.size
        return self._base + address

    def read(self, address: int, size: int) -> bytes:
        """Read as an engine does."""
        assert address >= 0 and address + size <= self.size
        return ctypes.string_at(self._base + address, size)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write as an engine does."""
        assert address >= 0 and address + len(data) <= self.size
        self._memory[address : address + len(data)] = data

    def close(self) -> None:
        """Give the memory back to the host; reads give zeros from now on."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def scramble(self, seed: int, noise: int) -> None:
        """Lose the contents: `noise` bytes from the start become noise, the rest zero (sparse)."""
        self._memory.madvise(mmap.MADV_DONTNEED)
        tile = np.random.default_rng(seed).bytes(_NOISE_TILE)
        for start in range(0, min(noise, self.size), _NOISE_TILE):
            piece = tile[: min(noise, self.size) - start]
            self._memory[start : start + len(piece)] = piece
