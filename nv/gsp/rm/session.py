"""A session with a card's GSP: one client, one address space, and reports of faults."""

from __future__ import annotations

from collections import deque
from typing import Any

from ugpu.nv.gsp.rm.card import GspCard
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.fault_buffers import MmuFault
from ugpu.nv.gsp.rm.space import GspSpace
from ugpu.nv.rm.events import FatalFault
from ugpu.nv.rm.session import Session

_KEPT = 256
_PAGE = 4096


class GspFaults:
    """Faults that the GSP reported with the end of a channel. See nv.rm.session.FaultSource."""

    def __init__(self) -> None:
        self._seen: deque[FatalFault] = deque(maxlen=_KEPT)

    @property
    def works(self) -> bool:
        return True

    def add(self, address: int, entry: MmuFault | None) -> None:
        """Note a fault. address: of the report, which lacks the kind of access. entry: of a fault
        buffer, if there was one."""
        if entry is None:
            self._seen.append(FatalFault(address, "invalid"))
        else:
            self._seen.append(FatalFault(entry.address, entry.access, entry.unit, entry.engine))

    def take(self, address: int | None) -> FatalFault | None:
        for fault in reversed(self._seen):
            if address is None or address ^ fault.address < _PAGE:
                self._seen.remove(fault)
                return fault
        return None

    def forget(self) -> None:
        self._seen.clear()


class GspSession(Session):
    """A session of one holder. The card outlives it."""

    client: GspClient
    events: GspFaults

    def __init__(self, card: GspCard[Any]) -> None:
        super().__init__()
        self.card = card
        self.events = GspFaults()
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
