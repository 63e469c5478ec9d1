"""A virtual card behind a server."""

from __future__ import annotations

from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.serve.card import ServedCard


class ServedChip(ServedCard[Chip]):
    """See ServedCard.

    map_vram: clients map VRAM and access it directly. This is fast but bypasses the host data path:
    writes that a board would hold until they are flushed are visible at once, and clients can
    access the trusted memory region. It requires a chip with `shared_vram`.
    """

    def __init__(self, chip: Chip, *, map_vram: bool = False) -> None:
        super().__init__(
            chip,
            lambda chip: VirtualTransport(chip, f"served:{chip.facts.name}"),
            chip.vram if map_vram else None,
        )
