"""A virtual card behind a server: client processes own the memory that the card accesses."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.base import Transport
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.serve.model import Client, SharedMemory

_VRAM_BAR = 0


class ServedChip:
    """Implement `virtual.serve.model.DeviceModel`; the caller still owns the chip.

    map_vram: clients map VRAM and access it directly. This is fast but bypasses the host data path:
    writes that a board would hold until they are flushed are visible at once, and clients can
    access the trusted memory region. It requires a chip with `shared_vram`.
    """

    vectors = 1

    def __init__(self, chip: Chip, *, map_vram: bool = False) -> None:
        if map_vram and not chip.options.shared_vram:
            raise BadArgument(
                "clients can map VRAM only if the chip is opened with shared_vram=True"
            )
        self.chip = chip
        self.map_vram = map_vram
        self._transport: VirtualTransport | None = None

    def attach(self, client: Client) -> Transport:
        """Attach the client; the chip sends interrupts to it directly."""
        self._transport = VirtualTransport(self.chip, f"served:{self.chip.facts.name}")
        with self.chip.lock:
            self.chip.msi = client.interrupt
        return self._transport

    def detach(self) -> None:
        """Turn off bus mastering, as an operating system does for a process that died."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        """See DeviceModel. Engine accesses to unshared memory are refused and recorded."""
        self.chip.map_dma(address, size, host)

    def unmap_dma(self, address: int, size: int) -> None:
        """See DeviceModel."""
        self.chip.unmap_dma(address, size)

    def shared(self, bar: int) -> SharedMemory | None:
        """Return VRAM for BAR0 if `map_vram`, else None."""
        if bar != _VRAM_BAR or not self.map_vram:
            return None
        vram = self.chip.vram
        bar_size = self.chip.config.bar_size(_VRAM_BAR)
        return SharedMemory(vram.descriptor, 0, min(vram.size, bar_size))
