"""Card: what the holders of one GPU share: the way to it, its units, firmware and interrupt ring.

A holder is an AmDriver: queues, an address space, programs and failures. The card starts with its
first holder and is left with its last one; holders between are its tenants. Interrupts go to those
whose VMID and PASID they carry. Entries of VMID 0 and of MMHUB, where no tenant works, go to all.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from am import advice, boot, chips
from am.chip import ALL_ONES, Chip
from am.chips.facts import ChipFacts
from am.firmware import FirmwareSet, FirmwareSource, load_firmware
from am.function import disable_master
from am.generations.record import generation_of
from am.ih import Interrupt
from am.rest import Rest
from am.seat import SEATS, Seat
from am.thermal import WHOLE_CARD
from am.units import Units
from hcq.errors import (
    ChipError,
    DeviceLost,
    DeviceNotFound,
    FirmwareError,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from hcq.ladder import Level
from hcq.registry import Attachment
from hcq.target import TargetSpec
from hcq.transport.life import absence_of

if TYPE_CHECKING:
    from am.driver import AmDriver

_PASIDS = 0xFFFF  # they have 16 bits

log = logging.getLogger(__name__)

_NOBODY = 0xFFFF  # the vendor id that configuration space without a function reads as


def find_facts(vendor: int, device: int) -> ChipFacts:
    """Return the facts of the chip with this PCI id: one folder of am/chips has them."""
    found = chips.find(vendor, device)
    if vendor == _NOBODY:
        raise DeviceLost("the card is no longer on the bus", remedy=advice.LINK)
    if found is None:
        raise DeviceNotFound(f"PCI id {vendor:04x}:{device:04x} is not a supported chip")
    return found


class Card:
    """One card. It owns the attachment's transport.

    lock: of all its holders: their submissions and resets exclude each other. holders: those that
    are open, in the order of opening. stuck: those that were closed and whose queues did not leave
    the hardware: their seats and their memory stay taken until the card is reset as a whole.
    target: as the first holder found it. rest: lets its graphics core go off (am.rest).
    """

    target: TargetSpec

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        firmware: FirmwareSource,
        *,
        stages: boot.Stages,
        leave_warm: bool,
    ) -> None:
        """First contact; nothing of the chip is changed. `start` boots it."""
        self.name = name
        self.transport = attachment.transport
        self.recorded = attachment.on_image is not None or not self.transport.traits.any_order
        self.lock = threading.RLock()
        self.holders: list[AmDriver] = []
        self.stuck: list[AmDriver] = []
        self._shared = False  # there have been tenants
        self._pasid = 0  # the last one
        self.firmware_source = firmware
        self.firmware: FirmwareSet | None = None
        self.stages = stages
        self.leave_warm = leave_warm
        self.warm = False
        try:
            identity = self.transport.identity
            self.facts = find_facts(identity.vendor, identity.device)
            self.generation = generation_of(self.facts.generation)
            self.units: Units = boot.prepare(
                self.transport, self.facts, self.generation.units, stages
            )
        except BaseException:
            self.transport.close()
            raise
        self._ih = self.units.ih
        self.rest = Rest(self.units, self.lock, self.holders)

    @property
    def chip(self) -> Chip:
        """Its registers and memory."""
        return self.units.chip

    # ---- start -------------------------------------------------------------------------------

    def start(self, *, force_cold: bool) -> None:
        """Take the chip over warm, or boot it."""
        try:
            self._start(force_cold)
        except DeviceLost as error:
            if not self.transport.present():
                raise
            # A process that died may have asked for a reset of the chip, which begins only now.
            log.warning("%s: %s: waiting for the end of a reset", self.name, error)
            boot.after_power_loss(self.units)
            boot.read_discovery(self.chip)
            self._start(force_cold=True)
        mark = partial(boot.mark, self.chip, boot.IN_USE)
        if self.units.lists is None or self.warm:
            mark()
        else:
            self.units.later.append(mark)

    def _start(self, force_cold: bool) -> None:
        units, stages = self.units, self.stages
        awake = units.psp.alive() and self.rest.take_over()
        self.warm = awake and not force_cold and boot.is_warm(units.chip, units) and self._attach()
        if not self.warm:
            with stages.stage("firmware images"):
                self.firmware = load_firmware(self.firmware_source, self.facts)
                if units.psp.shelf is not None:
                    kinds = [kind for _, _, kind in units.chip.generation.boot_components]
                    units.psp.shelf.arrange(self.firmware.boot.get(kind, b"") for kind in kinds)
            boot.make_fresh(units, stages)
            self.own_memory()
            try:
                self.generation.cold_boot(units, self.firmware, stages)
            except FirmwareError as error:
                if not error.facts.get("resumed_after"):
                    raise
                # The boot before noted a component and was cut off before it handed it over.
                log.warning("%s: an interrupted boot cannot be continued: %s", self.name, error)
                boot.make_fresh(units, stages)
                self.own_memory()
                self.generation.cold_boot(units, self.firmware, stages)

    def _attach(self) -> bool:
        """Attach to the chip of an earlier ugpu process; False if the chip does not do what a warm
        one should."""
        self.own_memory()
        try:
            self.generation.warm_attach(self.units, self.stages)
        except ChipError as error:
            log.warning("%s: a warm attach is not possible: %s", self.name, error)
            return False
        return True

    def needed_firmware(self) -> FirmwareSet:
        """Return the images, which are looked for where a warm start has done without. ORDER: they
        are in hand before the chip is reset."""
        if self.firmware is None:
            self.firmware = load_firmware(self.firmware_source, self.facts)
        return self.firmware

    # ---- interrupts and presence -------------------------------------------------------------

    def drain(self) -> None:
        """Take the entries of the interrupt ring and give them to the holders."""
        ih = self._ih
        overflows, entries = ih.overflows, ih.drain()
        if not entries:
            return
        for holder in self.holders:
            if self._shared:
                holder.reports += [entry for entry in entries if _concerns(entry, holder)]
            else:
                holder.reports += entries
            holder.missed = holder.missed or ih.overflows != overflows
        for entry in entries if self._shared else ():
            if entry.client in WHOLE_CARD:
                self._explain(entry)

    def _explain(self, entry: Interrupt) -> None:
        """Take what concerns the whole card once; a failure is one of each holder."""
        found = self.units.thermal.explain(self.name, entry.client, entry.source, entry.data[0])
        if found is not None:
            for holder in self.holders:
                holder.failures.append(type(found)(found.message, **found.facts))

    def absent(self) -> UgpuError | None:
        """The error for a chip that has left, or that another program has reset: no interrupt
        reports either. All is well where the transport still has it and one register gives the
        secure OS's sign of life, which a reset clears (Linux 6.12 soc21.c,
        soc21_need_reset_on_init). The transport knows what registers do not tell: the system asked
        for the card back, or the host was suspended."""
        sign = self.units.psp.sign_of_life()
        if sign not in (0, ALL_ONES) and self.transport.present():
            return None
        if self.chip.lost():
            facts = absence_of(self.transport) | {"device": self.name, "remedy": advice.LINK}
            if self.chip.unplaced():
                text = (
                    f"{self.name}'s slot was reset by another program: its BARs have no addresses"
                )
                return DeviceLost(text, **facts | {"remedy": advice.PLACES})
            return DeviceLost(f"{self.name} no longer answers", **facts)
        if sign == ALL_ONES:
            return None
        return ChipError(
            f"{self.name} was reset by another program: the PSP's secure OS does not run any more",
            unit="PSP",
            remedy=advice.MODE1,
        )

    # ---- several holders ---------------------------------------------------------------------

    def sole_holder(self) -> str:
        """See Driver.sole_holder."""
        if not self.transport.traits.host_memory:
            return "behind this bridge the rings of its queues lie in memory that is not divided"
        if self.recorded:
            return "a recording holds the accesses of one holder"
        if any(not holder.seat.vmid for holder in self.holders):
            return "its work runs in VMID 0, which reaches device memory without page tables"
        return ""

    def divides_memory(self, seat: Seat) -> bool:
        """Return whether a holder in this seat has page tables of its own. Not where its work runs
        in VMID 0, nor behind a bridge: there a queue in VMID 0 starts those of the holder, and
        clears their memory by its addresses (am.lists)."""
        return bool(seat.vmid) and self.transport.traits.host_memory and self.units.lists is None

    def free_seat(self) -> Seat:
        """A seat for one more holder; OutOfMemory where there is none. The lock is held."""
        taken = {holder.seat.index for holder in (*self.holders, *self.stuck)}
        free = next((index for index in range(1, SEATS) if index not in taken), None)
        if free is None:
            raise OutOfMemory(
                f"{self.name} has {SEATS - 1} further holders, as many as it has VMIDs for"
            )
        self._shared = True
        self._pasid = self._pasid % _PASIDS + 1
        return Seat.of_tenant(free, self._pasid)

    def is_alone(self, holder: AmDriver) -> bool:
        """Return whether no other holder has work on the card."""
        return not self.stuck and all(other is holder for other in self.holders)

    def check_whole_reset(self, holder: AmDriver) -> None:
        """NotSupported where a reset of the whole card is not this holder's to make."""
        if holder.is_tenant and not self.is_alone(holder):
            raise NotSupported(
                "it ends the work of other holders of the card; the device that was opened first "
                "can make it"
            )

    def fail_others(self, holder: AmDriver) -> None:
        """A reset of the whole card begins: it is a failure of all other holders."""
        for other in self.holders:
            if other is not holder and other.core.failure is None:
                other.core.failure = ChipError(
                    f"{other.name}: the card was reset, since {holder.name} had failed",
                    remedy=advice.RESET,
                )

    def open_context(self, holder: AmDriver) -> None:
        """Put a tenant's page tables and its name into force."""
        seat = holder.seat
        self.units.ih.name(seat.vmid, seat.pasid)
        self.units.gfx.open_vmid(seat.vmid)
        self.units.gmc.open_context(seat.vmid, holder.memory.root_entry)

    def leave(self, holder: AmDriver, at_rest: bool) -> None:
        """A holder goes, and others stay. at_rest: its queues are off. Can be repeated."""
        if at_rest or self.chip.lost():
            try:
                self._release(holder)
                return
            except UgpuError as error:
                log.warning("%s: while %s closes: %s", self.name, holder.name, error)
        self._keep_stuck(holder)

    def _release(self, holder: AmDriver) -> None:
        """Take a holder's context away and return its memory; its queues are off, or the card was
        reset. Can be repeated."""
        if not holder.is_tenant and not holder.has_own_memory:
            for mapping in holder.memory.mappings.values():
                if mapping is not self.units.ih.memory:
                    holder.memory.unmap(mapping)
            self.units.gmc.flush_tlb()
        else:
            self.units.gmc.close_context(holder.seat.vmid, flush=not self.chip.lost())
            if holder.is_tenant:
                self.units.ih.name(holder.seat.vmid, 0)
        holder.free_memory_of_holder()

    def _keep_stuck(self, holder: AmDriver) -> None:
        """A holder goes whose queues are still on the hardware: another one has failed, and needs a
        reset that takes them off."""
        if holder not in self.stuck:
            self.stuck.append(holder)
        for first in [other for other in self.holders if other is not holder][:1]:
            first.unfinished = max(first.unfinished or Level.QUEUE, Level.BLOCK)
            first.core.failure = first.core.failure or ChipError(
                f"{first.name}: queues of {holder.name}, which was closed, do not leave the "
                "hardware",
                remedy=advice.RESET,
            )

    def release_stuck(self) -> None:
        """The card was reset as a whole: nothing of closed holders is on the hardware any more."""
        while self.stuck:
            self._release(self.stuck[-1])
            self.stuck.pop()

    def own_memory(self) -> None:
        """Write the page tables of the firmware and of all holders: VRAM is this process's from now
        on, or has lost its content."""
        for memory in dict.fromkeys((self.units.memory, *(each.memory for each in self.holders))):
            memory.own()

    def rewrite(self) -> None:
        """Write the programs and images of all holders again."""
        for holder in self.holders:
            holder.programs.rewrite()
            for image in list(holder.images):
                image.rewrite()

    # ---- leaving -----------------------------------------------------------------------------

    def stop(self, *, clean: bool) -> None:
        """Make this process's memory unreachable; firmware stays, unless it is to go, or what ran
        did not come to rest."""
        leave = self.leave_warm and clean
        if leave:
            boot.mark(self.chip, boot.LEFT_CLEAN)
        boot.stop(self.units)
        if not leave and self.units.psp.alive():
            boot.mode1_reset(self.units)
        disable_master(self.transport)

    def close(self) -> None:
        """Release host resources; works in any state."""
        self.units.close()
        self.chip.link.restore()
        self.transport.close()


def _concerns(entry: Interrupt, holder: AmDriver) -> bool:
    """Return whether an interrupt entry is a holder's to explain."""
    seat = holder.seat
    if entry.client in WHOLE_CARD:
        return False
    if not entry.vmid or entry.mmhub:
        return True
    return entry.vmid == seat.vmid and seat.pasid in (0, entry.pasid)
