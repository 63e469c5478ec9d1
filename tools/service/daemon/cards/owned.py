"""One device that the daemon owns: opened, checked between leases, recovered, closed."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.device.observe import Sampler
from ugpu.hcq.errors import ChipError, Closed, HostError, UgpuError
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.ci import health
from ugpu.tools.service.daemon.cards.apart import ApartDriver, Processes
from ugpu.tools.service.daemon.cards.cleaning import clean, overwrite_commands
from ugpu.tools.service.daemon.clients.handout import Handout, Place, chip_of
from ugpu.tools.service.daemon.clients.holder import Holder
from ugpu.tools.service.daemon.clients.incidents import Incidents
from ugpu.tools.service.daemon.clients.leases import Card
from ugpu.tools.service.daemon.clients.service import Answers, Lent, Service, Terms
from ugpu.tools.service.daemon.config import DeviceSettings
from ugpu.virtual.amd.chip import Chip

log = logging.getLogger(__name__)

CHECK_SIZE = 1 << 16
# TIMEOUT: of the check of a working device; the virtual devices translate nothing for copies
CHECK_LIMIT_S = 20.0
_SERIALS = ("serial", "uuid", "unique_id", "bridge_serial")
_MEMORY_FACTS = ("memory_bytes", "vram_bytes", "vram", "memory")


class Owned:
    """A device and its card in the table. Only one thread at a time calls the methods."""

    def __init__(
        self, settings: DeviceSettings, name: str, opener: Callable[..., Device] = hcq.open
    ) -> None:
        """opener: as hcq.open."""
        self.settings = settings
        self.gone = False  # from the bus, while it is booted or recovered
        self._opener = opener
        self._sampler: tuple[Device, Sampler] | None = None
        self._sampling = threading.Lock()
        labels = tuple(label for label in (settings.label, settings.name) if label)
        self.card = Card(name, labels, settings.memory)
        self.device: Device | None = None
        self._chip: Chip | None = None
        self._handout: Handout | None = None
        self._processes: Processes | None = None
        self.serial = ""  # of the card, if it reports one
        self.lock = threading.Lock()
        self.exhausted: Callable[[], None] = lambda: None  # called if no memory is left

    def boot(self) -> None:
        """Open the device, closing it first if it is open; UgpuError if it cannot be opened."""
        device, self.device = self.device, None
        if device is not None:
            device.close()
        self._chip = self._chip or chip_of(self.settings.name, self.settings.options)
        self.card.transport = self._chip is not None
        device = self._open()
        target = device.target
        facts = device.info()
        self.serial = next((str(facts[name]) for name in _SERIALS if facts.get(name)), "")
        names = (self.settings.label, self.settings.name, target.name, target.cpu)
        self.card.labels = tuple(dict.fromkeys(label for label in names if label))
        if not self.card.memory:
            self.card.memory = _memory_of(device)
        if self.apart and self._processes is None:
            self._processes = Processes(self.settings, self.name, self.card.memory)
        if self.card.unclean:
            self._clean()  # attaching to a running card overwrites nothing

    def _clean(self) -> None:
        clean(self._opened())
        overwrite_commands(self._opened())
        self.card.unclean = ""

    def _open(self) -> Device:
        options = dict(self.settings.options)
        if self._chip is not None:
            options = {"chip": self._chip}
        device = self._opener(self.settings.name, **options)
        try:
            if self.settings.power_limit_w:
                device.power_limit_w = self.settings.power_limit_w
            self._check(device)
        except BaseException:
            device.close()
            raise
        self.device = device
        alone = "" if device.driver.opens_elsewhere else device.driver.sole_holder()
        self.card.alone = alone or ("" if self.settings.shares else "its shares are set to 0")
        most = device.driver.most_tenants
        shares = self.settings.shares if most is None else min(most, self.settings.shares)
        self.card.shares = 0 if self.card.alone else shares
        return device

    @property
    def apart(self) -> bool:
        """Return whether each lease gets a process of its own: its kernels would run in ugpud's."""
        driver = self._opened().driver
        return driver.opens_elsewhere and bool(driver.sole_holder()) and not self.settings.inside

    # ---- leases with queues --------------------------------------------------------------------

    def hold(self, terms: Terms, answers: Answers) -> Lent:
        """Give a lease the device. A shared lease, and one whose kernels run in the driver's
        process, gets a tenant of it. From any thread. `end` undoes it."""
        tenant = terms.shared or self.apart
        device = self._open_tenant(terms) if tenant else self._opened()
        try:
            incidents = Incidents(self.name, terms.number, terms.holder)
            holder = Holder(device, terms.memory, answers.notify, incidents, tenant=tenant)
            return Service(holder, answers, terms, self.exhausted)
        except BaseException:
            if tenant:
                device.close()
            raise

    def _open_tenant(self, terms: Terms) -> Device:
        """Open the device for one of several holders, or in a process of its own."""
        own = self._opened()
        if self._processes is not None:
            tenant = self._processes.take()
        else:
            tenant = Device(own.driver.open_tenant(f"{self.name} lease {terms.number}"))
        tenant.limit_s = own.limit_s
        return tenant

    def end(self, lent: Lent, drain_s: float) -> str:
        """End a lease's work and free its resources, when no request of it is carried out any more.
        Return why its data may still be on the device; empty: it is overwritten. UgpuError if the
        device needs recovery."""
        assert isinstance(lent, Service)
        holder, unclean = lent.holder, ""
        drained = holder.close(drain_s)
        if isinstance(holder.device.driver, ApartDriver):
            holder.device.driver.process.kill()  # nothing is left of what it had
            holder.free_all()
            return ""
        there = not self.gone and (holder.tenant or self.device is holder.device)
        try:
            if not drained and there:
                holder.device.reset()
            if holder.loaded and there:
                clean(holder.device)
            if there:
                overwrite_commands(holder.device)
        except UgpuError as error:
            if not holder.tenant:
                raise
            # Closing the tenant ends its work too. The card is cleaned when its other holders are
            # gone.
            log.warning("%s: %s", holder.device.name, error)
            unclean = f"not cleaned after {holder.device.name}: {error}"
        holder.free_all()
        return unclean

    def interrupt(self, lent: Lent, reason: str) -> None:
        """Stop a lease's work, which a request of its client waits for. reason: why the lease is
        over, which the client has been told. UgpuError."""
        assert isinstance(lent, Service)
        driver = lent.device.driver
        if isinstance(driver, ApartDriver):
            driver.process.kill()
        else:
            lent.device.reset()

    # ---- handing out the chip ------------------------------------------------------------------

    def hand_out(self, parent: Path, name: str, user: int) -> Place:
        """Hand the chip to a driver of the holder. The daemon's driver releases it first. For the
        arguments see Handout."""
        assert self._chip is not None
        device, self.device = self.device, None
        if device is not None:
            device.close()
        self._handout = Handout(self._chip, parent, name, user)
        return Place(self._handout.socket, self._handout.firmware)

    def take_back(self) -> None:
        """Take the chip back and check that it works. Idempotent. UgpuError if it does not work."""
        handout, self._handout = self._handout, None
        if handout is not None:
            handout.close()
        if self.device is None:
            self._open()
        if handout is not None:
            clean(self._opened())

    def check(self, repair: bool) -> None:
        """Check that the device works before it is leased again. If it does not, or if `repair` is
        set, reset it first. UgpuError if that does not help."""
        device = self.device
        assert device is not None
        if not repair:
            try:
                self._check(device)
                return
            except UgpuError as error:
                log.warning("%s: does not work after a lease, resetting: %s", self.card.name, error)
        device.reset()
        self._check(device)

    def works(self) -> bool:
        """Return whether the device is open and copies correctly."""
        try:
            self._check(self._opened())
            return True
        except UgpuError as error:
            log.info("%s: %s", self.name, error)
        except Exception:  # a bug: the card is booted again, and ugpud continues
            log.exception("%s: its check failed", self.name)
        return False

    @property
    def can_rest(self) -> bool:
        """Return whether the device is open and `rest` has an effect. From any thread."""
        device = self.device
        return device is not None and not device.closed and device.can_rest

    @property
    def resting(self) -> bool:
        """Return whether the device rests. From any thread."""
        device = self.device
        return device is not None and not device.closed and device.resting

    def rest(self) -> bool:
        """Let the device rest until the next lease or until another access wakes it. Return False
        if it has work or is not open. UgpuError on failure."""
        device = self.device
        if device is None:
            return False
        core = device.driver.core
        with core.lock:
            core.check_usable()
            return device.driver.begin_rest()

    def wake(self) -> None:
        """End the device's rest before a lease. Idempotent. From any thread. UgpuError on
        failure."""
        device = self.device
        if device is not None and device.resting:
            device.wake()

    # ---- facts: from any thread ----------------------------------------------------------------

    def target(self) -> tuple[TargetSpec, float]:
        """Return the device's target, and the frequency of its time stamps."""
        device = self._opened()
        return device.target, device.clock_hertz

    @property
    def warm(self) -> bool:
        """Return whether the driver attached to a card that was running."""
        return bool(getattr(self._opened().driver, "warm", False))

    def info(self) -> dict[str, object]:
        """Return the device's facts."""
        return self._opened().info()

    def sensors(self) -> list[list[object]]:
        """Return name, unit, label and value of each sensor."""
        return [[s.name, s.unit, s.label, s.read()] for s in self._opened().sensors()]

    def firmware_states(self) -> object:
        """Return the states of the firmware as JSON has them, None if the driver has none."""
        driver = self._opened().driver
        with driver.core.lock:
            parts = driver.evidence(ChipError("the page shows its state")).parts
        return json.loads(parts["states.json"]) if "states.json" in parts else None

    def telemetry(self) -> bytes:
        """Return a line of JSON (hcq.state.telemetry); Closed if the device is not open. From any
        thread."""
        device = self._opened()
        with self._sampling:
            if self._sampler is None or self._sampler[0] is not device:
                launches = None if self._processes is None else self._processes.launches
                core = device.driver.core
                self._sampler = device, Sampler(core, beside=launches or int)
            return self._sampler[1].answer()

    # ---- recovery: see Patient -----------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def is_open(self) -> bool:
        return self.device is not None

    def reset(self, to: Level | None) -> Level:
        """See Patient."""
        return self._opened().reset(None if to is None else to.label).level

    def harsher(self, than: Level) -> list[Level]:
        """See Patient."""
        driver = self._opened().driver
        with driver.core.lock:
            _, planned = driver.recovery_plan()
        levels = (rung.level for rung in planned if not rung.refusal)
        return list(dict.fromkeys(level for level in levels if level > than))

    def reopen(self) -> None:
        """See Patient."""
        handout, self._handout = self._handout, None
        if handout is not None:
            handout.close()
        self.boot()

    def prove(self) -> None:
        """See Patient. Data that kernels of leases left is overwritten first."""
        self._clean()
        tested = health.check(self._opened())
        if not tested:
            raise ChipError(f"{self.name} fails its self-test: {tested.trouble}")

    def _opened(self) -> Device:
        if self.device is None:
            raise Closed(f"{self.name} is not open")
        return self.device

    def close(self) -> None:
        """Close the device. Idempotent."""
        handout, self._handout = self._handout, None
        if handout is not None:
            handout.close()
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()
        device, self.device = self.device, None
        if device is not None:
            device.close()
        chip, self._chip = self._chip, None
        if chip is not None:
            chip.close()

    def _check(self, device: Device) -> None:
        """Copy a pattern with each queue, and compare."""
        pattern = np.random.default_rng(CHECK_SIZE).integers(0, 256, CHECK_SIZE, np.uint8)
        with device.alloc(CHECK_SIZE) as source, device.alloc(CHECK_SIZE) as copy:
            source.copy_from(pattern)
            for kind in QueueKind:
                copy.fill(0)
                queue = device.queue(kind).copy(copy, source)
                queue.timeline.wait(queue.submit(), limit_s=CHECK_LIMIT_S)
                copied = copy.numpy()
                if not np.array_equal(copied, pattern):
                    wrong = int(np.count_nonzero(copied != pattern))
                    raise ChipError(
                        f"{self.card.name}: a copy by {queue.hardware.name} is wrong", bytes=wrong
                    )


def _memory_of(device: Device) -> int:
    facts = device.info()
    for name in _MEMORY_FACTS:
        value = facts.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise HostError(
        f"{device.name} does not report its memory", remedy="set memory in its [[device]]"
    )
