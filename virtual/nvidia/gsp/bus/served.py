"""A card behind a server."""

from __future__ import annotations

from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.serve import card as serve


class ServedCard(serve.ServedCard[Card]):
    """See the base class."""

    def __init__(self, card: Card) -> None:
        super().__init__(card, lambda card: VirtualTransport(card, f"served:{card.facts.name}"))
