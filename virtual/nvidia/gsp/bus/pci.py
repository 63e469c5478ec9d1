"""The card as a PCI function: its windows, and a transport with them."""

from __future__ import annotations

from ugpu.virtual.bus.function import PciFunction
from ugpu.virtual.bus.window import MemoryWindow, RegisterWindow
from ugpu.virtual.nvidia.gsp.apertures import Aperture
from ugpu.virtual.nvidia.gsp.card import Card


class ApertureWindow(MemoryWindow):
    """BAR1 or BAR3: memory through an aperture."""

    def __init__(self, card: Card, index: int, aperture: Aperture) -> None:
        super().__init__(card, index)
        self._chip = card
        self._aperture = aperture

    def read_bytes(self, offset: int, size: int) -> bytes:
        """Read any bytes inside."""
        self._check(offset, size, 1)
        return self._read(offset, size)

    def write_bytes(self, offset: int, data: bytes) -> None:
        """Write any bytes inside."""
        self._check(offset, len(data), 1)
        self._write(offset, data)

    def _read(self, offset: int, size: int) -> bytes:
        with self._chip.lock:
            if not self._chip.decodes:
                return b"\xff" * size
            self._chip.gpu.settle()
            return self._aperture.read(offset, size)

    def _write(self, offset: int, content: bytes) -> None:
        with self._chip.lock:
            if self._chip.decodes:
                self._aperture.write(offset, content)


class VirtualTransport(PciFunction[Card]):
    """One attachment to a card: windows of registers, video memory and instance memory."""

    def __init__(self, card: Card, name: str | None = None, *, owns_card: bool = False) -> None:
        windows = {
            0: RegisterWindow(card, 0, card.read32, card.write32),
            1: ApertureWindow(card, 1, card.bar1),
            3: ApertureWindow(card, 3, card.bar2),
        }
        name = name or f"virtual:{card.facts.name}+gsp"
        super().__init__(name, card, windows, card.dma, owns_card=owns_card)
