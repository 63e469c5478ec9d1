"""A session with a card's GSP: one client, one address space, and reports of faults."""

from __future__ import annotations

from typing import Any

from ugpu.nv.gsp.rm.card import GspCard
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.space import GspSpace
from ugpu.nv.rm.events import SeenFaults
from ugpu.nv.rm.session import Session


class GspSession(Session):
    """A session of one holder. The card outlives it."""

    client: GspClient
    events: SeenFaults

    def __init__(self, card: GspCard[Any]) -> None:
        super().__init__()
        self.card = card
        self.events = SeenFaults()
        self.client = GspClient(card.calls, card.transport.clock)
        self.space = GspSpace(card, self)
        with card.lock:
            self.space.own()

    def renew(self) -> None:
        """Become a client of firmware that was started again."""
        self.events.forget()
        self.client = GspClient(self.card.calls, self.card.transport.clock)

    @property
    def source(self) -> object:
        return self.card.transport

    @property
    def name(self) -> str:
        return self.card.transport.name

    def sole_holder(self) -> str:
        if not self.card.transport.traits.any_order:
            return "a recording holds the accesses of one holder"
        return ""

    def close(self) -> None:
        card = self.card
        self.client.close()
        with card.lock:
            self.space.close()
