"""Holder: what proofs, cleaners, reports and resets use of their driver and its card.

am.device.driver.AmDriver is a holder. The card (am.device.card.Card) and the record of its
generation (am.generations.record) lie above the parts too. A part that is used by another one
takes what it needs of its holder, below both: CardHolder, ImagesHolder, QueueHolder, QueuesHolder,
ProgramsHolder.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol

from ugpu.am.boot.units import Units
from ugpu.am.units.faults import HubFault
from ugpu.am.units.ih import Interrupt
from ugpu.am.units.psp.images import FirmwareSet
from ugpu.am.work.kernels import CleanerKernel, ProofKernel
from ugpu.am.work.programs import Programs, ProgramsHolder
from ugpu.am.work.queues import QueuesGeneration
from ugpu.hcq.bare.card import BareCard
from ugpu.hcq.bare.rest import Rest
from ugpu.hcq.bare.stages import Stages


class GenerationPart(QueuesGeneration, Protocol):
    """What the parts use of am.generations.record.Generation, whose fields these are."""

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


class Holder(ProgramsHolder):
    """One holder of a card. reports: entries taken from the interrupt ring and not explained yet.
    missed: entries were lost because the ring was full. latched: faults of this holder that another
    holder found."""

    card: CardPart
    generation: GenerationPart
    programs: Programs
    reports: list[Interrupt]
    missed: bool
    latched: list[HubFault]
