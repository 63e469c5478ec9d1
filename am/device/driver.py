"""AmDriver: an AMD GPU driven bare metal through a transport. See hcq.device.driver.

This file contains the device's life and the methods that hcq calls. Blocks are driven elsewhere;
boot.py and reset.py define in which order.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.am.chip.placement import SEATS, Seat
from ugpu.am.device.card import Card
from ugpu.am.failure import reset
from ugpu.am.failure.report import Reporter
from ugpu.am.units.faults import HubFault
from ugpu.am.units.ih import Interrupt
from ugpu.am.units.smu.sensors import Metrics, make_sensors
from ugpu.am.units.smu.smu import version_text
from ugpu.am.work import proof
from ugpu.am.work.bridge_memory import OutsideMemory
from ugpu.am.work.cleaner import Cleaner
from ugpu.am.work.holder import Holder
from ugpu.am.work.image import HostImage
from ugpu.am.work.programs import Programs
from ugpu.am.work.queue import RingQueue
from ugpu.am.work.queues import Queues
from ugpu.am.work.target import target_of
from ugpu.hcq.bare import rungs
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.errors import ChipError, DeviceLost, FirmwareError, NotSupported, UgpuError
from ugpu.hcq.state.ladder import Diagnosis, Level, Planned
from ugpu.hcq.state.telemetry import PowerLimit, Sensor
from ugpu.hcq.transport.life import absence_of
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence

log = logging.getLogger(__name__)

PRESENCE_INTERVAL_S = 0.02


class AmDriver(Holder):
    """One GPU."""

    card: Card

    def __init__(
        self, name: str, card: Card, seat: Seat, stages: Stages, *, force_cold: bool = False
    ) -> None:
        """The first holder of a card starts it. force_cold: from scratch."""
        super().__init__(name, card)
        self.facts, self.generation, self.units = card.facts, card.generation, card.units
        self.stages = stages
        self.seat = seat
        self.images: weakref.WeakSet[HostImage] = weakref.WeakSet()
        self.reports: list[Interrupt] = []
        self.missed = False
        self.latched: list[HubFault] = []
        self.clock_hertz = self.facts.generation.clock_hertz
        # In programs loaded from now on. As in HIP by default (hipLimitStackSize).
        self.dynamic_stack = 1024
        self.queues = Queues(self)
        self.outside = OutsideMemory(self)
        self.cleaner = Cleaner(self)
        self._looked_at = 0.0
        if card.recorded:
            self.core.keeper.folder = None  # a recording contains everything
        self.open(force_cold=force_cold)

    # ---- life --------------------------------------------------------------------------------

    @property
    def divides_memory(self) -> bool:
        return self.card.divides_memory(self.seat)

    def bring_up(self) -> None:
        """See BareHolder."""
        if not self.is_tenant:
            self.card.target = target_of(self.facts, self.units.gfx.compute_units())
        self.target = self.card.target
        # Starting queues by the host's own accesses only writes, which does not show a lost card.
        if not self.queues.make() and self.chip.lost():
            raise DeviceLost("the card does not respond", **absence_of(self.transport))
        self.metrics = Metrics(self.units.smu, self.core.lock, self.clock.now)
        self.reporter = Reporter(self)
        self.programs = Programs(self)
        if self.warm and not self.is_tenant:
            self._check_warm()
            if self.card.died_at_rest:  # otherwise the card was reset
                self._end_left_limit()

    def _end_left_limit(self) -> None:
        """Restore the board's power limit, which a process that died may have changed; by a reset
        if the SMU refuses."""
        try:
            self.card.power.restore_usual()
        except (ChipError, FirmwareError) as error:
            log.warning("%s: the power limit is not restored: %s", self.name, error)
            self.recover(Level.MODE1)
            self.vram_lost = False  # nothing was in it yet

    def _check_warm(self) -> None:
        """Check that every queue of a chip that was taken over executes work; reset the chip if one
        does not."""
        try:
            proof.signals(self, self.queues.all)
        except ChipError as error:
            log.warning("%s: a warm attach is not possible: %s", self.name, error)
            self.recover()
            self.vram_lost = False  # nothing was in it yet

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

    # ---- several holders, and the end --------------------------------------------------------

    most_tenants = SEATS - 1

    def sole_holder(self) -> str:
        return self.card.sole_holder()

    def make_tenant(self, name: str) -> AmDriver:
        """See BareHolder. A tenant has a VMID, page tables, hardware queues and doorbells of its
        own."""
        return AmDriver(name, self.card, self.card.free_seat(), Stages())

    def stop_queues(self, clean: bool) -> tuple[bool, bool]:
        """See BareHolder."""
        units, alone, off = self.units, self.alone, True
        if not (units.psp.alive() and units.gfx.loaded()):  # a reset was interrupted
            return True, False
        for compute in self.queues.compute:
            if not self.queues.drain(compute):
                clean = self.queues.kill(compute)
                off = off and clean
        for copy in self.queues.copy:
            if not self.queues.drain(copy):
                clean = False
                off = off and not alone and self.queues.kill(copy)
        return off, clean

    def close_queues(self) -> None:
        """See BareHolder."""
        for queue in self.queues.all:
            queue.close()

    def rewrite(self) -> None:
        """See BareHolder: programs and images."""
        self.programs.rewrite()
        for image in list(self.images):
            image.rewrite()

    def recover(self, only: Level | None = None) -> Recovery:
        return rungs.recover(reset.AmRungs(self), only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return rungs.plan(reset.AmRungs(self), only)

    # ---- memory ------------------------------------------------------------------------------

    def flush_tlb(self) -> None:
        """Flush the TLBs after changes for this driver's work. The firmware's memory in VMID 0 was
        mapped at the start."""
        if self.has_own_memory:
            self.units.gmc.flush_holder(self.seat.vmid)
        else:
            self.units.gmc.extend(self.memory.end)
            self.units.gmc.flush_tlb((self.seat.vmid,))
        self.memory.stale = False

    def make_transfer(self) -> Transfer:
        traits = self.transport.traits
        if traits.bulk is not None:
            return self.outside.transfer(traits.bulk)
        if traits.staged is not None:
            return self.outside.staged(traits.staged)
        return super().make_transfer()

    def notify_memory_written(self) -> None:
        """See Driver."""
        if not self.transport.traits.host_memory:
            self.units.nbio.post_hdp()

    def forget(self, mapping: Mapping) -> None:
        self.programs.forget(mapping)

    def load_program(self, image: bytes) -> Program:
        return self.programs.load(image)

    def clean(self) -> tuple[Timeline, int]:
        """See Driver and am.work.cleaner."""
        return self.cleaner.submit()

    # ---- queues and failures -----------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self.queues.compute if kind is QueueKind.COMPUTE else self.queues.copy

    def all_queues(self) -> Sequence[RingQueue]:
        return self.queues.all

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
            *self._power_sensors(),
            Sensor("throttle_events", "events", lambda: float(told.throttlings)),
            Sensor("fan_abnormal", "flag", lambda: float(told.fan_abnormal)),
            Sensor("resting", "flag", lambda: float(self.at_rest), "gfx"),
            *self.transport.sensors(),
        )

    def _power_sensors(self) -> Sequence[Sensor]:
        if self.card.recorded:  # recordings made before it have no answer
            return ()
        return (Sensor("power_limit_watts", "W", self._power_watts, "socket"),)

    def _power_watts(self) -> float:
        with self.core.lock:
            return float(self.card.power.watts())

    def power_limit(self) -> PowerLimit:
        """See Driver."""
        with self.core.lock:
            return self.card.power.limit()

    def set_power_limit(self, watts: float, *, keep: bool = False) -> None:
        """See Driver. NotSupported for a tenant."""
        if self.is_tenant:
            raise NotSupported(f"{self.name}: the holder that opened the card first limits it")
        with self.core.lock:
            self.card.power.set(watts, keep=keep)

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
