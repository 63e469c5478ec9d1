"""Card: the part of one GPU that its holders share: transport, units, firmware, interrupt ring.

A holder is an AmDriver: queues, an address space, programs and failures. The first holder starts
the card and the last one leaves it; holders in between are its tenants. An interrupt goes to the
holders whose VMID and PASID it carries. Entries of VMID 0 and of MMHUB, where tenants do not work,
go to all.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

from ugpu.am import chips
from ugpu.am.boot import boot
from ugpu.am.boot.units import Units
from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import SEATS, Seat
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.device.rest import Rest
from ugpu.am.generations.record import generation_of
from ugpu.am.units.ih import Interrupt
from ugpu.am.units.psp.images import FirmwareSet, load_firmware
from ugpu.am.units.smu.thermal import WHOLE_CARD
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.function import disable_master
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import (
    ChipError,
    DeviceLost,
    DeviceNotFound,
    FirmwareError,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.transport.life import absence_of

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder

_PASIDS = 0xFFFF  # PASIDs have 16 bits

log = logging.getLogger(__name__)

_NOBODY = 0xFFFF  # vendor id read from configuration space without a function


def find_facts(vendor: int, device: int) -> ChipFacts:
    """Return the facts of the chip with this PCI id, from its folder in am/chips."""
    found = chips.find(vendor, device)
    if vendor == _NOBODY:
        raise DeviceLost("the card is no longer on the bus", remedy=advice.LINK)
    if found is None:
        raise DeviceNotFound(f"PCI id {vendor:04x}:{device:04x} is not a supported chip")
    return found


class Card:
    """One card. It owns the attachment's transport.

    lock: shared by all holders; it excludes their submissions and resets from each other. holders:
    the open ones, in the order of opening. stuck: closed holders whose queues did not leave the
    hardware. Their seats and their memory stay taken until the whole card is reset. target: as the
    first holder found it. rest: lets the graphics core power off (am.device.rest).
    """

    target: TargetSpec

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        firmware: FirmwareSource,
        *,
        stages: Stages,
        on_chip: boot.ChipHook | None = None,
        leave_warm: bool,
    ) -> None:
        """Make first contact; the chip is not changed. `start` boots it."""
        self.name = name
        self.transport = attachment.transport
        self.recorded = attachment.on_image is not None or not self.transport.traits.any_order
        self.lock = threading.RLock()
        self.holders: list[Holder] = []
        self.stuck: list[Holder] = []
        self._shared = False  # the card has had tenants
        self._pasid = 0  # the last one assigned
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
                self.transport, self.facts, self.generation.units, stages, on_chip
            )
        except BaseException:
            self.transport.close()
            raise
        self._ih = self.units.ih
        self.rest = Rest(self.units, self.lock, self.holders)

    @property
    def chip(self) -> Chip:
        """The card's registers and memory."""
        return self.units.chip

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
                # The previous boot noted a component and was cut off before it sent the component.
                log.warning("%s: an interrupted boot cannot be continued: %s", self.name, error)
                boot.make_fresh(units, stages)
                self.own_memory()
                self.generation.cold_boot(units, self.firmware, stages)

    def _attach(self) -> bool:
        """Attach to the chip of an earlier ugpu process; False if the chip does not behave as a
        warm one should."""
        self.own_memory()
        try:
            self.generation.warm_attach(self.units, self.stages)
        except ChipError as error:
            log.warning("%s: a warm attach is not possible: %s", self.name, error)
            return False
        return True

    def needed_firmware(self) -> FirmwareSet:
        """Return the images; look for them first if a warm start did not need them. ORDER: they
        must be found before the chip is reset."""
        if self.firmware is None:
            self.firmware = load_firmware(self.firmware_source, self.facts)
        return self.firmware

    # ---- interrupts and presence -------------------------------------------------------------

    def drain(self) -> None:
        """Take the entries from the interrupt ring and distribute them to the holders."""
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
        """Handle an entry that concerns the whole card, once. A failure is added to each holder."""
        found = self.units.thermal.explain(self.name, entry.client, entry.source, entry.data[0])
        if found is not None:
            for holder in self.holders:
                holder.failures.append(type(found)(found.message, **found.facts))

    def absent(self) -> UgpuError | None:
        """Return the error for a chip that has left, or that another program has reset; interrupts
        report neither. The chip is fine where the transport still has it and one register gives the
        secure OS's sign of life, which a reset clears (Linux 6.12 soc21.c,
        soc21_need_reset_on_init). The transport knows what registers do not show: the system asked
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
        """Return whether a holder in this seat has its own page tables. It has none where its work
        runs in VMID 0, nor behind a bridge: there a queue in VMID 0 starts the holder's queues, and
        clears their memory by its addresses (am.units.lists)."""
        return bool(seat.vmid) and self.transport.traits.host_memory and self.units.lists is None

    def free_seat(self) -> Seat:
        """Return a seat for one more holder; OutOfMemory if there is none. The lock is held."""
        taken = {holder.seat.index for holder in (*self.holders, *self.stuck)}
        free = next((index for index in range(1, SEATS) if index not in taken), None)
        if free is None:
            raise OutOfMemory(
                f"{self.name} has {SEATS - 1} further holders, as many as it has VMIDs for"
            )
        self._shared = True
        self._pasid = self._pasid % _PASIDS + 1
        return Seat.of_tenant(free, self._pasid)

    def is_alone(self, holder: Holder) -> bool:
        """Return whether no other holder has work on the card."""
        return not self.stuck and all(other is holder for other in self.holders)

    def check_whole_reset(self, holder: Holder) -> None:
        """Raise NotSupported if this holder may not reset the whole card."""
        if holder.is_tenant and not self.is_alone(holder):
            raise NotSupported(
                "it ends the work of other holders of the card; the device that was opened first "
                "can make it"
            )

    def fail_others(self, holder: Holder) -> None:
        """Set a failure in all other holders: a reset of the whole card begins."""
        for other in self.holders:
            if other is not holder and other.core.failure is None:
                other.core.failure = ChipError(
                    f"{other.name}: the card was reset, since {holder.name} had failed",
                    remedy=advice.RESET,
                )

    def open_context(self, holder: Holder) -> None:
        """Activate a tenant's page tables and its PASID."""
        seat = holder.seat
        self.units.ih.name(seat.vmid, seat.pasid)
        self.units.gfx.open_vmid(seat.vmid)
        self.units.gmc.open_context(seat.vmid, holder.memory.root_entry)

    def leave(self, holder: Holder, at_rest: bool) -> None:
        """Close a holder while others stay. at_rest: its queues are off. Can be repeated."""
        if at_rest or self.chip.lost():
            try:
                self._release(holder)
                return
            except UgpuError as error:
                log.warning("%s: while %s closes: %s", self.name, holder.name, error)
        self._keep_stuck(holder)

    def _release(self, holder: Holder) -> None:
        """Close a holder's context and return its memory. Its queues are off, or the card was
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

    def _keep_stuck(self, holder: Holder) -> None:
        """Keep a closing holder whose queues are still on the hardware. Another holder fails and
        needs a reset that takes them off."""
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
        """Release closed holders: a reset of the whole card took their queues off the hardware."""
        while self.stuck:
            self._release(self.stuck[-1])
            self.stuck.pop()

    def own_memory(self) -> None:
        """Write the page tables of the firmware and of all holders: this process owns VRAM from now
        on, or VRAM has lost its content."""
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
        """Make this process's memory unreachable. The firmware stays up, unless the card is not to
        be left warm or its work did not finish."""
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


def _concerns(entry: Interrupt, holder: Holder) -> bool:
    """Return whether this holder has to explain an interrupt entry."""
    seat = holder.seat
    if entry.client in WHOLE_CARD:
        return False
    if not entry.vmid or entry.mmhub:
        return True
    return entry.vmid == seat.vmid and seat.pasid in (0, entry.pasid)
