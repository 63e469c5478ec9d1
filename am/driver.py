"""AmDriver: an AMD GPU driven bare metal through a transport. See hcq.driver.

This file holds the device's life and what hcq calls; blocks are driven elsewhere, and in
which order in boot.py and reset.py.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from am import advice, boot, chips, proof, reset
from am.chip import ALL_ONES, Chip
from am.chips.facts import ChipFacts
from am.firmware import FirmwareSet, FirmwareSource, load_firmware
from am.generations.record import generation_of
from am.gfx import PRIVATE_BASE, SHARED_BASE
from am.ih import Interrupt
from am.image import HostImage
from am.memory import AddressSpace, Mapping
from am.outside import OutsideMemory
from am.programs import Programs
from am.queues import Queues
from am.report import Reporter
from am.sensors import Metrics, make_sensors
from am.smu import version_text
from am.units import Units
from hcq.buffer import Buffer
from hcq.driver import Driver
from hcq.errors import (
    ChipError,
    DeviceLost,
    DeviceNotFound,
    FirmwareError,
    LinkError,
    UgpuError,
)
from hcq.ladder import Attempt, Diagnosis, Level, Planned, Recovery
from hcq.memory import Placement, VirtAddr
from hcq.program import Program
from hcq.queue import HardwareQueue, QueueKind
from hcq.registry import Attachment
from hcq.target import TargetSpec, matrix_family
from hcq.telemetry import Sensor
from hcq.timeline import Timeline
from hcq.transfer import Transfer
from hcq.transport.life import absence_of

if TYPE_CHECKING:
    from hcq.bundle import Evidence

log = logging.getLogger(__name__)

_NOBODY = 0xFFFF  # the vendor id that configuration space without a function reads as
PRESENCE_INTERVAL_S = 0.02
# A card that was pulled out sends no interrupt: each waiter must look again. Our choice: half of
# the 100 ms within which every waiter learns of it.
LONGEST_SLEEP_S = 0.05


def find_facts(vendor: int, device: int) -> ChipFacts:
    """Return the facts of the chip with this PCI id: one folder of am/chips has them."""
    found = chips.find(vendor, device)
    if vendor == _NOBODY:
        raise DeviceLost("the card is no longer on the bus", remedy=advice.LINK)
    if found is None:
        raise DeviceNotFound(f"PCI id {vendor:04x}:{device:04x} is not a supported chip")
    return found


class AmDriver(Driver):
    """One GPU."""

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        firmware: FirmwareSource,
        *,
        stages: boot.Stages,
        leave_warm: bool,
        force_cold: bool,
        vmid: int,
    ) -> None:
        super().__init__(name)
        self.transport = attachment.transport
        self.clock = self.transport.clock
        identity = self.transport.identity
        try:
            self.facts = find_facts(identity.vendor, identity.device)
        except BaseException:
            self.transport.close()
            raise
        self.generation = generation_of(self.facts.generation)
        self.firmware_source = firmware
        self.firmware: FirmwareSet | None = None
        self.stages = stages
        self.leave_warm = leave_warm
        self.vmid = vmid
        self.warm = False
        self.images: weakref.WeakSet[HostImage] = weakref.WeakSet()  # those that lie in VRAM
        self.vram_lost = False  # whether the last reset cost the content of DEVICE memory
        self.reset_report: list[Attempt] = []  # rungs that the last reset tried
        self.unfinished: Level | None = None  # the harshest rung of a reset that did not end
        self.reports: list[Interrupt] = []  # entries taken from the ring and not explained yet
        self.clock_hertz = self.facts.generation.clock_hertz
        self.queues = Queues(self)
        self.outside = OutsideMemory(self)
        self._looked_at = 0.0
        try:
            self.units: Units = boot.prepare(
                self.transport, self.facts, self.generation.units, stages
            )
        except BaseException:
            self.transport.close()
            raise
        if attachment.on_image is not None or not self.transport.traits.any_order:
            self.core.keeper.folder = None  # a recording has it all
        try:
            self._bring_up(force_cold)
        except BaseException as error:
            if isinstance(error, UgpuError):
                self.core.keeper.keep(error, self.evidence)
            self._abandon()
            raise
        self.core.opened()

    # ---- life --------------------------------------------------------------------------------

    @property
    def chip(self) -> Chip:
        return self.units.chip

    @property
    def memory(self) -> AddressSpace:
        return self.units.memory

    def _bring_up(self, force_cold: bool) -> None:
        try:
            self._start_chip(force_cold)
        except DeviceLost as error:
            if not self.transport.present():
                raise
            # A process that died may have asked for a reset of the chip, which begins only now.
            log.warning("%s: %s: waiting for the end of a reset", self.name, error)
            boot.after_power_loss(self.units)
            boot.read_discovery(self.chip)
            self._start_chip(force_cold=True)
        units = self.units
        boot.mark(units.chip, boot.IN_USE)
        self.target = self._make_target()
        self.queues.make()
        # What starts queues by the host's own accesses only writes.
        if not self.starts_by_list and units.chip.lost():
            raise DeviceLost("the card does not respond", **absence_of(self.transport))
        self.metrics = Metrics(units.smu, self.core.lock, self.clock.now)
        self.reporter = Reporter(self)
        self.programs = Programs(self)
        if self.warm:
            self._check_warm()

    @property
    def starts_by_list(self) -> bool:
        """Whether a list of registers starts the queues: the MEC was just booted, and each access
        from here is a message."""
        return self.units.lists is not None and not self.warm

    def _start_chip(self, force_cold: bool) -> None:
        """Take the chip over warm, or boot it."""
        units, stages = self.units, self.stages
        self.warm = not force_cold and boot.is_warm(units.chip, units) and self._attach()
        if not self.warm:
            with stages.stage("firmware images"):
                self.firmware = load_firmware(self.firmware_source, self.facts)
            boot.make_fresh(units, stages)
            units.memory.own()
            try:
                self.generation.cold_boot(units, self.firmware, stages)
            except FirmwareError as error:
                if not error.facts.get("resumed_after"):
                    raise
                # The boot before noted a component and was cut off before it handed it over.
                log.warning("%s: a boot that was cut off does not go on: %s", self.name, error)
                boot.make_fresh(units, stages)
                units.memory.own()
                self.generation.cold_boot(units, self.firmware, stages)

    def _check_warm(self) -> None:
        """Have every queue of a chip that was taken over execute something; reset it if one does
        not."""
        try:
            proof.signals(self, self.queues.all)
        except ChipError as error:
            log.warning("%s: not as warm as it looked: %s", self.name, error)
            reset.recover(self)
            self.vram_lost = False  # nothing was in it yet

    def _attach(self) -> bool:
        """Attach to the chip of an earlier ugpu process; False if the chip does not do what a warm
        one should."""
        self.units.memory.own()
        try:
            self.generation.warm_attach(self.units, self.stages)
        except ChipError as error:
            log.warning("%s: not as warm as it looked: %s", self.name, error)
            return False
        return True

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

    def sole_holder(self) -> str:
        return "its driver runs all queues in one VMID, hence in one address space"

    def shutdown(self) -> None:
        try:
            self._stop_hardware()
        except (LinkError, UgpuError) as error:
            log.warning("%s: while shutting down: %s", self.name, error)
        finally:
            self._abandon()

    def _stop_hardware(self) -> None:
        """Queues off, this process's memory unreachable; firmware stays, unless it is to go."""
        units, clean = self.units, self.core.failure is None
        if self.chip.lost():
            if clean:
                raise DeviceLost("the card does not respond", **absence_of(self.transport))
            return
        booted = units.psp.alive() and units.gfx.loaded()  # else a reset was cut off
        for compute in self.queues.compute if booted else ():
            stopped = units.gfx.stop_queue(compute.pipe, compute.queue)
            if not stopped:
                clean = units.gfx.stop_queue(compute.pipe, compute.queue, reset_waves=True)
        for copy in self.queues.copy if booted else ():
            clean = copy.engine.stop() and clean
        leave = self.leave_warm and clean and booted
        if leave:
            boot.mark(self.chip, boot.LEFT_CLEAN)
        boot.stop(units)
        if not leave and units.psp.alive():
            boot.mode1_reset(units)
        boot.disable_master(self.transport)

    def _abandon(self) -> None:
        """Release host resources; works in any state."""
        for queue in self.queues.all:
            queue.close()
        self.units.close()
        self.chip.link.restore()
        self.transport.close()

    def recover(self, only: Level | None = None) -> Recovery:
        return reset.recover(self, only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return reset.plan(self, only)

    # ---- memory ------------------------------------------------------------------------------

    def map(self, size: int, placement: Placement, *, code: bool = False) -> Mapping:
        """Allocate and map memory for the driver's own use."""
        return self.memory.allocate(size, placement, code=code)

    def unmap(self, mapping: Mapping) -> None:
        """Unmap and free; the TLBs forget it before anyone else gets the memory."""
        self.memory.unmap(mapping)
        if self.core.failure is None:
            self.flush_tlb()
        self.memory.release(mapping)

    def flush_tlb(self) -> None:
        """After changes for this driver's work; what firmware uses in VMID 0 was mapped at the
        start."""
        self.units.gmc.flush_tlb((self.vmid,))
        self.memory.stale = False

    def wrap(self, mapping: Mapping) -> Buffer:
        """A buffer over a mapping."""
        view = mapping.view if mapping.placement is Placement.HOST else None
        return Buffer(
            self.core, mapping.address, mapping.size, mapping.placement, view, handle=mapping
        )

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        mapping = None
        try:
            mapping = self.map(size, placement)
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

    # ---- queues and failures -----------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self.queues.of(kind)

    def poll(self) -> UgpuError | None:
        ended = [(queue, queue.ended) for queue in self.queues.compute]
        overflows = self.units.ih.overflows
        self.reports += self.units.ih.drain()
        while self.reports:
            failure = self.reporter.explain(self.reports[0])
            del self.reports[0]
            if failure is not None:
                return failure
        if self.units.ih.overflows != overflows and (failure := self.reporter.latched()):
            return failure  # its entry was lost
        for queue, number in ended:
            queue.innocent = number  # what they reported was in the ring
        now = self.clock.now()
        if now - self._looked_at > PRESENCE_INTERVAL_S:
            self._looked_at = now
            return self._absent()
        return None

    def _absent(self) -> UgpuError | None:
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

    @property
    def announces(self) -> bool:
        return self.transport.interrupts is not None

    def pause(self, limit_s: float) -> None:
        interrupts = self.transport.interrupts
        if interrupts is None:
            self.clock.sleep(min(limit_s, 1e-4))
        else:
            interrupts.wait(min(limit_s, LONGEST_SLEEP_S))

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return self.reporter.diagnose(timeline)

    def evidence(self, error: UgpuError) -> Evidence:
        from am.evidence import gather  # a device that works does not need it

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
            *self.transport.sensors(),
        )

    def info(self) -> dict[str, object]:
        identity = self.transport.identity
        firmware = self.firmware.versions if self.firmware is not None else {}
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
