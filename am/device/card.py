"""Card: the part of one GPU that its holders share: transport, units, firmware, interrupt ring.

A holder is an AmDriver: queues, an address space, programs and failures. The first holder starts
the card and the last one leaves it; holders in between are its tenants. An interrupt goes to the
holders whose VMID and PASID it carries. Entries of VMID 0 and of MMHUB, where tenants do not work,
go to all.
"""

from __future__ import annotations

import logging
from functools import partial

from ugpu.am import chips
from ugpu.am.boot import boot, contact
from ugpu.am.boot.units import Units
from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import SEATS, Seat
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.device.rest import GraphicsOff
from ugpu.am.generations.record import generation_of
from ugpu.am.units.ih import Interrupt
from ugpu.am.units.psp.images import FirmwareSet, load_firmware
from ugpu.am.units.smu.power import PowerLimiter
from ugpu.am.units.smu.thermal import WHOLE_CARD
from ugpu.am.work.holder import CardPart, Holder
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.program import CardPrograms
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import (
    ChipError,
    DeviceLost,
    DeviceNotFound,
    UgpuError,
)
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.life import absence_of

_PASIDS = 0xFFFF  # PASIDs have 16 bits

log = logging.getLogger(__name__)

_NOBODY = 0xFFFF  # vendor id read from configuration space without a function


def find_facts(transport: Transport, stages: Stages) -> ChipFacts:
    """Return the facts of the chip behind a transport, from its folder in am/chips: by its PCI id,
    or by its discovery table if no folder has the id."""
    identity = transport.identity
    if identity.vendor == _NOBODY:
        raise DeviceLost("the card does not answer: it left the bus", remedy=advice.LINK)
    found = chips.find(identity.vendor, identity.device)
    if found is not None:
        return found
    if identity.vendor != chips.facts_of(chips.DEFAULT).generation.vendor:
        raise DeviceNotFound(f"PCI id {identity} is not a supported chip")
    return contact.recognise(transport, stages)


class Card(CardPart):
    """One card; see BareCard.

    target: as the first holder found it. rest: lets the graphics core power off (am.device.rest).
    power: its power limit. died_at_rest: the process before this one ended while the card rested.
    """

    target: TargetSpec
    seats = SEATS

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        firmware: FirmwareSource,
        *,
        stages: Stages,
        on_chip: contact.ChipHook | None = None,
        leave_warm: bool,
    ) -> None:
        """Make first contact; the chip is not changed. `start` boots it."""
        super().__init__(name, attachment.transport, stages, leave_warm=leave_warm)
        self.recorded = attachment.on_image is not None or not self.transport.traits.any_order
        self._pasid = 0  # the last one assigned
        self.firmware_source = firmware
        self.firmware: FirmwareSet | None = None
        try:
            self.facts = find_facts(self.transport, stages)
            self.generation = generation_of(self.facts.generation)
            self.units: Units = boot.prepare(
                self.transport, self.facts, self.generation.units, stages, on_chip
            )
        except BaseException:
            self.transport.close()
            raise
        self._ih = self.units.ih
        self.rest = GraphicsOff(self.units, self.lock, self.holders)
        self.power = PowerLimiter(self.units.smu)
        self.died_at_rest = False

    @property
    def chip(self) -> Chip:
        """The card's registers and memory."""
        return self.units.chip

    @property
    def memory(self) -> AddressSpace:
        """The address space of VMID 0."""
        return self.units.memory

    @property
    def firmware_mapping(self) -> Mapping:
        """The interrupt ring."""
        return self.units.ih.memory

    # ---- start -------------------------------------------------------------------------------

    def take_over(self) -> bool:
        """See BareCard."""
        if not self.units.psp.alive():
            return False
        self.died_at_rest = self.rest.noted()
        return self.rest.take_over()

    def is_warm(self) -> bool:
        """See BareCard."""
        return boot.is_warm(self.chip, self.units)

    def warm_attach(self, stages: Stages) -> None:
        """See BareCard."""
        self.generation.warm_attach(self.units, stages)

    def find_firmware(self) -> None:
        """See BareCard."""
        if self.firmware is None:
            identity = self.transport.identity
            kicker = (identity.device, identity.revision) in self.facts.kickers
            self.firmware = load_firmware(self.firmware_source, self.facts, kicker=kicker)

    def needed_firmware(self) -> FirmwareSet:
        """Return the images; look for them first if a warm start did not need them. ORDER: they
        must be found before the chip is reset."""
        self.find_firmware()
        assert self.firmware is not None
        return self.firmware

    def make_fresh(self, stages: Stages) -> None:
        """See BareCard. ORDER: places for images are found before the tables are written."""
        firmware = self.needed_firmware()
        kinds = [kind for _, _, kind in self.chip.generation.boot_components]
        self.units.psp.stage.arrange(firmware.boot.get(kind, b"") for kind in kinds)
        boot.make_fresh(self.units, stages)

    def cold_boot(self, stages: Stages) -> None:
        """See BareCard."""
        self.generation.cold_boot(self.units, self.needed_firmware(), stages)

    def after_reset(self) -> None:
        """See BareCard."""
        self.units.smu.stuck = False
        self.rest.forget()
        self.power.after_reset()
        contact.read_discovery(self.chip)

    def boot_again(self) -> None:
        """See BareCard."""
        super().boot_again()
        self.units.programs.end()
        self.power.apply_again()

    def after_power_loss(self) -> None:
        """See BareCard."""
        boot.after_power_loss(self.units)
        contact.read_discovery(self.chip)

    def note_in_use(self) -> None:
        """See BareCard."""
        self.units.programs.leave(partial(boot.mark, self.chip, boot.IN_USE))

    def note_left(self) -> None:
        """See BareCard."""
        boot.mark(self.chip, boot.LEFT_CLEAN)

    # ---- interrupts and presence -------------------------------------------------------------

    def drain(self) -> None:
        """Take the entries from the interrupt ring and distribute them to the holders."""
        ih = self._ih
        overflows, entries = ih.overflows, ih.drain()
        if not entries:
            return
        for holder in self.holders:
            if self.shared:
                holder.reports += [entry for entry in entries if _concerns(entry, holder)]
            else:
                holder.reports += entries
            holder.missed = holder.missed or ih.overflows != overflows
        for entry in entries if self.shared else ():
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
        if isinstance(self.units.programs, CardPrograms):
            return False
        return bool(seat.vmid) and self.transport.traits.host_memory

    def free_seat(self) -> Seat:
        """Return a seat for one more holder; OutOfMemory if there is none. The lock is held."""
        index = self.free_index()
        self._pasid = self._pasid % _PASIDS + 1
        return Seat.of_tenant(index, self._pasid)

    def open_context(self, holder: Holder) -> None:
        """Activate a holder's page tables, and the PASID of a tenant."""
        seat = holder.seat
        if holder.is_tenant:
            self.units.ih.name(seat.vmid, seat.pasid)
            self.units.gfx.open_vmid(seat.vmid)
        self.units.gmc.open_context(seat.vmid, holder.memory.root_entry)

    def close_context(self, holder: Holder) -> None:
        """See BareCard."""
        if not holder.is_tenant and not holder.has_own_memory:
            for mapping in holder.memory.mappings.values():
                if mapping is not self.firmware_mapping:
                    holder.memory.unmap(mapping)
            self.units.gmc.flush_tlb()
            return
        self.units.gmc.close_context(holder.seat.vmid, flush=not self.chip.lost())
        if holder.is_tenant:
            self.units.ih.name(holder.seat.vmid, 0)

    # ---- leaving -----------------------------------------------------------------------------

    def stop(self, *, clean: bool) -> None:
        """See BareCard. Restores the power limit, by a reset if the SMU refuses."""
        super().stop(clean=clean and (not self.leave_warm or self.power.restore()))

    def quiet(self) -> None:
        """See BareCard."""
        boot.stop(self.units)

    def reset_at_end(self) -> None:
        """See BareCard."""
        if self.units.psp.alive():
            boot.mode1_reset(self.units)

    def close_units(self) -> None:
        """See BareCard."""
        self.units.close()


def _concerns(entry: Interrupt, holder: Holder) -> bool:
    """Return whether this holder has to explain an interrupt entry."""
    seat = holder.seat
    if entry.client in WHOLE_CARD:
        return False
    if not entry.vmid or entry.mmhub:
        return True
    return entry.vmid == seat.vmid and seat.pasid in (0, entry.pasid)
