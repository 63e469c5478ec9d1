"""The card's own memory: sparse host memory that starts out as noise."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import numpy as np

from hcq.errors import OutOfMemory

_MAP_NORESERVE = 0x4000  # Linux; mmap names it from Python 3.13 on
_NOISE_TILE = 1 << 20


class Vram:
    """Video memory as the engines see it. Addresses are offsets; sizes are bytes.

    CPU writes through BAR0 reach it only by way of `Hdp`. Out-of-range access is the caller's bug.
    """

    def __init__(self, size: int, *, shared: bool = False) -> None:
        """`shared`: in a file without a name, `descriptor`, that other processes can map."""
        self.size = size
        self.descriptor = -1
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            if shared:
                self.descriptor = _sealed_file(size)
            self._memory = mmap.mmap(self.descriptor, size, flags=flags | _MAP_NORESERVE)
        except OSError as error:  # vm.overcommit_memory=2, or a limit on address space
            raise OutOfMemory(
                "cannot reserve address space for the virtual card's memory;"
                " open it with less memory, as in ugpu.open(name, vram=1 << 30)",
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
        self._forget()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _forget(self) -> None:
        self._memory.madvise(mmap.MADV_DONTNEED if self.descriptor < 0 else mmap.MADV_REMOVE)

    def scramble(self, seed: int, noise: int, poison: int | None = None) -> None:
        """Lose the contents: `noise` bytes from the start become noise, the rest zero (sparse).
        poison: a 32-bit word that stands there in place of noise."""
        self._forget()
        if poison is None:
            tile = np.random.default_rng(seed).bytes(_NOISE_TILE)
        else:
            tile = poison.to_bytes(4, "little") * (_NOISE_TILE // 4)
        for start in range(0, min(noise, self.size), _NOISE_TILE):
            piece = tile[: min(noise, self.size) - start]
            self._memory[start : start + len(piece)] = piece


def _sealed_file(size: int) -> int:
    """Memory as a file whose length never changes: who maps it can rely on that."""
    descriptor = os.memfd_create("vram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
