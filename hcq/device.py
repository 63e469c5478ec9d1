"""Device: what users open. Drivers subclass it and provide the hooks.

Life: made by hcq.open (registry) -> used -> `close`. A failure the hardware reports (ChipError,
LinkError, FirmwareError) is raised to whoever waits and kept in `failure`: everything submitted
afterwards raises it again, until `reset` brings the device back. A device that is not closed is
kept until the process ends (hcq.life).
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hcq import registry, trace
from hcq.buffer import Buffer
from hcq.checks import WORD, seconds, whole
from hcq.clock import Clock
from hcq.closing import Closing
from hcq.command import Command, CommandBuffer, Signal, Symbol, check_open, uses
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
from hcq.memory import Placement
from hcq.objectkind import load_program
from hcq.program import Program
from hcq.queue import HardwareQueue, Queue, QueueKind
from hcq.retired import Retired
from hcq.target import TargetSpec
from hcq.telemetry import Sensor
from hcq.timeline import Timeline
from hcq.transfer import Transfer

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 1.0  # in one call of a driver: kernels take no time-outs of any size


class Device(Closing):
    """A device that runs kernels. Thread-safe: one lock serialises submissions.

    A driver calls `opened` when the device works. In a forked child, and while another thread is
    in `close`, whatever needs the device raises Closed.

    limit_s: how long a wait may take where its caller does not say (seconds). clock: counts limits;
    a driver sets its transport's.
    clock_hertz: rate of the ticks that Queue.timestamp writes.
    """

    name: str
    target: TargetSpec
    clock_hertz: float
    limit_s: float = 30.0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.last_failure: UgpuError | None = None  # what the last `reset` mended
        self.resets = 0
        self.capturing: Capture | None = None
        self.replaying: Replay | None = None  # one that has begun, see `complete`
        self.graphs: weakref.WeakSet[Capture] = weakref.WeakSet()
        self.followers = Followers(self)
        self.retired = Retired(self)
        self.clock = Clock()
        self._transfer: Transfer | None = None

    # ---- hooks a driver provides -------------------------------------------------------------

    @abstractmethod
    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        """Allocate and map `size` bytes (at least; 256-byte aligned). OutOfMemory when used up."""

    @abstractmethod
    def free_memory(self, buffer: Buffer) -> None:
        """Unmap and release; with no work in flight on it. Called again after an exception, and
        perhaps after it has returned: what has been done is not done to other memory."""

    @abstractmethod
    def load_program(self, image: bytes) -> Program:
        """Check a code object (BadCodeObject) and place it in memory."""

    @abstractmethod
    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        """The queues of a kind, at least one each."""

    @abstractmethod
    def poll(self) -> UgpuError | None:
        """Look for failures the device has reported (drain interrupts); cheap, never blocks."""

    @abstractmethod
    def pause(self, limit_s: float) -> None:
        """Block until something may have happened (an interrupt), at most about `limit_s`."""

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        """Block until `timeline` has reached `value`, or for a while, at most `limit_s`."""
        self.pause(min(1e-3, limit_s))

    def nudge(self) -> None:
        """The host has written to memory that a queue may wait for: see to it that it looks."""
        return

    @abstractmethod
    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        """What the device says of itself when `timeline` does not reach `value`."""

    @abstractmethod
    def recover(self) -> None:
        """Bring the hardware back after a failure, by the mildest step that works."""

    @abstractmethod
    def info(self) -> dict[str, object]:
        """Facts of the device for people and for --json: chip, memory, firmware, link."""

    def sensors(self) -> Sequence[Sensor]:
        """What the device measures of itself."""
        return ()

    # ---- what users call ---------------------------------------------------------------------

    def alloc(self, size: int, *, placement: Placement = Placement.DEVICE) -> Buffer:
        """Allocate a buffer; its content is undefined. Owned by the caller."""
        size = whole("size", size, 0, WORD)
        if not isinstance(placement, Placement):
            raise BadArgument(f"placement must be a Placement, got {placement!r}")
        made: list[Buffer] = []
        try:
            with self.lock:
                self.check_usable()
                self.retired.collect()
                made.append(self.allocate_memory(size, placement))
            made[0].retired = self.retired
            return made[0]
        except BaseException:  # also between the two
            for buffer in made:
                buffer.close()
            raise

    def free(self, buffer: Buffer) -> None:
        """Buffer.close calls this: waits for work in flight, then releases. Raises nothing that the
        device reports meanwhile: that is kept for those who wait for the work."""
        self.retired.closing.append(buffer)  # a later call frees it, where this is cut off
        buffer.closed = True
        self.settle()
        with self.lock:
            if self.closed:
                return
            if buffer in self.retired.closing:
                self.retired.finish(buffer)
            self.retired.collect()

    def load(self, image: bytes) -> Program:
        """Load a code object of this device's target; kernels are in it by name."""
        if not isinstance(image, bytes | bytearray | memoryview):
            raise BadArgument(f"image must be bytes, got {type(image).__name__}")
        made: list[Program] = []
        try:
            with self.lock:
                self.check_usable()
                self.retired.collect()
                made.append(load_program(self, bytes(image)))
            if made[0].memory is not None:
                made[0].memory.retired = self.retired
            return made[0]
        except BaseException:  # also between the two
            for program in made:
                program.close()
            raise

    def compile(self, source: object) -> Program:
        """Compile a kernel of your own and load it: LLVM IR or PTX (text), or kernel IR
        (`ugpu.ir.Kernel`). LLVM runs in a child process; objects are cached.

        BadArgument: source the device does not take; CompileError with `line` and `code`: the
        compiler rejects it. See docs/your-own-kernel.md."""
        self.check_usable()
        made: Program = registry.compiler()(self, source)
        return made

    def queue(self, kind: QueueKind = QueueKind.COMPUTE, index: int = 0) -> Queue:
        """A recorder for hardware queue `index` of a kind."""
        self.check_usable()
        if not isinstance(kind, QueueKind):
            raise BadArgument(f"kind must be a QueueKind, got {kind!r}")
        queues = self.hardware_queues(kind)
        index = whole("index", index, -WORD, WORD)
        if not 0 <= index < len(queues):
            raise BadArgument(f"no {kind.value} queue {index}", have=len(queues))
        return Queue(queues[index])

    def capture(self) -> Capture:
        """Record instead of run: `with device.capture() as graph:`; then `graph.replay()`."""
        with self.lock:
            self.check_usable()
            self.retired.collect()
        return Capture(self)

    def submit(self, hardware: HardwareQueue, commands: Sequence[Command]) -> int:
        """Encode and run `commands`; returns the value of hardware.timeline that marks their
        end."""
        used = uses(commands)
        encoded: CommandBuffer | None = None
        while True:
            with self.lock:
                self.check_usable()
                check_open(used)
                if encoded is None:
                    captured = self.capturing is not None and self.capturing.is_mine
                    self.followers.submitted(commands, captured)
                    if self.capturing is not None and captured:
                        return self.capturing.record(hardware, commands)
                    end = Signal(hardware.timeline, Symbol("signal"))
                    encoded = hardware.encode([*commands, end])
                self.complete()
                if hardware.room(len(encoded.words)):
                    value = hardware.timeline.last + 1
                    hardware.submit(encoded, self.values_of(encoded, value))
                    hardware.timeline.last = value
                    return value
            self.await_room(hardware, len(encoded.words))

    def complete(self) -> None:
        """Finish what an exception has cut off after it was decided on: submissions and replays.
        The lock is held. See HardwareQueue."""
        for hardware in self._all_queues():
            if hardware.intent is not None:
                hardware.complete()
        if self.replaying is not None:
            self.replaying.complete()

    def await_room(self, hardware: HardwareQueue, words: int) -> None:
        """Block until `hardware` has room for an image of so many words. DeviceHang where no work
        of the queue ends for as long as a wait may take. The lock is not held: what the queue waits
        for may be another thread's submission."""
        timeline = hardware.timeline
        patience, reached = self.clock.patience(self.limit_s), timeline.value
        while True:
            self.check_failures()
            with self.lock:
                room = hardware.room(words)
            self.clock.looked(room)
            if room:
                return
            value = timeline.value
            if value != reached:
                patience, reached = self.clock.patience(self.limit_s), value
            if patience.over():
                self._report_hang(timeline, value + 1, self.limit_s)
            self.pause_until(timeline, value + 1, min(patience.pause_s, _LONGEST_PAUSE_S))

    def expect(self) -> None:
        """Something that takes a while is about to be submitted: what sleeps may wake meanwhile.
        Anyone may call it, at any time; a closed device is left as it is."""
        return

    def prepare(self, hardware: HardwareQueue, commands: Sequence[Command]) -> CommandBuffer:
        """Encode commands once, for many submissions: what differs between them are symbols of
        kind "parameter", whose slots `submit_prepared` fills. Touches no hardware."""
        end = Signal(hardware.timeline, Symbol("signal"))
        prepared = hardware.encode([*commands, end])
        prepared.uses = uses(commands)
        return prepared

    def submit_prepared(
        self, hardware: HardwareQueue, prepared: CommandBuffer, parameters: Sequence[int]
    ) -> int:
        """Run what `prepare` made, parameters[slot] being each slot's value; returns the value of
        hardware.timeline that marks the end. BadArgument while a graph is captured by this thread:
        submit the commands then."""
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
                    return value
            self.await_room(hardware, len(prepared.words))

    def synchronize(self, limit_s: float | None = None) -> None:
        """Wait until all queues are idle; raises what the device reported meanwhile.

        limit_s holds for each queue. The lock is not held while waiting.
        """
        if limit_s is not None:
            seconds("limit_s", limit_s)
        if self.cut_off:
            with self.lock:
                self.complete()
        for hardware in self._all_queues():
            timeline = hardware.timeline
            if timeline.value < timeline.last:
                self._reach(timeline, timeline.last, limit_s)
        self.check_failures()

    def settle(self) -> None:
        """Wait until the device is idle or has failed; raises neither that nor anything later."""
        try:
            if not self.closed and self.failure is None and not self.idle:
                self.synchronize()
        except (ChipError, LinkError, FirmwareError, Closed) as error:
            log.debug("%s: while settling: %s", self.name, error)

    @property
    def idle(self) -> bool:
        """Whether all that was submitted has ended; costs a few reads of host memory."""
        queues = self._all_queues()
        ended = all(hw.timeline.value >= hw.timeline.last for hw in queues)
        return ended and not self.cut_off

    @property
    def cut_off(self) -> bool:
        """Whether there is something for `complete`; another thread may be at it."""
        if self.replaying is not None:
            return True
        return any(hardware.intent is not None for hardware in self._all_queues())

    def _all_queues(self) -> Sequence[HardwareQueue]:
        return [hardware for kind in QueueKind for hardware in self.hardware_queues(kind)]

    def is_own(self, timeline: Timeline) -> bool:
        """Whether it is the timeline of one of the device's queues."""
        return any(hardware.timeline is timeline for hardware in self._all_queues())

    def last_value(self, timeline: Timeline) -> int:
        """The value that marks the end of all submitted to `timeline` so far, for a queue's
        wait."""
        capturing = self.capturing
        if capturing is not None and capturing.is_mine:
            return capturing.last(timeline)
        return timeline.last

    def wait_for(self, timeline: Timeline, value: int, limit_s: float | None) -> None:
        """See Timeline.wait."""
        value = whole("value", value, 0, WORD)
        self._reach(timeline, value, limit_s)
        self.check_failures()  # work that faulted may have gone on to its end

    def _reach(self, timeline: Timeline, value: int, limit_s: float | None) -> None:
        """Wait, without a look at failures once the value is reached."""
        limit = seconds("limit_s", self.limit_s if limit_s is None else limit_s)
        if value >= CAPTURED:
            raise BadArgument("a captured submission cannot be awaited; wait for the replay")
        self.check_alive()
        resets = self.resets
        reached = timeline.value >= value
        if not reached:
            patience = self.clock.patience(limit)
        while not reached:
            self.check_failures()
            if patience.over():
                self._report_hang(timeline, value, limit)
                return
            self.pause_until(timeline, value, min(patience.pause_s, _LONGEST_PAUSE_S))
            reached = timeline.value >= value
            self.clock.looked(reached)
        if self.resets != resets:  # `restart` raised the timeline, not the work
            raise self.last_failure or DeviceHang(f"{self.name} was reset: its work was lost")

    def _report_hang(self, timeline: Timeline, value: int, limit_s: float) -> None:
        with self.lock:
            # One last look: this thread may have overslept a limit that the device kept.
            if timeline.value >= value:
                return
            self.check_alive()
            self.failure = DeviceHang(
                f"{self.name}: {timeline.name} did not reach {value} within {limit_s} s",
                timeline=timeline.name,
                reached=timeline.value,
                limit_s=limit_s,
                **self.diagnose(timeline, value),
            )
            trace.point("failure", device=self.name, error=self.failure)
            raise self.failure

    def check_failures(self) -> None:
        """Raise, and remember, what the device has reported since the last look; Closed if it
        is."""
        with self.lock:
            if self.failure is None and not self.closed:
                try:
                    self.complete()
                    self.failure = self.poll() or self.followers.problem()
                except LinkError as error:
                    self.failure = error
                if self.retired.closing:
                    self.retired.collect()
                if self.failure is not None:
                    trace.point("failure", device=self.name, error=self.failure)
        self.check_alive()

    def reset(self) -> None:
        """Bring the device back after a failure. Work in flight is lost; programs stay loaded, and
        buffers keep their addresses, and their content where the chip kept its memory."""
        with self.lock, trace.step("reset", device=self.name, failure=self.failure):
            self.check_open()
            self.last_failure = self.failure
            self.resets += 1
            with contextlib.suppress(UgpuError):
                self.complete()  # for queues that the driver leaves as they are
            self.recover()
            self.replaying = None
            self.followers.forget()
            for hardware in self._all_queues():
                hardware.timeline.restart()
            self.failure = None
            self.retired.collect()

    def values_of(
        self, encoded: CommandBuffer, signal: int, parameters: Sequence[int] | None = None
    ) -> NDArray[np.uint64]:
        """Values of a command buffer's symbols for immediate submission."""
        values = [0] * len(encoded.symbols)
        for position, symbol in enumerate(encoded.symbols):
            kind = symbol.kind
            if kind == "signal":
                values[position] = signal
            elif kind == "buffer":
                assert symbol.buffer is not None
                values[position] = int(symbol.buffer.address)
            elif kind == "parameter":
                if parameters is None:
                    raise BadArgument("Parameter is only allowed in a captured graph")
                values[position] = parameters[symbol.slot]
        return np.array(values, np.uint64)

    def copy_in(self, buffer: Buffer, data: memoryview) -> None:
        """Buffer.copy_from: synchronous upload."""
        self._refuse_in_capture("copy_from")
        self.transfer.upload(buffer, data)

    def copy_out(self, buffer: Buffer, out: memoryview) -> None:
        """Buffer.copy_to: synchronous download."""
        self._refuse_in_capture("copy_to")
        self.transfer.download(buffer, out)

    def fill(self, buffer: Buffer, value: int) -> None:
        """Buffer.fill: synchronous."""
        self._refuse_in_capture("fill")
        self.synchronize()
        queue = self.queue(QueueKind.COPY).fill(buffer, value)
        queue.timeline.wait(queue.submit())

    def _refuse_in_capture(self, what: str) -> None:
        if self.capturing is not None and self.capturing.is_mine:
            raise BadArgument(f"{what} cannot be captured; record queue.copy or queue.fill")

    @property
    def transfer(self) -> Transfer:
        """The staging buffers between host and device, made on first use."""
        with self.lock:
            self.check_usable()
            if self._transfer is None:
                self._transfer = Transfer(self)
            return self._transfer

    def stop_helpers(self) -> None:
        """See Closing."""
        self.followers.stop()
        if self._transfer is not None:
            self._transfer.stop()

    def shut_down(self) -> None:
        """See Closing."""
        for hardware in self._all_queues():
            hardware.timeline.detach()  # others may read it as long as they like
        super().shut_down()
        self.retired.forget()

    def abandon(self) -> None:
        """See Closing."""
        super().abandon()
        self.capturing = self.replaying = None
        self.retired.forget()
        for graph in self.graphs:
            graph.abandon()

    def __enter__(self) -> Device:
        return self

    def __repr__(self) -> str:
        state = "closed" if self.closed else "failed" if self.failure else "open"
        return f"<Device {self.name} {self.target.name} {state}>"
