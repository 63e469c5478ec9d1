"""CardHolder: a holder of a card, without its queues and programs, which use it."""

from __future__ import annotations

from ugpu.am.boot.units import Units
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import Seat
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.bare.holder import BareHolder
from ugpu.hcq.bare.stages import Stages


class CardHolder(BareHolder):
    """One holder of a card. units: the card's. stages: of the holder's start. dynamic_stack: bytes
    per thread for recursion and calls through pointers."""

    facts: ChipFacts
    units: Units
    stages: Stages
    seat: Seat
    dynamic_stack: int

    @property
    def chip(self) -> Chip:
        """The card's registers and memory."""
        return self.units.chip

    @property
    def vmid(self) -> int:
        """The VMID of all work of this holder."""
        return self.seat.vmid

    @property
    def index(self) -> int:
        """See BareHolder."""
        return self.seat.index
