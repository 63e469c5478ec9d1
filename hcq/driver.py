"""The driver interface: what stands between `hcq.Device`, which users hold, and one GPU.

A driver knows how to reach memory, load programs, feed queues and look for failures on one kind of
device. Everything that is the same for all devices (order of submissions, waits and their limits,
what happens after a failure, graphs, staging copies, memory that is let go of while work may still
reach it) is `hcq.core.Core`, which calls the driver; users call `hcq.Device`, which calls the core.

    Device  (user's object)  ->  Core  (one per device)  ->  Driver  (am, nv, cpu, ...)

Life: `__init__` brings the device up and ends with `self.core.opened()`; where it fails it releases
what it has acquired and raises. Then `hcq.Device(driver)`, or a subclass of it with what users of
this vendor need besides, is handed out. `shutdown` is called once at the end, also after failures.

Ownership: buffers and programs that a driver makes belong to the caller; their memory comes back
through `free_memory` when no work can reach it any more. What the driver needs itself (rings,
fences, images) is its own and goes in `shutdown`. A driver owns the transport or node that it was
given.

Threads: the core holds `core.lock` (reentrant) while it calls a driver, except where a method says
"without the lock". A driver's own threads take that lock before they touch shared state.

Errors: every method may raise LinkError (DeviceLost, ...) where the way to the device is broken,
and ChipError or FirmwareError where the device itself refuses. What `poll` returns, and a LinkError
that it raises, becomes the device's failure until `reset`. BadArgument, BadCodeObject, NotSupported
and OutOfMemory blame the request and leave the device as it was. An exception may come at any point
of a method (a Ctrl-C, say): what has been done by then must be found by `shutdown`, and repeating
the call must be safe where a method says so.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hcq.clock import Clock
from hcq.core import Core
from hcq.errors import NotSupported
from hcq.ladder import Diagnosis, Level, Planned, Recovery
from hcq.memory import Placement
from hcq.queue import QueueKind
from hcq.transfer import Transfer

if TYPE_CHECKING:
    from hcq.buffer import Buffer
    from hcq.bundle import Evidence
    from hcq.errors import UgpuError
    from hcq.program import Program
    from hcq.queue import HardwareQueue
    from hcq.target import TargetSpec
    from hcq.telemetry import Sensor
    from hcq.timeline import Timeline

_KINDS = tuple(QueueKind)  # an enum is slow to go through


class Driver(ABC):
    """One device, driven. Subclasses implement the abstract methods; the others have defaults.

    name: as users gave it to `hcq.open`. target: what the compiler must know. clock_hertz: rate of
    the ticks that Queue.timestamp writes. clock: time and patience, the transport's where there is
    one. core: the device-independent part, for what a driver makes (buffers, timelines) and asks
    (`core.failure`, `core.limit_s`, `core.check_failures`).
    """

    target: TargetSpec
    clock_hertz: float
    clock: Clock

    def __init__(self, name: str, lock: threading.RLock | None = None) -> None:
        """lock: of the hardware, where several drivers share it; else the core has its own."""
        self.name = name
        self.clock = Clock()
        self.core = Core(self, lock)

    # ---- memory and programs -----------------------------------------------------------------

    @abstractmethod
    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        """Allocate and map `size` bytes (at least; 256-byte aligned), content undefined.

        HOST placement has `access`: a `view` where this process reaches the memory itself, else
        `remote`. DEVICE placement lies where the device is fastest, and has none. OutOfMemory when
        used up.
        """

    @abstractmethod
    def free_memory(self, buffer: Buffer) -> None:
        """Unmap and release a buffer of `allocate_memory`, or a program's; no work can reach it.

        Called again after an exception, and perhaps after it has returned: what has been done is
        not done to other memory. After a failure that a reset has not mended it may be called for
        memory that a reset device no longer maps.
        """

    @abstractmethod
    def load_program(self, image: bytes) -> Program:
        """Check a code object and place it in memory. BadCodeObject names what is wrong with it."""

    # ---- queues ------------------------------------------------------------------------------

    @abstractmethod
    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        """The queues of a kind, at least one each, always in the same order.

        The objects last as long as the device: a reset puts new hardware queues behind them.
        Cheap; called without the lock.
        """

    def all_queues(self) -> Sequence[HardwareQueue]:
        """All queues, compute queues first. Cheap; called without the lock, for every wait."""
        return [queue for kind in _KINDS for queue in self.hardware_queues(kind)]

    def expect(self) -> None:
        """Something that takes a while is about to be submitted: what sleeps may wake meanwhile.
        A hint, without the lock, at any time; does nothing on a closed device."""
        return

    def nudge(self) -> None:
        """The host has written to memory that a queue may wait for: see to it that it looks.
        Without the lock. Hardware that polls memory needs nothing."""
        return

    # ---- waiting -----------------------------------------------------------------------------

    @abstractmethod
    def pause(self, limit_s: float) -> None:
        """Block until something may have happened (an interrupt), at most about `limit_s`; may
        return early, and at once. Without the lock, several threads at a time."""

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        """Block until `timeline` has reached `value`, or for a while, at most `limit_s`. As
        `pause`."""
        self.pause(min(1e-3, limit_s))

    @property
    def announces(self) -> bool:
        """Return whether `pause` ends as soon as something happens on any queue (an interrupt), so
        that a thread may be in it before work is submitted, and misses nothing."""
        return False

    def settled(self) -> bool:
        """Return whether all queues are idle and no failure was reported: a shortcut for
        Device.synchronize, which may wait for a while, and does not call `synchronized` after a
        True. False where that is not known, or the device is closed meanwhile; the core then goes
        the long way. Without the lock; takes no other one and raises nothing."""
        return False

    def synchronized(self) -> None:
        """Work was waited for, by Device.synchronize: hand on what kernels left for their user
        (printf). Without the lock."""
        return

    # ---- copies ------------------------------------------------------------------------------

    def write_memory(self, buffer: Buffer, data: memoryview) -> bool:
        """Store bytes at the start of a buffer, where the host can do so itself; all queues are
        idle. False where it cannot: the core copies through staging buffers. Without the lock."""
        return False

    def read_memory(self, buffer: Buffer, out: memoryview) -> bool:
        """Load bytes from the start of a buffer; otherwise as `write_memory`."""
        return False

    def make_transfer(self) -> Transfer:
        """Make what copies through staging buffers, when it is first needed; the core owns it.
        Override for staging memory that `allocate_memory` does not give."""
        return Transfer(self.core)

    # ---- failures ----------------------------------------------------------------------------

    @abstractmethod
    def poll(self) -> UgpuError | None:
        """Look for failures that the device has reported (drain interrupts, read error words) and
        return the first. Cheap, never blocks; called at every look of those who wait."""

    @abstractmethod
    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        """Facts for the error that reports that `timeline` does not reach `value`: what the queue
        is at, what firmware and waves say. Must not raise for a device that answers nothing."""

    def evidence(self, error: UgpuError) -> Evidence:
        """Return the device's evidence of a failure, for a bundle (hcq.bundle): parts available
        within 0.3 s, also if the device is gone. Called before a reset; must not raise.
        """
        from hcq.bundle import Evidence  # a device that works does not need it

        return Evidence()

    @abstractmethod
    def recover(self, only: Level | None = None) -> Recovery | None:
        """Bring the hardware back after `core.failure`, by the mildest rung of the driver's ladder
        (hcq.ladder) that can help and works; only: by the rungs of that level, and no other.

        Afterwards the queues in `Recovery.restarted` (all, for None) are empty and run; work in
        flight on any other one goes on. Programs stay loaded, and buffers keep their addresses,
        and their content where the chip kept its memory. Raises where the device cannot be brought
        back: it stays failed, and `recover` may be tried again, also after an exception that came
        at any point of it. The core restarts the timelines of the queues, and finds the buffers
        that lost their content.
        """

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        """Return what `recover` would do now, and why; changes nothing that work depends on."""
        reason = str(self.core.failure or "no failure is known")
        return Diagnosis(Level.QUEUE, reason), []

    # ---- life --------------------------------------------------------------------------------

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the hardware and release everything, in any state, also of a device that is lost or
        whose opening failed. All that can be stopped and freed is, whatever fails on the way."""

    # ---- rest --------------------------------------------------------------------------------

    @property
    def rests(self) -> bool:
        """Return whether `begin_rest` has an effect. Without the lock."""
        return False

    @property
    def at_rest(self) -> bool:
        """Return whether the device rests. Without the lock."""
        return False

    def begin_rest(self) -> bool:
        """Let parts of an idle device lose clocks or power until they are needed; return whether it
        rests: False where a queue of any holder has work. Does nothing in this class.

        Whatever needs these parts wakes the device first, in the driver: callers need not. Memory
        keeps its content, and sensors are read without waking it. An exception at any point leaves
        the device at rest or ready for work, and both calls can be repeated.
        """
        return False

    def end_rest(self) -> None:
        """End the rest, so that the next request need not; idempotent. Raises, and reports as a
        failure of the device, what keeps it from coming back."""
        return

    # ---- several holders ---------------------------------------------------------------------

    most_tenants: int | None = None  # that can be open at a time; None: as many as have memory

    def sole_holder(self) -> str:
        """Return why a second holder cannot have queues and an address space of its own beside this
        one's, as a clause for an error; empty where `open_tenant` can. Without the lock."""
        return "its driver has one address space for all work"

    @property
    def opens_elsewhere(self) -> bool:
        """Return whether another process can open the same device beside this one, with memory that
        kernels of this one do not reach. Without the lock."""
        return False

    def open_tenant(self, name: str) -> Driver:
        """Open the same device for another holder: a driver with queues, memory, an address space
        and failures of its own. Its kernels reach no memory of this driver's or of other tenants',
        and nothing of this process's; what fails in its work ends no work of others.

        The caller wraps it in a Device and closes that; the order in which it and this one are
        closed does not matter, except that a virtual device ends with the driver that it was opened
        by. NotSupported where `sole_holder` has a reason. Without the lock.
        """
        raise NotSupported(f"{self.name} cannot have a second holder: {self.sole_holder()}")

    def clean(self) -> tuple[Timeline, int] | None:
        """Overwrite what kernels left in registers, local memory, scratch and memory that they
        allocated, behind all work that was submitted; waits at most for its own code's copy.
        Returns a timeline and the value it has afterwards; None where the driver has no means to do
        it. The lock is held. OutOfMemory where no queue has room."""
        return None

    @property
    def clean_gap(self) -> str:
        """What the last `clean`, which has ended, did not overwrite, and why; empty if nothing.
        Without the lock."""
        return ""

    # ---- facts -------------------------------------------------------------------------------

    @abstractmethod
    def info(self) -> dict[str, object]:
        """Facts of the device for people and for --json: chip, memory, firmware, link. Without the
        lock."""

    def sensors(self) -> Sequence[Sensor]:
        """Return the device's sensors; each is read when requested. Called without the lock."""
        return ()

    def clock_levels(self) -> Mapping[str, tuple[float, float]]:
        """Return the lowest and the highest level, in Hz, of clocks that the device manages, by the
        labels of their sensors ("gfx"). Empty where the driver cannot ask. Without the lock; raises
        as other requests to the device's firmware do."""
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
