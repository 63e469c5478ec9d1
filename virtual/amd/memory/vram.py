"""The card's own memory: sparse host memory that starts out as noise."""

from __future__ import annotations

import ctypes

import numpy as np

from ugpu.virtual.bus.sparse import SparseMemory

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
        self._sparse = SparseMemory(size, shared=shared, smaller="ugpu.open(name, vram=1 << 30)")
        self.descriptor = self._sparse.descriptor
        self._memory, self._base = self._sparse.memory, self._sparse.base

    def host_address(self, address: int) -> int:
        """Return the address in this process of VRAM offset `address`."""
        assert 0 <= address < self.size
        return self._base + address

    def contains(self, host: int) -> bool:
        """Return whether an address in this process lies in VRAM."""
        return self._base <= host < self._base + self.size

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
        self._sparse.close()

    def scramble(self, seed: int, noise: int, poison: int | None = None) -> None:
        """Discard the contents: the first `noise` bytes become noise, the rest zeros (sparse).

        poison: a 32-bit word that fills these bytes instead of noise.
        """
        self._sparse.forget(0, self.size)
        if poison is None:
            tile = np.random.default_rng(seed).bytes(_NOISE_TILE)
        else:
            tile = poison.to_bytes(4, "little") * (_NOISE_TILE // 4)
        for start in range(0, min(noise, self.size), _NOISE_TILE):
            piece = tile[: min(noise, self.size) - start]
            self._memory[start : start + len(piece)] = piece
