"""The driver interface: the code between `hcq.Device`, the user's object, and one GPU.

A driver accesses memory, loads programs, submits to queues and detects failures on one kind of
device. `hcq.device.core.Core` implements everything that is the same for all devices: order of
submissions, waits and their limits, failure handling, graphs, staging copies, and freeing memory
that work may still access. The core calls the driver; users call `hcq.Device`, which calls the
core.

    Device  (user's object)  ->  Core  (one per device)  ->  Driver  (am, nv, cpu, ...)

Life: `__init__` brings the device up and ends with `self.core.opened()`. If it fails, it releases
what it has acquired and raises. The user then gets `hcq.Device(driver)`, or a subclass with what is
specific to the vendor. `shutdown` is called once at the end, also after failures.

Ownership: buffers and programs made by a driver belong to the caller. The core passes their memory
to `free_memory` once no work can access it. Memory that the driver allocates for itself (rings,
fences, images) belongs to the driver, and `shutdown` frees it. A driver owns the transport or node
that it was given.

Threads: the core holds `core.lock` (reentrant) while it calls a driver, except where a method notes
"without the lock". A driver's own threads take that lock before they touch shared state.

Errors: every method may raise LinkError (DeviceLost, ...) if the connection to the device is
broken, and ChipError or FirmwareError if the device itself refuses. An error that `poll` returns,
and a LinkError that it raises, becomes the device's failure until `reset`. BadArgument,
BadCodeObject, NotSupported and OutOfMemory blame the request and leave the device unchanged. An
exception (such as Ctrl-C) may occur at any point of a method: `shutdown` must then find everything
done up to that point, and repeating the call must be safe where a method requires it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.device.core import Core
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.ladder import Diagnosis, Level, Planned
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.state.telemetry import PowerLimit
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.recovery import Recovery

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence
    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.state.target import TargetSpec
    from ugpu.hcq.state.telemetry import Sensor
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.program import Program
    from ugpu.hcq.work.queue import HardwareQueue
    from ugpu.hcq.work.timeline import Timeline

_KINDS = tuple(QueueKind)  # iterating over an enum is slow


class Driver(ABC):
    """One device and its driver. Subclasses implement the abstract methods; the others have
    defaults.

    Attributes:
        name: as users gave it to `hcq.open`.
        target: the properties that a compiler needs.
        clock_hertz: rate of the ticks that Queue.timestamp writes.
        clock: time and wait limits, the transport's if there is one.
        core: the device-independent part, which the driver needs for the objects that it makes
            (buffers, timelines) and queries (`core.failure`, `core.limit_s`,
            `core.check_failures`).
        counts_work: whether the compiler states the work of its kernels (Program.work).
        foresees: whether `foresee` prepares anything; then kernels that are compiled at once are
            loaded when all are compiled.
        kernels: a folder of compiled kernels from the owner of the device (hcq.disk.cache).
    """

    target: TargetSpec
    clock_hertz: float
    clock: Clock
    counts_work = False
    foresees = False
    kernels: Path | None = None

    def __init__(self, name: str, lock: threading.RLock | None = None) -> None:
        """lock: the hardware's, if several drivers share it; otherwise the core makes its own."""
        self.name = name
        self.clock = Clock()
        self.core = Core(self, lock)

    # ---- memory and programs -----------------------------------------------------------------

    @abstractmethod
    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        """Allocate and map `size` bytes (at least; 256-byte aligned), content undefined.

        A buffer with HOST placement has `access`: a `view` if this process can access the memory
        directly, otherwise `remote`. A buffer with DEVICE placement lies in the memory that is
        fastest for the device, and has no `access`. Raises OutOfMemory when the memory is
        exhausted.
        """

    @abstractmethod
    def free_memory(self, buffer: Buffer) -> None:
        """Unmap and release a buffer of `allocate_memory`, or a program's; no work can access it.

        The core calls it again after an exception, and perhaps after it has returned; a repeated
        call must not affect other memory. After a failure that a reset has not fixed, the buffer
        may lie in memory that a reset device no longer maps.
        """

    @abstractmethod
    def load_program(self, image: bytes) -> Program:
        """Check a code object and place it in memory. Raises BadCodeObject with the defect."""

    def foresee(self, images: Sequence[bytes]) -> None:
        """Prepare code objects that will be loaded next, where that is faster for all at once. A
        hint: does not report defects."""
        return

    # ---- queues ------------------------------------------------------------------------------

    @abstractmethod
    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        """Return the queues of a kind, at least one, always in the same order.

        The objects live as long as the device: a reset gives them new hardware queues. Cheap;
        called without the lock.
        """

    def all_queues(self) -> Sequence[HardwareQueue]:
        """Return all queues, compute queues first. Cheap; called without the lock, for every
        wait."""
        return [queue for kind in _KINDS for queue in self.hardware_queues(kind)]

    def prefetch_wake(self) -> None:
        """Note that work that takes a while is about to be submitted, so that sleeping hardware can
        wake meanwhile. A hint: called at any time, without the lock; does nothing on a closed
        device."""
        return

    def notify_memory_written(self) -> None:
        """Make the queues check memory that they may wait for: the host has written to it. Called
        without the lock. Does nothing for hardware that polls memory."""
        return

    # ---- waiting -----------------------------------------------------------------------------

    @abstractmethod
    def pause(self, limit_s: float) -> None:
        """Block until something may have happened (an interrupt), at most about `limit_s`; may
        return early, or immediately. Called without the lock, by several threads at a time."""

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        """Block until `timeline` reaches `value`, or for a while, at most `limit_s`. Otherwise like
        `pause`."""
        self.pause(min(1e-3, limit_s))

    @property
    def announces(self) -> bool:
        """Return whether `pause` ends as soon as something happens on any queue (an interrupt), so
        that a thread may enter it before work is submitted without missing an event."""
        return False

    def is_idle_fast(self) -> bool:
        """Return whether all queues are idle and no failure was reported: a shortcut for
        Device.synchronize, which may wait for a while, and does not call `flush_output` after True.
        Return False if this is unknown, or if the device is closed meanwhile; the core then takes
        the full path. Called without the lock; takes no other lock and raises nothing."""
        return False

    def flush_output(self) -> None:
        """Pass on what kernels left for their user (printf), after Device.synchronize has waited
        for work. Called without the lock."""
        return

    # ---- copies ------------------------------------------------------------------------------

    def write_memory(self, buffer: Buffer, data: memoryview) -> bool:
        """Store bytes at the start of a buffer, if the host can do so itself; all queues are idle.
        Return False if it cannot: the core then copies through staging buffers. Called without the
        lock."""
        return False

    def read_memory(self, buffer: Buffer, out: memoryview) -> bool:
        """Load bytes from the start of a buffer; otherwise like `write_memory`."""
        return False

    def memory_view(self, buffer: Buffer) -> memoryview | None:
        """Return a buffer's bytes, if the host can access them itself; else None."""
        return buffer.view

    @property
    def reads_host_memory(self) -> bool:
        """Whether kernels can access any memory of this process, see `host_buffer`."""
        return False

    def host_buffer(self, address: int, view: memoryview) -> Buffer:
        """Return memory of this process as a buffer, which keeps the view and does not own the
        memory; only for a device that `reads_host_memory`. address: of the view's bytes."""
        raise NotSupported(f"{self.core.name} cannot access memory of this process")

    def reach_memory(self, buffer: Buffer) -> Buffer | None:
        """Return a buffer of another device as one of this device, if queues of this device can
        access that memory themselves (a peer); else None. The result does not own the memory."""
        return None

    def make_transfer(self) -> Transfer:
        """Make the object that copies between buffers and this process, on first use; the core owns
        it. Override for staging memory that `allocate_memory` does not provide."""
        return Transfer(self.core)

    # ---- failures ----------------------------------------------------------------------------

    @abstractmethod
    def poll(self) -> UgpuError | None:
        """Look for failures that the device has reported (drain interrupts, read error words) and
        return the first. Cheap, never blocks; a waiting thread calls it each time it polls."""

    @abstractmethod
    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        """Return facts for the error that reports that `timeline` does not reach `value`: the
        queue's state, and reports of firmware and waves. `cause`, if it is known, becomes part of
        the error's text. Must not raise, even if the device does not respond."""

    def evidence(self, error: UgpuError) -> Evidence:
        """Return the device's evidence of a failure, for a bundle (hcq.disk.bundle): parts
        available within 0.3 s, even if the device is gone. Called before a reset; must not
        raise."""
        from ugpu.hcq.disk.bundle import Evidence  # a working device does not need it

        return Evidence()

    @abstractmethod
    def recover(self, only: Level | None = None) -> Recovery | None:
        """Recover the hardware after `core.failure`, by the mildest rung of the driver's ladder
        (hcq.state.ladder) that can help and works. only: use the rungs of that level, and no other.

        Afterwards the queues in `Recovery.restarted` (all, if None) are empty and run; work in
        flight on any other queue continues. Programs stay loaded. Buffers keep their addresses, and
        keep their content where the chip kept its memory. Raises if the device cannot be recovered:
        it stays failed, and `recover` may be tried again, also after an exception that occurred at
        any point of it. The core restarts the timelines of the queues, and finds the buffers that
        lost their content.
        """

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        """Return what `recover` would do now, and why; changes nothing that work depends on."""
        reason = str(self.core.failure or "no failure is known")
        return Diagnosis(Level.QUEUE, reason), []

    # ---- life --------------------------------------------------------------------------------

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the hardware and release everything, in any state, even if the device is lost or its
        opening failed. A step that fails does not keep the others from being stopped and freed."""

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
        rests: False if a queue of any holder has work. Does nothing in this class.

        The driver wakes the device before any request that needs these parts; callers need not.
        Memory keeps its content, and sensors are read without waking it. An exception at any point
        leaves the device at rest or ready for work, and both calls can be repeated.
        """
        return False

    def end_rest(self) -> None:
        """End the rest now, so that the next request does not have to; idempotent. If the device
        does not come back, raises the reason, and reports it as the device's failure."""
        return

    # ---- several holders ---------------------------------------------------------------------

    most_tenants: int | None = None  # open at a time; None: limited by memory only

    def sole_holder(self) -> str:
        """Return why a second holder cannot have its own queues and address space beside this one,
        as a clause for an error; empty if `open_tenant` works. Called without the lock."""
        return "its driver has one address space for all work"

    @property
    def opens_elsewhere(self) -> bool:
        """Return whether another process can open the same device beside this one, with memory that
        kernels of this one cannot access. Called without the lock."""
        return False

    def open_tenant(self, name: str) -> Driver:
        """Open the same device for another holder: a driver with its own queues, memory, address
        space and failures. Its kernels cannot access memory of this driver, of other tenants or of
        this process. A failure of its work ends no work of others.

        The caller wraps it in a Device and closes that. The two may be closed in any order, except
        that a virtual device ends with the driver that opened it. NotSupported if `sole_holder`
        returns a reason. Called without the lock.
        """
        raise NotSupported(f"{self.name} cannot have a second holder: {self.sole_holder()}")

    def check_second(self) -> None:
        """Raise NotSupported if `sole_holder` returns a reason."""
        reason = self.sole_holder()
        if reason:
            raise NotSupported(f"{self.name} cannot have a second holder: {reason}")

    def clean(self) -> tuple[Timeline, int] | None:
        """Overwrite what kernels left in registers, local memory, scratch and memory that they
        allocated, after all work submitted so far; waits at most for the copy of its own code.
        Return a timeline and the value that it has afterwards; None if the driver cannot do this.
        The lock is held. Raises OutOfMemory if no queue has room."""
        return None

    def overwrite_commands(self) -> None:
        """Overwrite what ended submissions left in memory that the driver keeps: arguments,
        constants, values of fills and copied data in rings, images and staging memory. Memory that
        the driver frees is overwritten before it is mapped for another holder. The lock is held;
        may wait for the queues to report the end of work that has ended."""
        for hardware in self.all_queues():
            hardware.overwrite()

    @property
    def clean_gap(self) -> str:
        """Return what the last `clean`, which has ended, did not overwrite, and why; empty if
        nothing. Called without the lock."""
        return ""

    # ---- facts -------------------------------------------------------------------------------

    @abstractmethod
    def info(self) -> dict[str, object]:
        """Return facts about the device for display and for --json: chip, memory, firmware, link.
        Called without the lock."""

    def sensors(self) -> Sequence[Sensor]:
        """Return the device's sensors; each is read when requested. Called without the lock."""
        return ()

    def clock_levels(self) -> Mapping[str, tuple[float, float]]:
        """Return the lowest and the highest level, in Hz, of clocks that the device manages, by the
        labels of their sensors ("gfx"). Empty if the driver cannot query them. Called without the
        lock; raises what other requests to the device's firmware raise."""
        return {}

    # ---- power limit -------------------------------------------------------------------------

    no_power_limit = "its driver has no control for it"  # why `set_power_limit` is not supported

    def power_limit(self) -> PowerLimit:
        """Return the power limit, with the board's range if it is known. Called without the lock.
        NotSupported if the device reports none; else raises what requests to it raise."""
        for sensor in self.sensors():
            if sensor.name == "power_limit_watts":
                return PowerLimit(sensor.read())
        raise NotSupported(f"{self.name} reports no power limit")

    def set_power_limit(self, watts: float, *, keep: bool = False) -> None:
        """Set the power limit until the device is closed; then the one before applies again. A
        reset keeps it. keep: leave it on the card at the end, until the card is reset. Called
        without the lock. BadArgument with the board's range; FirmwareError if the device refuses,
        NotSupported if it cannot be set."""
        raise NotSupported(f"{self.name}: the power limit cannot be set: {self.no_power_limit}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
