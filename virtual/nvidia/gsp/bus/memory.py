"""The card's way to memory of its host: the IOMMU, and only with bus mastering on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ugpu.virtual.bus.dma import DmaPool, Iommu, read_bus, write_bus


class BusMaster(Protocol):
    """The card's accesses to memory. bus_read: of the host, None if it is refused. bus_write:
    whether it was allowed. bus_address: in this process, None if it is refused or not contiguous.
    falcon_memory: of the card, as its programs and firmware access it. violation: records a use
    that a board would punish silently."""

    def bus_read(self, address: int, size: int) -> bytes | None: ...
    def bus_write(self, address: int, content: bytes) -> bool: ...
    def bus_address(self, address: int, size: int) -> int | None: ...
    def falcon_memory(self, address: int, size: int) -> memoryview: ...
    def violation(self, text: str) -> None: ...


class BusMemory:
    """DMA of the card. Any thread may call. refused: hears why an access was refused. first: the
    least address that the host gives out."""

    def __init__(
        self, seed: int, allowed: Callable[[], bool], refused: Callable[[str], None],
        revoked: Callable[[int, int], None], *, first: int = 1 << 40,
    ) -> None:  # fmt: skip
        self.iommu = Iommu(seed, first)
        self.pool = DmaPool(self.iommu, revoked)
        self._allowed = allowed
        self._refused = refused

    def translate(self, address: int, size: int) -> tuple[int, int] | None:
        """Return the address in this process and the contiguous bytes, at most `size`; None if the
        access is refused, which is recorded."""
        if not self._allowed():
            self._refused(f"DMA to {address:#x} with bus mastering off")
            return None
        found = self.iommu.translate(address, size)
        if found is None:
            self._refused(f"DMA to {address:#x}, which the IOMMU refuses")
        return found

    def read(self, address: int, size: int) -> bytes | None:
        """Read; None if any part is refused."""
        content = read_bus(self.translate, address, size)
        return content if len(content) == size else None

    def write(self, address: int, content: bytes) -> bool:
        """Write; return whether all parts were allowed."""
        return write_bus(self.translate, address, content)
