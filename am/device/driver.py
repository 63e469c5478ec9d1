"""AmDriver: an AMD GPU driven bare metal through a transport. See hcq.device.driver.

This file contains the device's life and the methods that hcq calls. Blocks are driven elsewhere;
boot.py and reset.py define in which order.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import SEATS, Seat
from ugpu.am.device.card import Card
from ugpu.am.failure import reset
from ugpu.am.failure.report import Reporter
from ugpu.am.units.faults import HubFault
from ugpu.am.units.gfx import PRIVATE_BASE, SHARED_BASE
from ugpu.am.units.ih import Interrupt
from ugpu.am.units.smu.sensors import Metrics, make_sensors
from ugpu.am.units.smu.smu import version_text
from ugpu.am.work import proof, scrub
from ugpu.am.work.bridge_memory import OutsideMemory
from ugpu.am.work.cleaner import Cleaner
from ugpu.am.work.holder import Holder
from ugpu.am.work.image import HostImage
from ugpu.am.work.programs import Programs
from ugpu.am.work.queues import Queues
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.errors import ChipError, DeviceLost, LinkError, NotSupported, UgpuError
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level, Planned
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.target import TargetSpec, matrix_family
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.life import absence_of
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence

log = logging.getLogger(__name__)

PRESENCE_INTERVAL_S = 0.02
# A card that was unplugged sends no interrupt: each waiter must poll. Our choice: half of the 100
# ms within which every waiter notices it.
LONGEST_SLEEP_S = 0.05
SHARED_SLEEP_S = 0.002  # where other holders wait for interrupts too


class AmDriver(Holder):
    """One GPU."""

    card: Card

    def __init__(
        self, name: str, card: Card, seat: Seat, stages: Stages, *, force_cold: bool = False
    ) -> None:
        """The first holder of a card starts it. force_cold: from scratch."""
        super().__init__(name, card.lock)
        self.card = card
        self.transport, self.clock = card.transport, card.transport.clock
        self.facts, self.generation, self.units = card.facts, card.generation, card.units
        self.stages = stages
        self.seat = seat
        self.images: weakref.WeakSet[HostImage] = weakref.WeakSet()  # those that lie in VRAM
        self.vram_lost = False  # whether the last reset lost the content of DEVICE memory
        self.spoiled = False  # a reset by another holder lost it
        self.reset_report: list[Attempt] = []  # rungs that the last reset tried
        self.unfinished: Level | None = None  # the harshest rung of a reset that did not end
        self.reports: list[Interrupt] = []  # entries taken from the ring and not explained yet
        self.missed = False  # entries were lost because the ring was full
        self.failures: list[UgpuError] = []  # of the whole card, not reported yet
        self.latched: list[HubFault] = []  # faults of this holder that another holder found
        self.clock_hertz = self.facts.generation.clock_hertz
        # Bytes of stack per thread for recursion and calls through pointers, in programs loaded
        # from now on. As in HIP by default (hipLimitStackSize).
        self.dynamic_stack = 1024
        self.queues = Queues(self)
        self.outside = OutsideMemory(self)
        self.cleaner = Cleaner(self)
        self._looked_at = 0.0
        if card.recorded:
            self.core.keeper.folder = None  # a recording contains everything
        self.memory: AddressSpace = card.units.memory
        try:
            card.holders.append(self)
            if card.divides_memory(seat):
                self.memory = self._make_memory()
            if not self.is_tenant:
                if self.has_own_memory:
                    card.units.gmc.open_context(seat.vmid, self.memory.root_entry)
                card.start(force_cold=force_cold)
                card.target = self._make_target()
            self._bring_up()
        except BaseException as error:
            if isinstance(error, UgpuError):
                self.core.keeper.keep(error, self.evidence)
            if self.is_tenant:
                self.shutdown()
            else:
                self._abandon(at_rest=False)
            raise
        self.core.opened()

    # ---- life --------------------------------------------------------------------------------

    @property
    def chip(self) -> Chip:
        return self.units.chip

    @property
    def vmid(self) -> int:
        """The VMID of all work of this holder."""
        return self.seat.vmid

    @property
    def is_tenant(self) -> bool:
        """Return whether the driver shares a card that another holder has booted."""
        return self.seat.index > 0

    @property
    def has_own_memory(self) -> bool:
        """Return whether its page tables are its own, and not those of the card's firmware."""
        return self.memory is not self.units.memory

    @property
    def warm(self) -> bool:
        """Return whether the driver attached to a running card."""
        return self.card.warm

    def _make_memory(self) -> AddressSpace:
        """Make an address space apart from that of the card's firmware. The first holder's space is
        written when the card starts."""
        made = self.units.memory.sibling(self)
        if self.is_tenant:
            made.own()
        return made

    def _bring_up(self) -> None:
        if self.is_tenant:
            self.card.open_context(self)
        self.target = self.card.target
        self.queues.make()
        # Starting queues by the host's own accesses only writes, which does not show a lost card.
        if not self.starts_by_list and self.chip.lost():
            raise DeviceLost("the card does not respond", **absence_of(self.transport))
        self.metrics = Metrics(self.units.smu, self.core.lock, self.clock.now)
        self.reporter = Reporter(self)
        self.programs = Programs(self)
        if self.warm and not self.is_tenant:
            self._check_warm()

    @property
    def starts_by_list(self) -> bool:
        """Return whether a register list starts the queues: the MEC was just booted, and each
        access from the host is a message."""
        return self.units.lists is not None and not self.warm

    def _check_warm(self) -> None:
        """Check that every queue of a chip that was taken over executes work; reset the chip if one
        does not."""
        try:
            proof.signals(self, self.queues.all)
        except ChipError as error:
            log.warning("%s: a warm attach is not possible: %s", self.name, error)
            reset.recover(self)
            self.vram_lost = False  # nothing was in it yet

    def _make_target(self) -> TargetSpec:
        facts, shared = self.facts, self.facts.generation
        return TargetSpec(
            name=facts.isa,
            abi="amdhsa",
            triple="amdgcn-amd-amdhsa",
            cpu=facts.isa,
            wave_size=shared.wave_size,
            max_threads_per_group=shared.max_threads_per_group,
            local_memory=shared.local_memory,
            dynamic_local_memory=shared.local_memory,
            compute_units=self.units.gfx.compute_units(),
            vector_bytes=16,
            matrix=matrix_family(facts.isa),
            extra={"shared_base": SHARED_BASE << 48, "private_base": PRIVATE_BASE << 48},
        )

    # ---- rest --------------------------------------------------------------------------------

    @property
    def rests(self) -> bool:
        """See Driver. False for a recording, which has the accesses of a card that works."""
        return self.card.rest.able and not self.card.recorded

    @property
    def at_rest(self) -> bool:
        return self.card.rest.resting

    def begin_rest(self) -> bool:
        """See Driver and am.device.rest."""
        return self.rests and self.card.rest.begin()

    def end_rest(self) -> None:
        self.card.rest.end()

    # ---- several holders ---------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Return whether no other holder has work on the card."""
        return self.card.is_alone(self)

    most_tenants = SEATS - 1

    def sole_holder(self) -> str:
        return self.card.sole_holder()

    def open_tenant(self, name: str) -> AmDriver:
        """See Driver. A tenant has a VMID, page tables, hardware queues and doorbells of its own;
        the card is shared."""
        card = self.card
        with card.lock:
            reason = self.sole_holder()
            if reason:
                raise NotSupported(f"{self.name} cannot have a second holder: {reason}")
            self.core.check_usable()
            before = [*card.holders]
            try:
                return AmDriver(name, card, card.free_seat(), Stages())
            except BaseException:  # even one raised after the constructor
                for holder in card.holders[len(before) :]:
                    holder.core.close()
                raise

    # ---- the end -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        at_rest = False
        try:
            at_rest = self._stop_hardware()
        except (LinkError, UgpuError) as error:
            log.warning("%s: while shutting down: %s", self.name, error)
        except BaseException:  # a Ctrl-C: where others hold the card, this is called again
            if self.card.holders == [self]:
                self._abandon(at_rest)
            raise
        self._abandon(at_rest)

    def _stop_hardware(self) -> bool:
        """Switch the queues off and, with the last holder, make this process's memory unreachable.
        Firmware stays up, unless the card is not to be left warm. Returns whether the queues are
        off."""
        units, clean, alone = self.units, self.core.failure is None, self.alone
        if self.chip.lost():
            if clean:
                raise DeviceLost("the card does not respond", **absence_of(self.transport))
            return False
        booted = units.psp.alive() and units.gfx.loaded()  # otherwise a reset was interrupted
        off = True
        for compute in self.queues.compute if booted else ():
            if not self.queues.drain(compute):
                clean = self.queues.kill(compute)
                off = off and clean
        for copy in self.queues.copy if booted else ():
            if not self.queues.drain(copy):
                clean = False
                off = off and not alone and self.queues.kill(copy)
        if self.card.holders == [self]:
            self.card.stop(clean=clean and alone and booted)
        return off

    def _abandon(self, at_rest: bool) -> None:
        """Release host resources; works in any state. at_rest: the queues are off."""
        card = self.card
        for queue in self.queues.all:
            queue.close()
        if card.holders in ([], [self]):
            card.close()
        else:
            card.leave(self, at_rest)
        if self in card.holders:
            card.holders.remove(self)

    def free_memory_of_holder(self) -> None:
        """Return all memory to the card; the hardware no longer accesses it. Can be repeated."""
        if self.has_own_memory:
            self.memory.close()
        elif not self.is_tenant:  # a tenant's was not made
            self.memory.clear(keep=self.units.ih.memory)
        self.units.memory.heap.free_all(self)

    def recover(self, only: Level | None = None) -> Recovery:
        return reset.recover(self, only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return reset.plan(self, only)

    # ---- memory ------------------------------------------------------------------------------

    def map(self, size: int, placement: Placement, *, code: bool = False) -> Mapping:
        """Allocate and map memory for the driver's own use."""
        return self.memory.allocate(size, placement, code=code)

    def unmap(self, mapping: Mapping) -> None:
        """Unmap and free; the TLBs are flushed before another user gets the memory."""
        self.memory.unmap(mapping)
        failure = self.core.failure
        if failure is None or not (self.alone or isinstance(failure, LinkError)):
            self.flush_tlb()
        self.memory.release(mapping)

    def flush_tlb(self) -> None:
        """Flush the TLBs after changes for this driver's work. The firmware's memory in VMID 0 was
        mapped at the start."""
        if self.has_own_memory:
            self.units.gmc.flush_holder(self.seat.vmid)
        else:
            self.units.gmc.extend(self.memory.end)
            self.units.gmc.flush_tlb((self.seat.vmid,))
        self.memory.stale = False

    def wrap(self, mapping: Mapping) -> Buffer:
        """Return a buffer over a mapping."""
        view = mapping.view if mapping.placement is Placement.HOST else None
        return Buffer(
            self.core, mapping.address, mapping.size, mapping.placement, view, handle=mapping
        )

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        mapping = None
        try:
            mapping = self.map(size, placement)
            scrub.behind(mapping, size)
            view = mapping.view[:size] if placement is Placement.HOST else None
            address = VirtAddr(mapping.address)
            return Buffer(self.core, address, size, placement, view, handle=mapping)
        except BaseException:
            if mapping is not None:
                self.unmap(mapping)
            raise

    def make_transfer(self) -> Transfer:
        traits = self.transport.traits
        if traits.bulk is not None:
            return self.outside.transfer(traits.bulk)
        if traits.staged is not None:
            return self.outside.staged(traits.staged)
        return super().make_transfer()

    def nudge(self) -> None:
        """See Driver."""
        if not self.transport.traits.host_memory:
            self.units.nbio.post_hdp()

    def free_memory(self, buffer: Buffer) -> None:
        mapping = buffer.handle
        assert isinstance(mapping, Mapping)
        buffer.view = buffer.remote = None
        self.programs.forget(mapping)
        self.unmap(mapping)

    def load_program(self, image: bytes) -> Program:
        return self.programs.load(image)

    def clean(self) -> tuple[Timeline, int]:
        """See Driver and am.work.cleaner."""
        return self.cleaner.submit()

    # ---- queues and failures -----------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self.queues.of(kind)

    def poll(self) -> UgpuError | None:
        ended = [(queue, queue.ended) for queue in self.queues.compute]
        self.card.drain()
        if self.failures:
            return self.failures.pop(0)
        while self.reports:
            failure = self.reporter.explain(self.reports[0])
            del self.reports[0]
            if failure is not None:
                return failure
        if self.missed or self.latched:
            self.missed = False
            failure = self.reporter.latched()
            if failure is not None:
                return failure  # its entry was lost
        for queue, number in ended:
            queue.innocent = number  # their reports were in the ring
        now = self.clock.now()
        if now - self._looked_at > PRESENCE_INTERVAL_S:
            self._looked_at = now
            return self.card.absent()
        return None

    @property
    def announces(self) -> bool:
        return self.transport.interrupts is not None and len(self.card.holders) == 1

    def pause(self, limit_s: float) -> None:
        interrupts = self.transport.interrupts
        if interrupts is None:
            self.clock.sleep(min(limit_s, 1e-4))
        else:
            # RACE: a thread that waits for another holder's work may take the interrupt in between.
            longest = LONGEST_SLEEP_S if len(self.card.holders) == 1 else SHARED_SLEEP_S
            interrupts.wait(min(limit_s, longest))

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return self.reporter.diagnose(timeline)

    def evidence(self, error: UgpuError) -> Evidence:
        from ugpu.am.failure.evidence import gather  # a device that works does not need it

        return gather(self, error)

    # ---- identity and sensors of the chip --------------------------------------------------------

    def sensors(self) -> Sequence[Sensor]:
        told = self.units.thermal.announcements
        return (
            Sensor("memory_used_bytes", "B", lambda: float(self.memory.used)),
            Sensor("memory_total_bytes", "B", lambda: float(self.chip.vram.size)),
            *make_sensors(self.metrics),
            Sensor("throttle_events", "events", lambda: float(told.throttlings)),
            Sensor("fan_abnormal", "flag", lambda: float(told.fan_abnormal)),
            Sensor("resting", "flag", lambda: float(self.at_rest), "gfx"),
            *self.transport.sensors(),
        )

    def clock_levels(self) -> dict[str, tuple[float, float]]:
        with self.core.lock:
            return {"gfx": self.units.smu.levels("GFXCLK")}

    def info(self) -> dict[str, object]:
        identity = self.transport.identity
        firmware = self.card.firmware.versions if self.card.firmware is not None else {}
        return {
            "chip": self.facts.name,
            "isa": self.facts.isa,
            "pci_id": str(identity),
            "transport": self.transport.name,
            "compute_units": self.target.compute_units,
            "vram_bytes": self.chip.vram.size,
            "vram_visible_bytes": self.chip.vram.visible,
            "smu_firmware": version_text(self.units.smu.version),
            "firmware": {name: f"{version:#x}" for name, version in firmware.items()},
            "start": "warm" if self.warm else "cold",
            "copy_engines": len(self.queues.copy),
            **self.transport.facts(),
        }
