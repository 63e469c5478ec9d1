"""A virtual card behind a server."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.serve.card import ServedCard
from ugpu.virtual.serve.model import SharedMemory

_VRAM_BAR = 0


class ServedChip(ServedCard[Chip]):
    """See ServedCard.

    map_vram: clients map VRAM and access it directly. This is fast but bypasses the host data path:
    writes that a board would hold until they are flushed are visible at once, and clients can
    access the trusted memory region. It requires a chip with `shared_vram`.
    """

    def __init__(self, chip: Chip, *, map_vram: bool = False) -> None:
        if map_vram and not chip.options.shared_vram:
            raise BadArgument(
                "clients can map VRAM only if the chip is opened with shared_vram=True"
            )
        super().__init__(chip, lambda chip: VirtualTransport(chip, f"served:{chip.facts.name}"))
        self.map_vram = map_vram

    def shared(self, bar: int) -> SharedMemory | None:
        """Return VRAM for BAR0 if `map_vram`, else None."""
        if bar != _VRAM_BAR or not self.map_vram:
            return None
        vram = self.chip.vram
        bar_size = self.chip.config.bar_size(_VRAM_BAR)
        return SharedMemory(vram.descriptor, 0, min(vram.size, bar_size))
