"""A card as a master of its bus: its accesses to host memory, and its message interrupts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from ugpu.virtual.bus.config import ConfigSpace
from ugpu.virtual.bus.dma import FIRST_ADDRESS, DmaPool, Iommu


class BusMaster(ABC):
    """What all cards do as masters. Both need bus mastering on: a message is a write by the card.

    lost: the card does not answer any more. msi: sends a vector's message to the attached
    transport, if any. dma: memory of the host that the card can access.
    """

    lock: threading.RLock
    config: ConfigSpace

    def __init__(self, seed: int, first: int = FIRST_ADDRESS) -> None:
        """seed, first: of the bus addresses that the IOMMU deals."""
        self.lost = False
        self.msi: Callable[[int], object] | None = None
        self.iommu = Iommu(seed, first)
        self.dma = DmaPool(self.iommu, self.revoked)

    @abstractmethod
    def refused(self, text: str) -> None:
        """Record an access that failed."""

    @abstractmethod
    def revoked(self, host: int, size: int) -> None:
        """Invalidate cached translations because host memory was unmapped from the card."""

    def dma_piece(self, bus: int, size: int) -> tuple[int, int] | None:
        """Translate a bus address: (host address, bytes in one piece); None if it is unmapped."""
        if self.lost:
            return None
        if not self.config.bus_master:
            self.refused(f"DMA to {bus:#x} with bus mastering off")
            return None
        found = self._mapped(bus, size)
        if found is None:
            self.refused(f"DMA to {bus:#x}: the IOMMU refuses")
        return found

    def _mapped(self, bus: int, size: int) -> tuple[int, int] | None:
        return self.iommu.translate(bus, size)

    def map_dma(self, bus: int, size: int, host: int | None) -> None:
        """Map memory for the card: memory owned by another object, at `host` in this process.

        None: memory at an unsupported address; accesses by the card's engines are refused.
        """
        with self.lock:
            self.iommu.add(bus, size, host)

    def unmap_dma(self, bus: int, size: int) -> None:
        """Remove a mapping made by `map_dma`, given the same bus address and size."""
        with self.lock:
            self.iommu.remove(bus)
            self.revoked(0, size)

    def send_message(self, vector: int = 0) -> None:
        """Send a message: of a vector of MSI-X where that is enabled, or MSI."""
        if self.lost:
            return
        if not self.config.bus_master:
            self.refused("MSI with bus mastering off")
            return
        table = self.config.messages
        if table is not None and table.enabled:
            table.signal(vector)
        else:
            self.message(0)

    def message(self, vector: int) -> None:
        """Send a message to the attached transport, if any."""
        send = self.msi
        if send is not None:
            send(vector)
