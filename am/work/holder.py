"""Holder: what queues, programs, proofs, reports and resets use of their driver and its card.

am.device.driver.AmDriver is a holder: it has queues, an address space, programs and failures. The
card (am.device.card.Card) and the record of its generation (am.generations.record) lie above the
parts too.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.device.driver import Driver

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
    from ugpu.hcq.bare.space import AddressSpace, Mapping
    from ugpu.hcq.bare.stages import Stages
    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.registers.fields import RegisterMap
    from ugpu.hcq.registers.layout import Struct
    from ugpu.hcq.state.ladder import Attempt, Level
    from ugpu.hcq.state.memory import Placement
    from ugpu.hcq.transport.base import Transport
    from ugpu.hcq.work.buffer import Buffer


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


class RestPart(Protocol):
    """What a reset uses of am.device.rest.Rest."""

    def forget(self) -> None: ...


class CardPart(Protocol):
    """What the parts use of am.device.card.Card: see there. Its lock is held."""

    @property
    def holders(self) -> Sequence[Holder]: ...
    @property
    def stuck(self) -> Sequence[Holder]: ...
    @property
    def rest(self) -> RestPart: ...

    def drain(self) -> None: ...
    def needed_firmware(self) -> FirmwareSet: ...
    def check_whole_reset(self, holder: Holder) -> None: ...
    def fail_others(self, holder: Holder) -> None: ...
    def release_stuck(self) -> None: ...
    def own_memory(self) -> None: ...
    def rewrite(self) -> None: ...


class Holder(Driver):
    """One holder of a card; the first one starts it, those after it are tenants."""

    card: CardPart
    generation: GenerationPart
    transport: Transport  # the card's
    facts: ChipFacts
    units: Units  # the card's
    stages: Stages  # of the holder's start
    seat: Seat
    memory: AddressSpace
    queues: Queues
    programs: Programs
    outside: OutsideMemory
    images: weakref.WeakSet[HostImage]  # those that lie in VRAM
    vram_lost: bool  # whether the last reset lost the content of DEVICE memory
    spoiled: bool  # a reset by another holder lost it
    reset_report: list[Attempt]  # rungs that the last reset tried
    unfinished: Level | None  # the harshest rung of a reset that did not end
    reports: list[Interrupt]  # entries taken from the ring and not explained yet
    missed: bool  # entries were lost because the ring was full
    failures: list[UgpuError]  # of the whole card, not reported yet
    latched: list[HubFault]  # faults of this holder that another holder found
    dynamic_stack: int  # bytes per thread for recursion and calls through pointers

    @property
    @abstractmethod
    def chip(self) -> Chip: ...

    @property
    @abstractmethod
    def vmid(self) -> int:
        """The VMID of all work of this holder."""

    @property
    @abstractmethod
    def is_tenant(self) -> bool:
        """Return whether the driver shares a card that another holder has booted."""

    @property
    @abstractmethod
    def has_own_memory(self) -> bool:
        """Return whether its page tables are its own, and not those of the card's firmware."""

    @property
    @abstractmethod
    def warm(self) -> bool:
        """Return whether the driver attached to a running card."""

    @property
    @abstractmethod
    def starts_by_list(self) -> bool:
        """Return whether a register list starts the queues: the MEC was just booted, and each
        access from the host is a message."""

    @property
    @abstractmethod
    def alone(self) -> bool:
        """Return whether no other holder has work on the card."""

    @abstractmethod
    def map(self, size: int, placement: Placement, *, code: bool = False) -> Mapping:
        """Allocate and map `size` bytes for the driver's own use; the caller owns them."""

    @abstractmethod
    def unmap(self, mapping: Mapping) -> None:
        """Unmap and free; the TLBs are flushed before another user gets the memory."""

    @abstractmethod
    def flush_tlb(self) -> None:
        """Flush the TLBs after changes for this driver's work."""

    @abstractmethod
    def wrap(self, mapping: Mapping) -> Buffer:
        """Return a buffer over a mapping."""

    @abstractmethod
    def free_memory_of_holder(self) -> None:
        """Return all memory to the card; the hardware no longer accesses it. Can be repeated."""
