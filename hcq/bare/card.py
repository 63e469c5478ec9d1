"""BareCard: the part of one card that its holders share: transport, firmware, memory, start, end.

A holder is a driver (bare.holder.BareHolder): queues, an address space, programs and failures. The
first holder starts the card and the last one leaves it; holders in between are its tenants. A card
is found fresh, running and left clean by an earlier ugpu process, or in any other state; only
the first two are trusted.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.function import disable_master
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.device.core import Core
from ugpu.hcq.errors import (
    ChipError,
    DeviceLost,
    FirmwareError,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.transport.base import Transport

log = logging.getLogger(__name__)


class Member(Protocol):
    """What a card uses of a holder. index: of its seat, 0 for the first holder's. unfinished: the
    harshest rung of a reset that did not end."""

    name: str
    core: Core
    unfinished: Level | None

    @property
    def memory(self) -> AddressSpace: ...

    @property
    def index(self) -> int: ...

    def free_memory_of_holder(self) -> None: ...


H = TypeVar("H", bound=Member)


class BareCard(ABC, Generic[H]):
    """One card. It owns the transport.

    lock: shared by all holders; it excludes their submissions and resets from each other. holders:
    the open ones, in the order of opening. stuck: closed holders whose queues did not leave the
    hardware. Their seats and their memory stay taken until the whole card is reset. shared: the
    card has had tenants. seats: the most holders at a time. warm: this process attached to firmware
    that an earlier one had started. leave_warm: firmware stays up when the last holder closes.
    """

    seats = 1
    images_stage = "firmware images"  # of the start

    def __init__(
        self, name: str, transport: Transport, stages: Stages, *, leave_warm: bool = True
    ) -> None:
        self.name = name
        self.transport = transport
        self.stages = stages
        self.leave_warm = leave_warm
        self.lock = threading.RLock()
        self.holders: list[H] = []
        self.stuck: list[H] = []
        self.shared = False
        self.warm = False
        self._has_images = False

    # ---- what the vendor does ----------------------------------------------------------------

    @property
    @abstractmethod
    def chip(self) -> BareChip:
        """The card's registers and memory."""

    @property
    @abstractmethod
    def memory(self) -> AddressSpace:
        """The address space of the card's firmware."""

    @property
    def firmware_mapping(self) -> Mapping | None:
        """What the firmware uses of its space while holders come and go."""
        return None

    @abstractmethod
    def take_over(self) -> bool:
        """Make a running chip accessible, and keep what runs on it from memory that is not this
        process's. False if no firmware runs, or if it does not respond."""

    @abstractmethod
    def is_warm(self) -> bool:
        """Return whether an earlier ugpu process has left the chip clean, with its firmware
        running. A chip in any other state is not trusted. Changes nothing."""

    @abstractmethod
    def warm_attach(self, stages: Stages) -> None:
        """Set everything up again below running firmware. ChipError or FirmwareError if the chip
        does not behave as a warm one should; it is then reset."""

    @abstractmethod
    def find_firmware(self) -> None:
        """Read and check the firmware files, once. FirmwareNotFound, FirmwareInvalid."""

    @abstractmethod
    def make_fresh(self, stages: Stages) -> None:
        """Bring a chip in any state to where `cold_boot` begins, by a reset if needed."""

    @abstractmethod
    def cold_boot(self, stages: Stages) -> None:
        """Load all firmware and start it. FirmwareError with the fact `resumed_after` if an
        interrupted boot could not be continued; it is then begun again."""

    @abstractmethod
    def after_power_loss(self) -> None:
        """Take up a chip that was reset from outside since first contact."""

    @abstractmethod
    def after_reset(self) -> None:
        """Forget what was known of a chip that has been reset as a whole, before it is booted."""

    @abstractmethod
    def note_in_use(self) -> None:
        """Note on the chip, for the next process, that it is in use."""

    @abstractmethod
    def note_left(self) -> None:
        """Note on the chip, for the next process, that it was left clean."""

    @abstractmethod
    def quiet(self) -> None:
        """Switch off everything that could access host memory. Firmware stays up; queues are off.
        For a chip that was reset it does nothing harmful."""

    @abstractmethod
    def reset_at_end(self) -> None:
        """Reset the chip, since nothing is to stay on it; does nothing if no firmware runs."""

    @abstractmethod
    def open_context(self, holder: H) -> None:
        """Translate a holder's accesses by its own tables, and attribute its reports to it. For the
        first holder, this comes before `start`: nothing is written to a chip in an unknown state,
        and the start opens the contexts of all holders."""

    @abstractmethod
    def close_context(self, holder: H) -> None:
        """Stop translating a holder's accesses, and flush. Its queues are off, or the card was
        reset. Can be repeated."""

    @abstractmethod
    def close_units(self) -> None:
        """Release host memory that the card's firmware uses; works in any state."""

    # ---- start -------------------------------------------------------------------------------

    def start(self, *, force_cold: bool) -> None:
        """Take the chip over warm, or boot it."""
        try:
            self._start(force_cold)
        except DeviceLost as error:
            if not self.transport.present():
                raise
            # A process that died may have requested a reset of the chip, which begins only now.
            log.warning("%s: %s: waiting for the end of a reset", self.name, error)
            self.after_power_loss()
            self._start(force_cold=True)
        self.note_in_use()

    def _start(self, force_cold: bool) -> None:
        awake = self.take_over()
        self.warm = awake and not force_cold and self.is_warm() and self._attach()
        if self.warm:
            return
        self.find_images()
        try:
            self._boot()
        except FirmwareError as error:
            if not error.facts.get("resumed_after"):
                raise
            # The previous boot noted a component and was cut off before it sent the component.
            log.warning("%s: an interrupted boot cannot be continued: %s", self.name, error)
            self._boot()

    def find_images(self) -> None:
        """Find the firmware as a stage of the start, once."""
        if not self._has_images:
            with self.stages.stage(self.images_stage):
                self.find_firmware()
            self._has_images = True

    def _boot(self) -> None:
        self.make_fresh(self.stages)
        self.own_memory()
        self.cold_boot(self.stages)

    def _attach(self) -> bool:
        self.own_memory()
        try:
            self.warm_attach(self.stages)
        except (ChipError, FirmwareError) as error:
            log.warning("%s: a warm attach is not possible: %s", self.name, error)
            return False
        return True

    def boot_again(self) -> None:
        """Boot the chip after a reset of everything. The page tables of all holders are written."""
        self.after_reset()
        self.own_memory()
        self.cold_boot(Stages())
        self.note_in_use()

    def own_memory(self) -> None:
        """Write the page tables of the firmware and of all holders: this process owns VRAM from now
        on, or VRAM has lost its content."""
        for memory in dict.fromkeys((self.memory, *(each.memory for each in self.holders))):
            memory.own()

    # ---- several holders ---------------------------------------------------------------------

    def free_index(self) -> int:
        """Return the index of a seat for one more holder; OutOfMemory if there is none. The lock is
        held."""
        taken = {holder.index for holder in (*self.holders, *self.stuck)}
        free = next((index for index in range(1, self.seats) if index not in taken), None)
        if free is None:
            raise OutOfMemory(
                f"{self.name} has {self.seats - 1} further holders, as many as it has seats for"
            )
        self.shared = True
        return free

    def is_alone(self, holder: H) -> bool:
        """Return whether no other holder has work on the card."""
        return not self.stuck and all(other is holder for other in self.holders)

    @property
    def unfinished(self) -> Level:
        """The level of the harshest reset that did not end, of any holder: the next one begins
        there, unless the chip shows where it stands."""
        return max(holder.unfinished or Level.QUEUE for holder in self.holders)

    def check_whole_reset(self, holder: H) -> None:
        """Raise NotSupported if this holder may not reset the whole card."""
        if holder.index and not self.is_alone(holder):
            raise NotSupported(
                "it ends the work of other holders of the card; the device that was opened first "
                "can make it"
            )

    def fail_others(self, holder: H) -> None:
        """Set a failure in all other holders: a reset of the whole card begins."""
        for other in self.holders:
            if other is not holder and other.core.failure is None:
                other.core.failure = ChipError(
                    f"{other.name}: the card was reset, since {holder.name} had failed",
                    remedy=remedies.RESET,
                )

    def leave(self, holder: H, at_rest: bool) -> None:
        """Close a holder while others stay. at_rest: its queues are off. Can be repeated."""
        if at_rest or self.chip.lost():
            try:
                self._release(holder)
                return
            except UgpuError as error:
                log.warning("%s: while %s closes: %s", self.name, holder.name, error)
        self._keep_stuck(holder)

    def _release(self, holder: H) -> None:
        """Close a holder's context and return its memory. Its queues are off, or the card was
        reset. Can be repeated."""
        self.close_context(holder)
        holder.free_memory_of_holder()

    def _keep_stuck(self, holder: H) -> None:
        """Keep a closing holder whose queues are still on the hardware. Another holder fails and
        needs a reset that takes them off."""
        if holder not in self.stuck:
            self.stuck.append(holder)
        for first in [other for other in self.holders if other is not holder][:1]:
            first.unfinished = max(first.unfinished or Level.QUEUE, Level.BLOCK)
            first.core.failure = first.core.failure or ChipError(
                f"{first.name}: queues of {holder.name}, which was closed, do not leave the "
                "hardware",
                remedy=remedies.RESET,
            )

    def release_stuck(self) -> None:
        """Release closed holders: a reset of the whole card took their queues off the hardware."""
        while self.stuck:
            self._release(self.stuck[-1])
            self.stuck.pop()

    def lost(self) -> bool:
        """Return whether the card no longer answers, or has lost its power."""
        return self.chip.lost()

    # ---- the end -----------------------------------------------------------------------------

    def stop(self, *, clean: bool) -> None:
        """Make this process's memory unreachable. The firmware stays up, unless the card is not to
        be left warm or its work did not finish (`clean`)."""
        leave = self.leave_warm and clean
        if leave:
            self.note_left()
        self.quiet()
        if not leave:
            self.reset_at_end()
        disable_master(self.transport)

    def close(self) -> None:
        """Release host resources; works in any state."""
        self.close_units()
        self.chip.link.restore()
        self.transport.close()
