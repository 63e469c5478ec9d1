"""A card behind a server: client processes own the memory that the card accesses."""

from __future__ import annotations

from ugpu.hcq.transport.base import Transport
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.serve.model import Client, SharedMemory


class ServedCard:
    """Implement `virtual.serve.model.DeviceModel`; the caller still owns the card."""

    vectors = 1

    def __init__(self, card: Card) -> None:
        self.card = card
        self._transport: VirtualTransport | None = None

    def attach(self, client: Client) -> Transport:
        """Attach the client; the card sends interrupts to it directly."""
        self._transport = VirtualTransport(self.card, f"served:{self.card.facts.name}")
        with self.card.lock:
            self.card.msi = client.interrupt
        return self._transport

    def detach(self) -> None:
        """Turn off bus mastering, as an operating system does for a process that died."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        """See DeviceModel. Accesses of the card to unshared memory are refused and recorded."""
        self.card.map_dma(address, size, host)

    def unmap_dma(self, address: int, size: int) -> None:
        """See DeviceModel."""
        self.card.unmap_dma(address, size)

    def shared(self, bar: int) -> SharedMemory | None:
        """Return None: each access is translated, and counts."""
        return None
