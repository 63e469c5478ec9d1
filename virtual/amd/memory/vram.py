"""The card's own memory: sparse host memory that starts out as noise."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import numpy as np

from ugpu.hcq.errors import OutOfMemory

_MAP_NORESERVE = 0x4000  # Linux; module mmap defines it from Python 3.13 on
_NOISE_TILE = 1 << 20


class Vram:
    """Video memory as the engines see it. Addresses are offsets; sizes are bytes.

    CPU writes through BAR0 reach it only through `Hdp`. Out-of-range access is the caller's bug.
    """

    def __init__(self, size: int, *, shared: bool = False) -> None:
        """Reserve the memory. shared: back it by an unnamed file that other processes can map.

        `descriptor` is that file's descriptor, or -1.
        """
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
        """Return the address in this process of VRAM offset `address`."""
        assert 0 <= address < self.size
        return self._base + address

    def read(self, address: int, size: int) -> bytes:
        """Read directly, as an engine does."""
        assert address >= 0 and address + size <= self.size
        return ctypes.string_at(self._base + address, size)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write directly, as an engine does."""
        assert address >= 0 and address + len(data) <= self.size
        self._memory[address : address + len(data)] = data

    def close(self) -> None:
        """Return the memory to the host; later reads give zeros."""
        self._forget()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _forget(self) -> None:
        self._memory.madvise(mmap.MADV_DONTNEED if self.descriptor < 0 else mmap.MADV_REMOVE)

    def scramble(self, seed: int, noise: int, poison: int | None = None) -> None:
        """Discard the contents: the first `noise` bytes become noise, the rest zeros (sparse).

        poison: a 32-bit word that fills these bytes instead of noise.
        """
        self._forget()
        if poison is None:
            tile = np.random.default_rng(seed).bytes(_NOISE_TILE)
        else:
            tile = poison.to_bytes(4, "little") * (_NOISE_TILE // 4)
        for start in range(0, min(noise, self.size), _NOISE_TILE):
            piece = tile[: min(noise, self.size) - start]
            self._memory[start : start + len(piece)] = piece


def _sealed_file(size: int) -> int:
    """Return a memory file whose length is sealed, so that mappings of it always stay valid."""
    descriptor = os.memfd_create("vram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
