"""Physical memory as the GSP's objects name it: kind 1 of the host, kind 2 of the card."""

from __future__ import annotations

from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.gsp.bus.memory import BusMaster

_PAGE = 4096


class PhysicalMemory:
    """Both kinds of one card."""

    def __init__(self, gpu: VirtualGpu, bus: BusMaster) -> None:
        self.gpu = gpu
        self._board = bus

    def address_of(self, kind: int, base: int, size: int) -> int | None:
        """Return the address in this process of physical memory; None if it cannot be accessed."""
        if kind == 2:
            inside = base + size <= self.gpu.memory.size
            return self.gpu.memory.base + base if inside else None
        return self._board.bus_address(base, size) if kind == 1 else None

    def reaches(self, kind: int, base: int, size: int) -> bool:
        """Return whether all pages of physical memory can be accessed."""
        pages = range(base, base + size, _PAGE) if kind == 1 else range(base, base + 1)
        step = 1 if kind == 1 else size
        return all(self.address_of(kind, page, step) is not None for page in pages)

    def write_memory(self, kind: int, base: int, content: bytes) -> None:
        """Write physical memory; what cannot be accessed is recorded."""
        if kind == 2 and base + len(content) <= self.gpu.memory.size:
            self.gpu.memory.view[base : base + len(content)] = content
        elif kind == 1:
            self._board.bus_write(base, content)
