"""Core: what is the same for all devices, between `hcq.Device` above and a driver below.

It keeps the order of submissions, waits with limits, remembers failures, and frees memory when no
work can access it. Buffers, programs, queues, timelines and graphs refer to it; users hold
`hcq.Device`. Thread-safe: one lock serialises submissions.

A failure reported by the hardware (ChipError, LinkError, FirmwareError) is raised in every waiting
thread and kept in `failure`: every later submission raises it again, until `reset` recovers the
device. A device that is not closed is kept until the process ends (hcq.life).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hcq import trace
from hcq.buffer import Buffer
from hcq.checks import WORD, seconds, whole
from hcq.closing import Closing
from hcq.command import (
    Command,
    CommandBuffer,
    Part,
    Signal,
    Symbol,
    check_open,
    uses,
    values_of,
)
from hcq.copies import Copies
from hcq.crash import Keeper, evidence
from hcq.errors import (
    BadArgument,
    ChipError,
    Closed,
    DeviceHang,
    FirmwareError,
    LinkError,
    UgpuError,
)
from hcq.follow import Followers
from hcq.graph import CAPTURED, Capture, Replay
from hcq.ladder import Level, Recovery
from hcq.memory import Placement
from hcq.objectkind import load_program
from hcq.program import Program
from hcq.queue import HardwareQueue, Resident
from hcq.recovery import Healer
from hcq.retired import Retired
from hcq.templates import encode_submission, launches_of
from hcq.timeline import Timeline

if TYPE_CHECKING:
    from hcq.device import Device
    from hcq.driver import Driver
    from hcq.observe import Observer

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 1.0  # in one call of a driver: system calls limit the size of time-outs


def core_of(device: Device) -> Core:
    """Return a device's core, for code that prepares work once and submits it many times, such as
    the compiler's runtime."""
    return device._core


class Core(Closing):
    """The device-independent part of one device. See hcq.driver for how the parts fit together.

    In a forked child, and while another thread is in `close`, methods that need the device raise
    Closed.

    driver: the driver that it calls. device: the user's object. limit_s: how long a wait may take
    if its caller gives no limit (seconds, by the driver's clock). last_failure: the failure handled
    by the last `reset`. resets: number of resets. keeper: writes the first failure's bundle.
    healer: resets the device. copies: copies between its memory and this process. replaying: a
    replay that has begun, see `complete`. launches: kernels submitted so far. errors: failures so
    far, by class. observer: serves telemetry, if enabled (hcq.observe). explainers: return further
    facts for a failure, from modules that know more about its kernel; must not raise.
    """

    device: Device
    limit_s: float = 30.0

    def __init__(self, driver: Driver, lock: threading.RLock | None = None) -> None:
        super().__init__(driver.name, lock)
        self.driver = driver
        self.last_failure: UgpuError | None = None
        self.resets = 0
        self.launches = 0
        self.errors: dict[str, int] = {}
        self.observer: Observer | None = None
        self.keeper = Keeper(driver.name)
        self.healer = Healer(self)
        self.capturing: Capture | None = None
        self.replaying: Replay | None = None
        self.graphs: weakref.WeakSet[Capture] = weakref.WeakSet()
        self.programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
        self.followers = Followers(self)
        self.retired = Retired(self)
        self.copies = Copies(self)
        self.explainers: list[Callable[[UgpuError], Mapping[str, object]]] = []

    # ---- memory and programs -----------------------------------------------------------------

    def alloc(self, size: int, *, placement: Placement = Placement.DEVICE) -> Buffer:
        """Allocate a buffer; its content is undefined. Owned by the caller."""
        size = whole("size", size, 0, WORD)
        if not isinstance(placement, Placement):
            raise BadArgument(f"placement must be a Placement, got {placement!r}")
        return self.own(lambda: self.driver.allocate_memory(size, placement))

    def own(self, make: Callable[[], Buffer]) -> Buffer:
        """Make a buffer that is freed like those of `alloc`; `make` runs under the lock."""
        made: list[Buffer] = []
        try:
            with self.lock:
                self.check_usable()
                self.retired.collect()
                made.append(make())
            made[0].retired = self.retired
            self.healer.buffers.add(made[0])
            return made[0]
        except BaseException:  # also between the two
            for buffer in made:
                buffer.close()
            raise

    def free(self, buffer: Buffer) -> None:
        """Wait for work in flight, then release; called by Buffer.close. Does not raise failures
        that the device reports meanwhile: they are kept for threads that wait for the work."""
        self.retired.closing.append(buffer)  # a later call frees it if this is interrupted
        buffer.closed = True
        self.settle()
        with self.lock:
            if self.closed:
                return
            if buffer in self.retired.closing:
                self.retired.finish(buffer)
            self.retired.collect()

    def load(self, image: bytes) -> Program:
        """Load a code object of this device's target; the program contains its kernels by name."""
        if not isinstance(image, bytes | bytearray | memoryview):
            raise BadArgument(f"image must be bytes, got {type(image).__name__}")
        made: list[Program] = []
        try:
            with self.lock:
                self.check_usable()
                self.retired.collect()
                made.append(load_program(self.driver, bytes(image)))
            self.programs[id(made[0])] = made[0]
            if made[0].memory is not None:
                made[0].memory.retired = self.retired
            return made[0]
        except BaseException:  # also between the two
            for program in made:
                program.close()
            raise

    # ---- submissions -------------------------------------------------------------------------

    def capture(self) -> Capture:
        """Start a graph; it records between entering and leaving."""
        with self.lock:
            self.check_usable()
            self.retired.collect()
        return Capture(self)

    def submit(self, hardware: HardwareQueue, commands: Sequence[Command]) -> int:
        """Encode and run `commands`; return the value of hardware.timeline that marks their end."""
        used = uses(commands)
        encoded: CommandBuffer | None = None
        parameters: list[int] | None = None
        while True:
            with self.lock:
                if self.closed or self.failure is not None or self.closer is not None:
                    self.check_usable()
                check_open(used)
                if encoded is None:
                    captured = self.capturing is not None and self.capturing.is_mine
                    self.followers.submitted(commands, captured)
                    if self.capturing is not None and captured:
                        return self.capturing.record(hardware, commands)
                    encoded, parameters = encode_submission(hardware, commands)
                self.complete()
                if hardware.room(len(encoded.words)):
                    value = hardware.timeline.last + 1
                    hardware.submit(encoded, values_of(encoded, value, parameters))
                    hardware.timeline.last = value
                    self.launches += encoded.launches
                    return value
            self.await_room(hardware, len(encoded.words))

    def complete(self) -> None:
        """Finish submissions and replays that were decided on but then interrupted by an exception.
        The lock is held. See HardwareQueue."""
        for hardware in self.driver.all_queues():
            if hardware.intent is not None:
                hardware.complete()
        if self.replaying is not None:
            self.replaying.complete()

    def await_room(self, hardware: HardwareQueue, words: int) -> None:
        """Block until `hardware` has room for an image of `words` words. DeviceHang if no work of
        the queue ends for as long as a wait may take. The lock is not held: the queue may be
        waiting for another thread's submission."""
        timeline = hardware.timeline
        patience, reached = self.driver.clock.patience(self.limit_s), timeline.value
        while True:
            self.look()
            with self.lock:
                room = hardware.room(words)
            self.driver.clock.looked(room)
            if room:
                return
            value = timeline.value
            if value != reached:
                patience, reached = self.driver.clock.patience(self.limit_s), value
            if patience.over():
                self._report_hang(timeline, value + 1, self.limit_s)
            self.driver.pause_until(timeline, value + 1, min(patience.pause_s, _LONGEST_PAUSE_S))

    def prepare(self, hardware: HardwareQueue, commands: Sequence[Command]) -> CommandBuffer:
        """Encode commands once, for many submissions. Values that differ between them are symbols
        of kind "parameter", whose slots `submit_prepared` fills. Does not touch hardware."""
        end = Signal(hardware.timeline, Symbol("signal"))
        prepared = hardware.encode([*commands, end])
        prepared.uses = uses(commands)
        prepared.launches = launches_of(commands)
        return prepared

    def submit_prepared(
        self, hardware: HardwareQueue, prepared: CommandBuffer, parameters: Sequence[int]
    ) -> int:
        """Run the result of `prepare`, with parameters[slot] as each slot's value; return the value
        of hardware.timeline that marks the end. BadArgument while this thread captures a graph:
        submit the commands instead."""
        while True:
            with self.lock:
                if self.closed or self.failure is not None or self.closer is not None:
                    self.check_usable()
                check_open(prepared.uses)
                if self.capturing is not None and self.capturing.is_mine:
                    raise BadArgument("prepared work cannot be captured; record the commands")
                self.complete()
                if hardware.room(len(prepared.words)):
                    value = hardware.timeline.last + 1
                    hardware.submit_prepared(prepared, value, parameters)
                    hardware.timeline.last = value
                    self.launches += prepared.launches
                    return value
            self.await_room(hardware, len(prepared.words))

    def submit_resident(
        self,
        hardware: HardwareQueue,
        prepared: CommandBuffer,
        resident: Resident,
        part: Part,
        values: NDArray[np.uint64],
    ) -> int:
        """Submit like submit_prepared, for a placed image that is not in flight (Placed). part: the
        words that change; values[0] becomes the value that marks the end."""
        while True:
            with self.lock:
                if self.closed or self.failure is not None or self.closer is not None:
                    self.check_usable()
                check_open(prepared.uses)
                self.complete()
                if hardware.room(0):
                    values[0] = value = hardware.timeline.last + 1
                    resident.insert(part, values)
                    hardware.submit_resident(resident, prepared.command_words, value)
                    hardware.timeline.last = value
                    self.launches += prepared.launches
                    return value
            self.await_room(hardware, 0)

    # ---- waits -------------------------------------------------------------------------------

    def synchronize(self, limit_s: float | None = None) -> None:
        """Wait until all queues are idle; raise failures reported meanwhile.

        limit_s applies to each queue. The lock is not held while waiting.
        """
        # The usual case takes few steps, since memory is slow after a kernel that has read much
        # of it. RACE: the device may fail or be reset meanwhile: the full path then reports it.
        resets, usual = self.resets, limit_s is None and self.failure is None and not self.closed
        usual = usual and self.replaying is None and not self.retired.closing
        usual = usual and not self.healer.untold
        if usual and self.driver.settled() and self.resets == resets and not self.followers.raising:
            return
        if limit_s is not None:
            seconds("limit_s", limit_s)
        if self.cut_off:
            with self.lock:
                self.complete()
        for hardware in self.driver.all_queues():
            timeline = hardware.timeline
            if timeline.value < timeline.last:
                self._reach(timeline, timeline.last, limit_s)
        self.look()
        self.healer.tell_all()
        self.driver.synchronized()

    def settle(self) -> None:
        """Wait until the device is idle or has failed; does not raise this or later failures."""
        try:
            if not self.closed and self.failure is None and not self.idle:
                self.synchronize()
        except (ChipError, LinkError, FirmwareError, Closed) as error:
            log.debug("%s: while settling: %s", self.name, error)

    @property
    def idle(self) -> bool:
        """Return whether all submitted work has ended; costs a few reads of host memory."""
        queues = self.driver.all_queues()
        ended = all(hw.timeline.value >= hw.timeline.last for hw in queues)
        return ended and not self.cut_off

    @property
    def cut_off(self) -> bool:
        """Return whether `complete` has work to do; another thread may be doing it."""
        if self.replaying is not None:
            return True
        return any(hardware.intent is not None for hardware in self.driver.all_queues())

    def is_own(self, timeline: Timeline) -> bool:
        """Return whether a timeline belongs to one of the device's queues."""
        for hardware in self.driver.all_queues():  # noqa: SIM110 - any() takes twice as long
            if hardware.timeline is timeline:
                return True
        return False

    def last_value(self, timeline: Timeline) -> int:
        """Return the value that marks the end of everything submitted to `timeline` so far, for a
        queue's wait."""
        capturing = self.capturing
        if capturing is not None and capturing.is_mine:
            return capturing.last(timeline)
        return timeline.last

    def wait_for(self, timeline: Timeline, value: int, limit_s: float | None) -> None:
        """See Timeline.wait."""
        value = whole("value", value, 0, WORD)
        self._reach(timeline, value, limit_s)
        self.look()  # work that faulted may have continued to its end
        self.healer.tell(timeline)

    def _reach(self, timeline: Timeline, value: int, limit_s: float | None) -> None:
        """Wait, without checking for failures once the value is reached."""
        limit = seconds("limit_s", self.limit_s if limit_s is None else limit_s)
        if value >= CAPTURED:
            raise BadArgument("cannot wait for a captured submission; wait for the replay")
        if self.closed or self.failure is not None:
            self.healer.heal()
            self.check_alive()
        restarts, resets = timeline.restarts, self.resets
        reached = timeline.value >= value
        if not reached:
            patience = self.driver.clock.patience(limit)
        while not reached:
            self.look()
            lost = timeline.restarts != restarts or not self.is_own(timeline)
            if lost and self.resets != resets and self.idle:
                break  # the work that would have raised it was lost
            if patience.over():
                self._report_hang(timeline, value, limit)
                return
            self.driver.pause_until(timeline, value, min(patience.pause_s, _LONGEST_PAUSE_S))
            reached = timeline.value >= value
            self.driver.clock.looked(reached)
        self.healer.tell(timeline)
        if (timeline.restarts != restarts and self.is_own(timeline)) or not reached:
            # The timeline was raised by `restart`, not by the work.
            raise self.last_failure or DeviceHang(f"{self.name} was reset: its work was lost")

    def _report_hang(self, timeline: Timeline, value: int, limit_s: float) -> None:
        with self.lock:
            # Check once more: this thread may have overslept although the device met the limit.
            if timeline.value >= value:
                return
            self.check_alive()
            reached, state = timeline.value, self.driver.diagnose(timeline, value)
            own = timeline.name.startswith(self.name)
            where = timeline.name if own else f"{self.name}: {timeline.name}"
            what = f"kernel {state['kernel']}" if own and state.get("kernel") else "work"
            self.failure = DeviceHang(
                f"{where}: {what} has not ended within {limit_s} s: expected signal {value}, got "
                f"{reached}",
                timeline=timeline.name,
                reached=reached,
                limit_s=limit_s,
                **state,
            )
            self._note(self.failure)
            failure = self.failure
        self.healer.heal()
        self.healer.tell(timeline)
        raise failure

    # ---- failures ----------------------------------------------------------------------------

    def check_failures(self) -> None:
        """Raise, and remember, a failure reported since the last check; Closed if the device is
        closed."""
        with self.lock:
            if self.failure is None and not self.closed:
                try:
                    self.complete()
                    self.failure = self.driver.poll() or self.followers.problem()
                except LinkError as error:
                    self.failure = error
                if self.retired.closing:
                    self.retired.collect()
                if self.failure is not None:
                    self._note(self.failure)
        self.check_alive()

    def look(self) -> None:
        """Check for failures on behalf of a waiting thread. A device that recovers by itself does
        so before anything is raised, and the failure is reported to the threads that lost work
        (hcq.recovery)."""
        if self.healer.policy == "raise":
            self.check_failures()
            return
        try:
            self.check_failures()
        except UgpuError:
            self.healer.heal()
        self.check_alive()

    def check_usable(self) -> None:
        """See Closing."""
        if self.failure is not None:
            self.healer.heal()
        super().check_usable()

    def fail(self, failure: UgpuError) -> None:
        """Record a failure that the driver met, if it is the first one. The lock is held."""
        if self.failure is None:
            self.failure = failure
            self._note(failure)

    def _note(self, failure: UgpuError) -> None:
        kind = type(failure).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1
        for explain in self.explainers:
            failure.add_facts(**explain(failure))
        self.keeper.keep(failure, partial(evidence, self))
        trace.point("failure", device=self.name, error=failure)

    def reset(self, only: Level | None = None) -> Recovery:
        """See Device.reset."""
        with self.lock:
            return self.healer.reset(only)

    # ---- the end -----------------------------------------------------------------------------

    def stop_helpers(self) -> None:
        """See Closing."""
        if self.observer is not None:
            self.observer.stop()
        self.followers.stop()
        self.copies.stop()

    def shut_down(self) -> None:
        """See Closing."""
        for hardware in self.driver.all_queues():
            hardware.timeline.detach()  # others may still read it
        super().shut_down()
        self.retired.forget()

    def shutdown(self) -> None:
        """See Closing."""
        self.driver.shutdown()

    def abandon(self) -> None:
        """See Closing."""
        super().abandon()
        self.capturing = self.replaying = None
        self.retired.forget()
        for graph in self.graphs:
            graph.abandon()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "failed" if self.failure else "open"
        return f"<Device {self.name} {self.driver.target.name} {state}>"
