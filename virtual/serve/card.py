"""A virtual card behind a server: client processes own the memory that the card accesses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.base import Transport
from ugpu.virtual.bus import function
from ugpu.virtual.serve.model import Client, SharedMemory


class Card(function.Card, Protocol):
    """A card that can be served."""

    def map_dma(self, address: int, size: int, host: int | None) -> None: ...
    def unmap_dma(self, address: int, size: int) -> None: ...


class VideoMemory(Protocol):
    """A card's memory. descriptor: of the file behind it, or -1."""

    size: int
    descriptor: int


C = TypeVar("C", bound=Card)


class ServedCard(Generic[C]):
    """Implement `virtual.serve.model.DeviceModel`; the caller still owns the card.

    transport: attaches to the card. vram: clients map it and access it directly; None: each access
    is a message, is translated, and counts. vram_bar: shows its beginning.
    """

    vectors = 1
    vram_bar = 0

    def __init__(
        self, card: C, transport: Callable[[C], function.PciFunction[C]],
        vram: VideoMemory | None = None,
    ) -> None:  # fmt: skip
        if vram is not None and vram.descriptor < 0:
            raise BadArgument("clients can map video memory only if the card's is shared memory")
        self.chip = card
        self._vram = vram
        self._attached = transport
        self._transport: function.PciFunction[C] | None = None

    def attach(self, client: Client) -> Transport:
        """Attach the client; the card sends interrupts to it directly."""
        self._transport = self._attached(self.chip)
        with self.chip.lock:
            self.chip.msi = client.interrupt
            self.chip.config.assign_messages(())
        return self._transport

    def detach(self) -> None:
        """Turn off bus mastering, as an operating system does for a process that died."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        """See DeviceModel. Accesses of the card to unshared memory are refused and recorded."""
        self.chip.map_dma(address, size, host)

    def unmap_dma(self, address: int, size: int) -> None:
        """See DeviceModel."""
        self.chip.unmap_dma(address, size)

    def assign_messages(self, vectors: Collection[int]) -> None:
        """See DeviceModel."""
        with self.chip.lock:
            self.chip.config.assign_messages(vectors)

    def shared(self, bar: int) -> SharedMemory | None:
        """See DeviceModel."""
        if bar != self.vram_bar or self._vram is None:
            return None
        size = min(self._vram.size, self.chip.config.bar_size(bar))
        return SharedMemory(self._vram.descriptor, 0, size)
