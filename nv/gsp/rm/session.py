"""A session with a card's GSP: one client, one address space, and reports of faults."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.errors import NotSupported
from ugpu.nv.gsp.rm.card import GspCard
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.space import GspSpace
from ugpu.nv.rm.events import FatalFault
from ugpu.nv.rm.session import Session

log = logging.getLogger(__name__)

_KEPT = 256
_PAGE = 4096


@dataclass(frozen=True)
class ChannelReport:
    """The GSP ended a channel. chid: its number. kind: the Xid. engine: NV2080_ENGINE_TYPE."""

    chid: int
    kind: int
    engine: int


class GspFaults:
    """Faults that the GSP reported with the end of a channel. See nv.rm.session.FaultSource."""

    def __init__(self) -> None:
        self._seen: deque[FatalFault] = deque(maxlen=_KEPT)

    @property
    def works(self) -> bool:
        return True

    def add(self, address: int) -> None:
        """Note a fault; the report lacks the kind of access."""
        self._seen.append(FatalFault(address, "invalid"))

    def take(self, address: int | None) -> FatalFault | None:
        for fault in reversed(self._seen):
            if address is None or address ^ fault.address < _PAGE:
                self._seen.remove(fault)
                return fault
        return None

    def forget(self) -> None:
        self._seen.clear()


class GspSession(Session):
    """A session. Owns the card. on_report: called with the end of each channel, while polling."""

    client: GspClient
    events: GspFaults

    def __init__(self, card: GspCard) -> None:
        super().__init__()
        self.card = card
        self.events = GspFaults()
        self.on_report: list[Callable[[ChannelReport], None]] = []
        number = card.calls.abi.constants
        card.calls.on_event[number.NV_VGPU_MSG_EVENT_RC_TRIGGERED] = self._note_report
        self.client = GspClient(card.calls, card.transport.clock)
        self.space = GspSpace(card.chip, card.places, card.heap, self)
        with card.lock:
            self.space.own()

    @property
    def source(self) -> object:
        return self.card.transport

    @property
    def name(self) -> str:
        return self.card.transport.name

    def _note_report(self, payload: bytes) -> None:
        """Handle RC_TRIGGERED: the GSP has stopped a channel after an error."""
        layout = self.client.structs.rpc_rc_triggered_v17_02
        if len(payload) < layout.size:
            log.warning("the GSP's report of a channel is cut short: %d bytes", len(payload))
            return
        report = layout.view(payload[: layout.size])
        if "mmuFaultAddrLo" in layout.fields:  # not in release 535
            address = int(report.mmuFaultAddrHi) << 32 | int(report.mmuFaultAddrLo)
            if address:
                self.events.add(address)
        found = ChannelReport(
            int(report.chid), int(report.exceptType), int(report.nv2080EngineType)
        )
        log.debug("the GSP ended a channel: %s", found)
        for take in list(self.on_report):
            take(found)

    def sole_holder(self) -> str:
        return "several clients of a GSP without a kernel driver are not implemented"

    def another(self) -> Session:
        raise NotSupported(f"the GPU cannot have a second holder: {self.sole_holder()}")

    def close(self) -> None:
        self.client.close()
        self.card.close()
