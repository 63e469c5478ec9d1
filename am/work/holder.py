"""Holder: what queues, programs, proofs, reports and resets use of their driver and its card.

am.device.driver.AmDriver is a holder: it has queues, an address space, programs and failures. The
card (am.device.card.Card) and the record of its generation (am.generations.record) lie above the
parts too.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.bare.card import BareCard
from ugpu.hcq.bare.holder import BareHolder

if TYPE_CHECKING:
    from ugpu.am.boot.units import UnitClasses, Units
    from ugpu.am.chip.chip import Chip
    from ugpu.am.chip.placement import Seat
    from ugpu.am.chips.facts import ChipFacts
    from ugpu.am.packets.mqd import QueueMemory
    from ugpu.am.units.faults import HubFault
    from ugpu.am.units.ih import Interrupt
    from ugpu.am.units.psp.images import FirmwareSet
    from ugpu.am.work.bridge_memory import OutsideMemory
    from ugpu.am.work.cleaner import CleanerKernel
    from ugpu.am.work.image import HostImage
    from ugpu.am.work.programs import Programs
    from ugpu.am.work.proof import ProofKernel
    from ugpu.am.work.queue import ComputeQueue, CopyQueue
    from ugpu.am.work.queues import Queues
    from ugpu.hcq.bare.rest import Rest
    from ugpu.hcq.bare.stages import Stages
    from ugpu.hcq.registers.fields import RegisterMap
    from ugpu.hcq.registers.layout import Struct


class GenerationPart(Protocol):
    """What the parts use of am.generations.record.Generation, whose fields these are."""

    @property
    def units(self) -> UnitClasses: ...
    @property
    def compute_queue(self) -> type[ComputeQueue]: ...
    @property
    def copy_queue(self) -> type[CopyQueue]: ...
    @property
    def describe_queue(self) -> Callable[[QueueMemory, RegisterMap], Struct]: ...
    @property
    def cold_boot(self) -> Callable[[Units, FirmwareSet, Stages], None]: ...
    @property
    def warm_attach(self) -> Callable[[Units, Stages], None]: ...
    @property
    def proof(self) -> ProofKernel: ...
    @property
    def cleaner(self) -> Callable[[int], CleanerKernel]: ...


class CardPart(BareCard["Holder"]):
    """What the parts use of am.device.card.Card: see there. Its lock is held."""

    rest: Rest

    @abstractmethod
    def drain(self) -> None: ...
    @abstractmethod
    def needed_firmware(self) -> FirmwareSet: ...


class Holder(BareHolder):
    """One holder of a card."""

    card: CardPart
    generation: GenerationPart
    facts: ChipFacts
    units: Units  # the card's
    stages: Stages  # of the holder's start
    seat: Seat
    queues: Queues
    programs: Programs
    outside: OutsideMemory
    images: weakref.WeakSet[HostImage]  # those that lie in VRAM
    reports: list[Interrupt]  # entries taken from the ring and not explained yet
    missed: bool  # entries were lost because the ring was full
    latched: list[HubFault]  # faults of this holder that another holder found
    dynamic_stack: int  # bytes per thread for recursion and calls through pointers

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

    @property
    def starts_by_list(self) -> bool:
        """Return whether a register list starts the queues: the MEC was just booted, and each
        access from the host is a message."""
        return self.units.lists is not None and not self.warm
