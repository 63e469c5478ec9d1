"""Core: what is the same for all devices, between `hcq.Device` above and a driver below.

It keeps the order of submissions, waits with limits, remembers failures, and frees memory when no
work can access it. Buffers, programs, queues, timelines and graphs refer to it; users hold
`hcq.Device`. Thread-safe: one lock serialises submissions.

A failure reported by the hardware (ChipError, LinkError, FirmwareError) is raised in every waiting
thread and kept in `failure`: every later submission raises it again, until `reset` recovers the
device. A device that is not closed is kept until the process ends (hcq.state.life).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.closing import Closing
from ugpu.hcq.device.crash import Keeper, add_sources
from ugpu.hcq.device.follow import Followers
from ugpu.hcq.device.recovery import Healer
from ugpu.hcq.device.retired import Retired
from ugpu.hcq.device.waits import Waits
from ugpu.hcq.errors import BadArgument, LinkError, UgpuError, UsageError
from ugpu.hcq.state import trace
from ugpu.hcq.state.checks import WORD, seconds, whole
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.memory import MemoryUse, Placement
from ugpu.hcq.state.weak_registry import WeakRegistry
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, check_open, uses
from ugpu.hcq.work.command_buffer import CommandBuffer, Part, values_of
from ugpu.hcq.work.graph import Capture, Replay
from ugpu.hcq.work.losses import Losses
from ugpu.hcq.work.object_kind import load_program
from ugpu.hcq.work.prepared import encode_submission
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, Resident
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.copies.transfer import Transfer
    from ugpu.hcq.device.observe import Observer
    from ugpu.hcq.device.state import CoreDriver
    from ugpu.hcq.work.state import OpenDevice

log = logging.getLogger(__name__)


class Core(Closing):
    """The device-independent part of one device. See hcq.device.driver for how the parts fit
    together.

    In a forked child, and while another thread is in `close`, methods that need the device raise
    Closed.

    Attributes:
        driver: the driver that it calls.
        device: the user's object.
        limit_s: how long a wait may take if its caller gives no limit (seconds, by the driver's
            clock).
        last_failure: the failure handled by the last `reset`.
        resets: number of resets.
        keeper: writes the first failure's bundle.
        healer: resets the device.
        replaying: a replay that has begun, see `complete`.
        waits: waits for its queues.
        losses: work that resets lost.
        launches: kernels submitted so far.
        errors: failures so far, by class.
        observer: serves telemetry, if enabled (hcq.device.observe).
        explainers: return further facts for a failure, from modules with more facts about its
            kernel; must not raise.
    """

    device: OpenDevice
    limit_s: float = 30.0

    def __init__(self, driver: CoreDriver, lock: threading.RLock | None = None) -> None:
        super().__init__(driver.name, lock)
        self.driver = driver
        self.last_failure: UgpuError | None = None
        self.resets = 0
        self.memory_use = MemoryUse()
        self.launches = 0
        self.errors: dict[str, int] = {}
        self.observer: Observer | None = None
        self.keeper = Keeper(driver.name)
        self.healer = Healer(self)
        self.capturing: Capture | None = None
        self.replaying: Replay | None = None
        self.graphs: WeakRegistry[Capture] = WeakRegistry()
        self.programs: WeakRegistry[Program] = WeakRegistry()
        self.followers = Followers(self)
        self.retired = Retired(self)
        self._copies: Transfer | None = None
        self.waits = Waits(self)
        self.losses = Losses(self)
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
            self.programs.add(made[0])
            if made[0].memory is not None:
                made[0].memory.retired = self.retired
            return made[0]
        except BaseException:  # also between the two
            for program in made:
                program.close()
            raise

    @property
    def copies(self) -> Transfer:
        """The copies between the device's memory and this process, made on first use."""
        if self._copies is None:
            self.synchronize()  # raises if the device is lost, before memory is mapped
            with self.lock:
                self.check_usable()
                self._copies = self._copies or self.driver.make_transfer()
        return self._copies

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
                if self.resets:
                    self.losses.check_waits(commands)
                self.complete()
                if hardware.room(len(encoded.words)):
                    value = hardware.timeline.last + 1
                    hardware.submit(encoded, values_of(encoded, value, parameters))
                    hardware.timeline.last = value
                    self.launches += encoded.launches
                    self.losses.submitted(hardware.timeline, value)
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
        """See Waits.await_room."""
        self.waits.await_room(hardware, words)

    def submit_prepared(
        self, hardware: HardwareQueue, prepared: CommandBuffer, parameters: Sequence[int]
    ) -> int:
        """Run prepared work (hcq.work.prepared), with parameters[slot] as each slot's value; return
        the value of hardware.timeline that marks the end. BadArgument while this thread captures a
        graph: submit the commands instead."""
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
                    self.losses.submitted(hardware.timeline, value)
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
                    self.losses.submitted(hardware.timeline, value)
                    return value
            self.await_room(hardware, 0)

    # ---- waits -------------------------------------------------------------------------------

    def synchronize(self, limit_s: float | None = None) -> None:
        """Wait until all queues are idle; raise failures reported meanwhile, and errors of lost
        work (hcq.work.losses).

        limit_s applies to each queue. The lock is not held while waiting.
        """
        # RACE: the device may fail or be reset meanwhile: the full path then reports it.
        resets, losses, driver = self.resets, self.losses, self.driver
        queues = driver.all_queues()
        ends = [hardware.timeline.last for hardware in queues]
        if (
            limit_s is None and self.failure is None and not self.closed
            and self.replaying is None and not self.retired.closing
            and losses.mine.resets == resets and not losses.automatic
            and not self.followers.raising and driver.is_idle_fast() and self.resets == resets
        ):  # fmt: skip
            losses.found_clean(queues, ends)
            return
        if limit_s is not None:
            seconds("limit_s", limit_s)
        with self._told():
            self._drain(limit_s)
            losses.tell([hardware.timeline for hardware in queues])
        losses.mine.resets = resets
        losses.found_clean(queues, ends)
        self.driver.flush_output()

    def _drain(self, limit_s: float | None) -> None:
        """Wait until all queues are idle; raise failures reported meanwhile."""
        if self.cut_off:
            with self.lock:
                self.complete()
        for hardware in self.driver.all_queues():
            timeline = hardware.timeline
            if timeline.value < timeline.last:
                self.waits.reach(timeline, timeline.last, limit_s)
        self.look()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Note that the calling thread is told of a failure that is raised inside."""
        try:
            yield
        except UgpuError as error:
            self._hear(error)
            raise

    def _hear(self, error: UgpuError) -> None:
        """Note that the calling thread is told of a failure; errors that blame the caller do not
        count, unless a lease has failed by one."""
        if error is self.failure or not isinstance(error, UsageError):
            self.losses.heard(error)

    def settle(self) -> None:
        """Wait until the device is idle or has failed; does not raise this or later failures."""
        try:
            if not self.closed and self.failure is None and not self.idle:
                self._drain(None)
        except UgpuError as error:
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

    def wait_for(self, timeline: Timeline, value: int | None, limit_s: float | None) -> None:
        """See Timeline.wait."""
        end = timeline.last if value is None else whole("value", value, 0, WORD)
        try:
            self.waits.reach(timeline, end, limit_s)
            self.look()  # work that faulted may have continued to its end
            if value is None:
                self.losses.tell([timeline])
            else:
                self.losses.check(timeline, end)
                self.losses.tell_recovered(timeline)
        except UgpuError as error:
            self._hear(error)
            raise
        self.losses.waited(timeline, end)

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
        (hcq.device.recovery)."""
        if self.healer.policy == "raise":
            self.check_failures()
            return
        try:
            self.check_failures()
        except UgpuError:
            self.healer.recover()
        self.check_alive()

    def check_usable(self) -> None:
        """See Closing."""
        if self.failure is not None:
            self.healer.recover()
        with self._told():
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
        self.keeper.keep(
            failure, lambda error: add_sources(self.driver.evidence(error), self.programs, error)
        )
        trace.point("failure", device=self.name, error=failure)

    def recover(self) -> None:
        """See Healer.recover."""
        self.healer.recover()

    def was_reset(self, *, all_queues: bool) -> None:
        """Note that the device works again. all_queues: all were set up again. The lock is held."""
        self.followers.forget(everything=all_queues)
        self.failure = None
        self.keeper.mended()
        self.retired.collect()

    def reset(self, only: Level | None = None) -> Recovery:
        """See Device.reset."""
        with self.lock:
            return self.healer.reset(only, asked=True)

    # ---- the end -----------------------------------------------------------------------------

    def leave(self) -> None:
        """Close, at the end of a `with` block that did not raise; then raise a failure of its work
        that no thread has been told of. The loss of an idle device's link is none."""
        if self.closed:
            return
        idle = True
        try:
            idle = self.idle
            if self.failure is None:
                self._drain(None)
        except UgpuError as error:
            log.debug("%s: at the end of its block: %s", self.name, error)
        self.close()
        untold = self.losses.pending()
        if untold is not None and not (idle and isinstance(untold, LinkError)):
            raise untold.with_traceback(None)

    def stop_helpers(self) -> None:
        """See Closing."""
        if self.observer is not None:
            self.observer.stop()
        self.followers.stop()
        if self._copies is not None:
            self._copies.stop()

    def shut_down(self) -> None:
        """See Closing."""
        for hardware in self.driver.all_queues():
            hardware.timeline.detach()  # others may still read it
        super().shut_down()
        self._copies = None
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
