"""The submissions of one lease: images, unfinished work, progress of each queue, failures.

The connection's thread submits. A thread of this module watches the work and reports the progress
of each queue to the client.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument, Closed, OutOfMemory, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.queue import OUTSTANDING
from ugpu.hcq.remote.wire import Bytes
from ugpu.hcq.state import threads
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.work.command import Command, Signal, Wait
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.prepared import Placed, prepare
from ugpu.hcq.work.queue import HardwareQueue
from ugpu.hcq.work.timeline import Timeline
from ugpu.tools.service.daemon.clients.commands import Decoder, Scope, table_of
from ugpu.tools.service.daemon.clients.incidents import Incidents

log = logging.getLogger(__name__)

MOST_IMAGES = 1 << 16  # per client
PLACED = 64 << 20  # bytes of a lease's images with memory of their own; other images are copied
LOOK_S = 0.02  # between checks for failures while work is under way
# After the last work has ended, the watching thread stays ready for more. This time covers the gap
# between two dependent steps of a program.
LINGER_S = 0.005
LINGER_LOOK_S = 1e-3

# TIMEOUT: for work that a mild reset left running; the same as the daemon's limit for a lease's
# last work
RESET_DRAIN_S = 5.0

#: sends the client an event: operation and arguments
Notify = Callable[..., None]


@dataclass
class _Line:
    """One queue of the lease. timeline: the lease's timeline, with the client's values. last: the
    highest of these values that was submitted. signals: whether submissions raise the timeline in
    memory, at the cost of one signal each; set when a queue first waits for the timeline there.
    under_way: the hardware's and the client's value of each submission. backlog: submissions that
    found no room so far."""

    hardware: HardwareQueue
    timeline: Timeline
    last: int = 0
    signals: bool = False
    under_way: deque[tuple[int, int]] = field(default_factory=deque)
    backlog: deque[tuple[int, Callable[[], int]]] = field(default_factory=deque)

    @property
    def idle(self) -> bool:
        """Return whether the hardware has nothing more to do for this queue."""
        timeline = self.hardware.timeline
        return timeline.value >= timeline.last

    def without_end(self, commands: Sequence[Command]) -> Sequence[Command]:
        """Return the commands without the signal at their end if nothing waits for it: the hardware
        queue has a signal of its own."""
        if self.signals or not commands:
            return commands
        last = commands[-1]
        ours = isinstance(last, Signal) and last.timeline is self.timeline
        return commands[:-1] if ours else commands


@dataclass
class _Image:
    """A placed image. extents: (slot, bytes) of the places that must be memory of the lease. size:
    bytes of the image's own memory. signals: the value of `_Line.signals` when `run` was made."""

    line: _Line
    commands: Sequence[Command]
    slots: int
    extents: list[tuple[int, int]]
    signals: bool = False
    run: Callable[[Sequence[int]], int] | None = None
    placed: Placed | None = None
    size: int = 0


class Work:
    """The work of one lease. Methods are thread-safe where documented; the connection's thread
    calls all others.

    hardware: the client's queues. failed: why nothing more is executed until the client resets;
    None otherwise.
    """

    def __init__(
        self,
        device: Device,
        hardware: Sequence[HardwareQueue],
        scope: Scope,
        notify: Notify,
        incidents: Incidents,
    ) -> None:
        self.device = device
        self.core = core_of(device)
        self.failed: UgpuError | None = None
        self._scope = scope
        self._notify = notify
        self._incidents = incidents
        self._lock = threading.RLock()
        self._closed = False
        self._resets = 0
        self._images: dict[int, _Image] = {}
        self._placed = 0  # bytes
        self._lines: list[_Line] = []
        self._changed = threading.Condition(self._lock)
        self._lingers = False  # the watching thread is ready and need not be woken
        self._runner = threading.Thread(target=self._run, name=f"{device.name} lease", daemon=True)
        try:
            for queue in hardware:
                self._lines.append(_Line(queue, device.timeline(f"lease {queue.name}")))
            self._by_address = {line.timeline.address: line for line in self._lines}
            threads.start(self._runner)
        except BaseException:
            self.free()
            raise

    @property
    def hardware(self) -> list[HardwareQueue]:
        """The client's queues."""
        return [line.hardware for line in self._lines]

    @property
    def timelines(self) -> list[Timeline]:
        """The timeline of each queue, with the client's values."""
        return [line.timeline for line in self._lines]

    def timeline(self, address: int) -> Timeline | None:
        """Return a queue's timeline by its address."""
        line = self._by_address.get(address)
        return None if line is None else line.timeline

    # ---- submissions -------------------------------------------------------------------------

    def submit(self, queue: int, value: int, data: Bytes) -> None:
        """Run command words; `value` marks their end. A value that was already submitted is
        ignored."""
        line = self._line(queue)
        if value <= line.last:
            return
        commands = Decoder(_words(data), self._scope).decode().commands
        self._signal_awaited(commands)
        given = line.without_end(commands)
        self._begin(line, value, lambda: self.core.submit(line.hardware, given))

    def place(self, number: int, queue: int, words: int, data: Bytes) -> None:
        """Store an image for replays."""
        line = self._line(queue)
        view = memoryview(data)
        if 4 * words > len(view) or len(self._images) >= MOST_IMAGES:
            raise BadArgument("an image is cut short, or there are too many", words=words)
        places = table_of(view[4 * words :], words)
        decoded = Decoder(_words(view[: 4 * words]), self._scope, places).decode()
        self._signal_awaited(decoded.commands)
        extents = [(slot, size) for slot, size in decoded.extents.items() if size]
        image = _Image(line, decoded.commands, sum(len(each) for each in places.values()), extents)
        self._prepare(image)
        self._forget_image(self._images.get(number))
        self._images[number] = image

    def replay(self, told: list[int], data: Bytes) -> None:
        """Run placed images. told: image, value, image, value. data: the values of their places."""
        if len(told) % 2 or len(data) % 8:
            raise BadArgument("a replay is cut short")
        values: list[int] = np.frombuffer(data, "<u8").tolist()
        at = 0
        for number, value in zip(told[::2], told[1::2], strict=True):
            image = self._images.get(number)
            if image is None:
                raise BadArgument(f"this lease has no image {number}")
            given = values[at : at + image.slots]
            at += image.slots
            if len(given) != image.slots:
                raise BadArgument("a replay has too few values")
            for slot, size in image.extents:
                self._scope.check(given[slot], size)
            if value > image.line.last:
                self._replay_one(image, value, given)

    def drop(self, number: int) -> None:
        """Forget an image."""
        self._forget_image(self._images.pop(number, None))

    def _replay_one(self, image: _Image, value: int, given: list[int]) -> None:
        if image.signals is not image.line.signals:
            self._prepare(image)
        run = image.run
        assert run is not None
        self._begin(image.line, value, lambda: run(given))

    def _prepare(self, image: _Image) -> None:
        """Encode an image, and give it memory of its own if there is room."""
        line = image.line
        self._forget_image(image)
        prepared = prepare(line.hardware, line.without_end(image.commands))
        image.signals = line.signals
        size = prepared.words.nbytes
        if self._placed + size <= PLACED:
            with contextlib.suppress(OutOfMemory):
                image.placed, image.size = Placed(line.hardware, prepared), size
                self._placed += size

        def run(given: Sequence[int]) -> int:
            placed = image.placed
            if placed is not None and placed.prepared is prepared and placed.ended:
                return placed.submit(given)
            return self.core.submit_prepared(line.hardware, prepared, given)

        image.run = run

    def _forget_image(self, image: _Image | None) -> None:
        if image is not None and image.placed is not None:
            image.placed.close()
            self._placed -= image.size
            image.placed = None

    def _line(self, index: int) -> _Line:
        if index >= len(self._lines):
            raise BadArgument(f"this lease has {len(self._lines)} queues, got {index}")
        return self._lines[index]

    def _signal_awaited(self, commands: Sequence[Command]) -> None:
        """From now on, also raise in memory the timelines that these commands wait for."""
        for command in commands:
            if isinstance(command, Wait):
                line = self._by_address.get(command.timeline.address)
                if line is not None and not line.signals:
                    line.signals = True
                    if line.last:  # earlier work was submitted without a signal
                        self._catch_up(line, Signal(line.timeline, Symbol.constant(line.last)))

    def _catch_up(self, line: _Line, signal: Signal) -> None:
        self._begin(line, line.last, lambda: self.core.submit(line.hardware, [signal]))

    def _begin(self, line: _Line, value: int, submit: Callable[[], int]) -> None:
        """Submit, or queue the submission behind the earlier ones of this queue."""
        with self._lock:
            if len(line.backlog) + len(line.under_way) > 2 * OUTSTANDING:
                raise BadArgument(
                    "too many submissions under way on one queue", limit=2 * OUTSTANDING
                )
            line.last = value
            if line.backlog or not line.hardware.room(0):
                line.backlog.append((value, submit))
            else:
                line.under_way.append((submit(), value))
            if not self._lingers or line.backlog:
                self._changed.notify_all()

    # ---- failures ----------------------------------------------------------------------------

    def diagnose(self, queue: int, value: int) -> dict[str, object]:
        """Return the device's report on a queue that does not reach `value`."""
        line = self._line(queue)
        timeline = line.hardware.timeline
        with self.core.lock:
            found = self.core.driver.diagnose(timeline, timeline.last)
        return {**found, "submissions_under_way": len(line.under_way)}

    def check(self) -> None:
        """Raise a failure of the device, which the client is notified of too. From any thread."""
        try:
            self.core.check_failures()
        except UgpuError as error:
            self._failed(error)
            raise

    def fail(self, error: UgpuError) -> None:
        """Record the failure of an operation whose result the client does not wait for. Nothing
        more is executed until the client resets. From any thread."""
        with self._lock:
            if self.failed is None:
                self.failed = error

    def reset(self, lasts: list[int], level: int, resets: int) -> list[object]:
        """Recover the device; work under way is lost. Return the report for the client. resets: a
        number that distinguishes values reached after the reset from those before it."""
        if len(lasts) != len(self._lines):
            raise BadArgument(f"expected {len(self._lines)} values, got {len(lasts)}")
        only = _level(level)
        with self._lock:
            self._forget_work()
            self._resets = resets
        recovery = self.core.reset(only)
        self._incidents.reset(recovery)
        self.core.losses.dismiss()  # what another reset lost before: the client resets anyway
        self._settle(lasts)
        self.device.synchronize(limit_s=RESET_DRAIN_S)  # raises for what did not settle
        with self._lock:
            self.failed = None
            self._changed.notify_all()
        return failures.recovery_to_wire(recovery)

    def _settle(self, lasts: Sequence[int]) -> None:
        """Count the client's values of each queue as reached, as soon as the queue is idle: until
        then it signals values of its own, and other queues that continued may wait for these."""
        driver, waiting = self.core.driver, [*zip(self._lines, lasts, strict=True)]
        deadline = driver.clock.deadline(RESET_DRAIN_S)
        while waiting:
            busy = []
            for line, last in waiting:
                if line.idle:
                    line.timeline.last = line.last = last
                    line.timeline.restart()
                else:
                    busy.append((line, last))
            if len(busy) == len(waiting):
                self.core.check_failures()
                if deadline.expired():
                    return
                timeline = busy[0][0].hardware.timeline
                driver.pause_until(timeline, timeline.last, LOOK_S)
            waiting = busy

    def plan(self, level: int) -> list[object]:
        """Return what a reset would do."""
        with self.core.lock:
            return failures.plan_to_wire(self.device.driver.recovery_plan(_level(level)))

    # ---- the end -----------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Return whether submissions have stopped. From any thread."""
        return self._closed

    def stop(self) -> None:
        """Stop all submissions. From any thread."""
        with self._lock:
            self._closed = True
            for line in self._lines:
                line.backlog.clear()
            self._changed.notify_all()
        if self._runner.ident is not None:
            self._runner.join()

    def free(self) -> None:
        """Free images and timelines. The device must be working and idle, or closed."""
        for image in self._images.values():
            self._forget_image(image)
        self._images.clear()
        for line in self._lines:
            try:
                line.timeline.close()
            except UgpuError as error:
                log.warning("%s: freeing a lease's timeline: %s", self.device.name, error)

    # ---- the watching thread -----------------------------------------------------------------

    def _run(self) -> None:
        ready_until = 0.0  # end of the lingering time
        while True:
            with self._lock:
                self._look()
                if self._closed:
                    return
                busy = [line for line in self._lines if line.under_way]
                late = any(line.backlog for line in self._lines)
                if busy or late:
                    ready_until = 0.0
                    self._lingers = self.device.driver.announces
                elif self._lingers and self.failed is None:
                    now = time.monotonic()
                    ready_until = ready_until or now + LINGER_S
                    self._lingers = now < ready_until
                if not busy and not late and not self._lingers:
                    self._changed.wait()
                    continue
                line = busy[0] if busy else self._lines[0]
                first = line.under_way[0][0] if busy else line.hardware.timeline.last + 1
            limit = LINGER_LOOK_S if late or len(busy) != 1 else LOOK_S
            try:
                self.core.driver.pause_until(line.hardware.timeline, first, limit)
            except UgpuError as error:
                self._failed(error)

    def _look(self) -> None:
        """Report ended work and submit work that has room. The lock is held.

        ORDER: failures and resets are checked after the values are read and before any is
        reported: work that faulted may have gone on to its end, a reset by someone else raises the
        timelines of work that it lost, and the client takes a value for success."""
        try:
            values = [line.hardware.timeline.value for line in self._lines]  # may raise if gone
            self.core.check_failures()
            for line, reached in zip(self._lines, values, strict=True):
                self._check_losses(line, reached)
        except UgpuError as error:
            self._failed(error)
            return
        for queue, (line, reached) in enumerate(zip(self._lines, values, strict=True)):
            value = 0
            while line.under_way and line.under_way[0][0] <= reached:
                value = line.under_way.popleft()[1]
            if value:
                self._notify("reached", queue, value, self._resets)
            try:
                while line.backlog and line.hardware.room(0):
                    value, submit = line.backlog[0]
                    line.under_way.append((submit(), value))
                    line.backlog.popleft()
            except UgpuError as error:
                self._failed(error)

    def _check_losses(self, line: _Line, reached: int) -> None:
        """Raise the error of the reset that lost work of the queue that counts as ended."""
        timeline = line.hardware.timeline
        if timeline.lost:
            for value, _ in line.under_way:
                if value > reached:
                    return
                self.core.losses.check(timeline, value)

    def _forget_work(self) -> None:
        for line in self._lines:
            line.under_way.clear()
            line.backlog.clear()

    def _failed(self, error: UgpuError) -> None:
        """Record that the device failed or rejected a submission; the client is notified once."""
        with self._lock:
            self._forget_work()
            self._lingers = False
            if self.failed is not None or isinstance(error, Closed):
                return
            self.failed = error
            self._notify("failed", error)
        self._incidents.fault(error)


def _level(number: int) -> Level | None:
    try:
        return Level(number) if number else None
    except ValueError:
        raise BadArgument(f"there is no level {number} of a reset") from None


def _words(data: Bytes) -> NDArray[np.uint32]:
    view = memoryview(data)
    if len(view) % 4:
        raise BadArgument("a submission must be whole words", size=len(view))
    return np.frombuffer(view, "<u4")
