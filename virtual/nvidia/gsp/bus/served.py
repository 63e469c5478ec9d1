"""A card behind a server."""

from __future__ import annotations

from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.serve import card as serve


class ServedCard(serve.ServedCard[Card]):
    """See the base class.

    map_vram: clients map BAR1, as video memory, and access it directly. This is fast, but only for
    drivers that leave BAR1 physical, and clients can access the write-protected region. It requires
    a card with `shared_memory`.
    """

    vram_bar = 1

    def __init__(self, card: Card, *, map_vram: bool = False) -> None:
        super().__init__(
            card,
            lambda card: VirtualTransport(card, f"served:{card.facts.name}"),
            card.gpu.memory if map_vram else None,
        )
