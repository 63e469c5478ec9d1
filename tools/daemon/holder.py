"""What the holder of a lease has on a device: memory, programs, images, work under way.

One thread, the connection's, calls all methods but `close`; another one watches the work and tells
the client how far each queue is.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcq import threads
from hcq.buffer import Buffer
from hcq.command import CommandBuffer
from hcq.core import core_of
from hcq.device import Device
from hcq.errors import BadArgument, Closed, OutOfMemory, UgpuError
from hcq.ladder import Level
from hcq.memory import Placement
from hcq.program import Kernel, Program
from hcq.queue import HardwareQueue, Queue, QueueKind
from hcq.remote import failures
from hcq.remote.queue import OUTSTANDING
from hcq.remote.wire import Bytes
from hcq.timeline import SIZE, Timeline

from .access import Lane, Spot
from .commands import Decoder, table_of

log = logging.getLogger(__name__)

GRANULE = 4096  # bytes that allocations are counted in
MOST_OBJECTS = 1 << 16  # buffers, programs, images: each; a client's limit
LOOK_S = 0.02  # between looks at failures while work is under way

# TIMEOUT: for what a mild reset left running; as long as the daemon gives a lease's last work
RESET_DRAIN_S = 5.0

#: tells the client: operation and arguments of an event
Notify = Callable[..., None]


@dataclass
class _Image:
    """A placed image. extents: (slot, bytes) of the places that must be memory of the lease."""

    queue: int
    prepared: CommandBuffer
    slots: int
    extents: list[tuple[int, int]]


class Holder:
    """The device's side of one lease that has queues. tenant: the device is the lease's alone
    (hcq.driver, open_tenant), and closes with it."""

    def __init__(self, device: Device, quota: int, notify: Notify, *, tenant: bool = False) -> None:
        self.device = device
        self.tenant = tenant
        self.core = core_of(device)
        self.target = device.target
        self.quota = quota
        self.used = 0
        self.failed: UgpuError | None = None
        self._notify = notify
        self._lock = threading.RLock()
        self._closed = False
        self._starts: list[int] = []  # addresses of buffers, in order
        self._buffers: dict[int, Buffer] = {}
        self._addresses: dict[int, int] = {}  # by the number that the client knows
        self._numbers = itertools.count(1)  # of memory and programs
        self._programs: dict[int, Program] = {}
        self._kernels: dict[int, Kernel] = {}
        self._images: dict[int, _Image] = {}
        self._resets = 0
        driver = self.core.driver
        copies = list(driver.hardware_queues(QueueKind.COPY))
        spare = copies.pop() if len(copies) > 1 else copies[-1]
        self._lane = Lane(self.core, spare)
        self._spare = spare
        self.hardware = [*driver.hardware_queues(QueueKind.COMPUTE), *copies]
        self.timelines: list[Timeline] = []
        self._under_way: list[deque[tuple[int, int]]] = [deque() for _ in self.hardware]
        self._backlog: list[deque[tuple[int, Callable[[], int]]]] = [deque() for _ in self.hardware]
        self._last = [0] * len(self.hardware)
        self._changed = threading.Condition(self._lock)
        self._runner = threading.Thread(target=self._run, name=f"{device.name} lease", daemon=True)
        try:
            for queue in self.hardware:
                self.timelines.append(device.timeline(f"lease {queue.name}"))
            threads.start(self._runner)
        except BaseException:
            for timeline in self.timelines:
                timeline.close()
            raise
        self._by_address = {timeline.address: timeline for timeline in self.timelines}

    # ---- memory ------------------------------------------------------------------------------

    def allocate(self, size: int, placement: str) -> list[int]:
        """Return number and address of memory that is all zeros; OutOfMemory beyond the quota."""
        try:
            where = Placement(placement)
        except ValueError:
            raise BadArgument(f"placement must be device or host, got {placement!r}") from None
        whole = max(1, -(-size // GRANULE)) * GRANULE
        if self.used + whole > self.quota:
            raise OutOfMemory(
                "the lease's memory is used up", size=size, limit=self.quota, used=self.used
            )
        if len(self._buffers) >= MOST_OBJECTS:
            raise OutOfMemory("the lease has too many buffers", limit=MOST_OBJECTS)
        buffer = self.device.alloc(whole, placement=where)
        try:
            self._scrub(buffer)
        except BaseException:
            buffer.drop()
            raise
        address = int(buffer.address)
        bisect.insort(self._starts, address)
        self._buffers[address] = buffer
        number = next(self._numbers)
        self._addresses[number] = address
        self.used += whole
        return [number, address]

    def free(self, number: int) -> None:
        """Give memory back once the work that was submitted has ended; ignores a number that is
        not known, since a client that was cut off tells twice."""
        address = self._addresses.pop(number, None)
        if address is None:
            return
        buffer = self._buffers.pop(address)
        self._starts.remove(address)
        self.used -= buffer.size
        buffer.drop()

    def write(self, address: int, data: Bytes) -> None:
        """Store bytes."""
        part = self._part(address, len(data))
        view = memoryview(data)
        if part.view is not None:
            part.view[:] = view
            self.core.driver.nudge()
        elif len(view) and not self.core.driver.write_memory(part, view):
            self._lane.upload(part, view)

    def read(self, address: int, size: int) -> Bytes:
        """Return bytes."""
        part = self._part(address, size)
        if part.view is not None:
            return bytes(part.view)
        out = memoryview(bytearray(size))
        if size and not self.core.driver.read_memory(part, out):
            self._lane.download(part, out)
        return out

    def check(self, address: int, size: int) -> None:
        """BadArgument unless the bytes are memory of the lease."""
        self._owner(address, size)

    def _owner(self, address: int, size: int) -> Buffer:
        position = bisect.bisect_right(self._starts, address) - 1
        if position >= 0:
            buffer = self._buffers[self._starts[position]]
            if address + size <= int(buffer.address) + buffer.size:
                return buffer
        raise BadArgument(
            f"{size} bytes at {address:#x} are not memory of this lease", address=address
        )

    def _part(self, address: int, size: int) -> Buffer:
        buffer = self._owner(address, size)
        start = address - int(buffer.address)
        return buffer[start : start + size]

    def _scrub(self, buffer: Buffer) -> None:
        """Overwrite what may be another holder's."""
        if buffer.view is not None:
            buffer.view[:] = bytes(buffer.size)
            return
        queue = Queue(self._spare).fill(buffer, 0)
        queue.timeline.wait(queue.submit())

    # ---- programs ----------------------------------------------------------------------------

    def load(self, image: Bytes) -> list[object]:
        """Return number, address, size, and kernels: handle, sizes, declared arguments."""
        if len(self._programs) >= MOST_OBJECTS:
            raise OutOfMemory("the lease has too many programs", limit=MOST_OBJECTS)
        program = self.device.load(bytes(image))
        number = next(self._numbers)
        self._programs[number] = program
        kernels: list[object] = []
        for index, kernel in enumerate(program.values()):
            handle = number << 24 | index
            self._kernels[handle] = kernel
            declared = kernel.arguments
            arguments = declared and [
                [a.offset, a.size, a.name, a.is_address, a.kind] for a in declared
            ]
            kernels.append(
                [
                    kernel.name,
                    handle,
                    kernel.kernarg_size,
                    None if declared is None else arguments or [],
                    kernel.local_size,
                    kernel.private_size,
                ]
            )
        memory = program.memory
        place = (0, 0) if memory is None else (int(memory.address), memory.size)
        return [number, *place, kernels]

    def unload(self, number: int) -> None:
        """Free a program, as `free` does; its kernels cannot be launched any more."""
        program = self._programs.pop(number, None)
        if program is None:
            return
        for handle in [each for each in self._kernels if each >> 24 == number]:
            del self._kernels[handle]
        program.closed = True
        if program.memory is not None:
            program.memory.drop()

    def kernel(self, handle: int) -> Kernel:
        """See Scope."""
        found = self._kernels.get(handle)
        if found is None:
            raise BadArgument("this lease has no such kernel", kernel=handle)
        return found

    # ---- queues ------------------------------------------------------------------------------

    def timeline(self, address: int) -> Timeline:
        """See Scope."""
        known = self._by_address.get(address)
        if known is not None:
            return known
        memory = self._part(address, SIZE)
        return Spot(self.core, memory)

    def submit(self, queue: int, value: int, data: Bytes) -> None:
        """Run command words; `value` marks their end. A value that has come before is ignored."""
        hardware = self._queue(queue)
        if value <= self._last[queue]:
            return
        commands = Decoder(_words(data), self).decode().commands
        self._begin(queue, value, lambda: self.core.submit(hardware, commands))

    def place(self, number: int, queue: int, words: int, data: Bytes) -> None:
        """Keep an image for replays."""
        hardware = self._queue(queue)
        view = memoryview(data)
        if 4 * words > len(view) or len(self._images) >= MOST_OBJECTS:
            raise BadArgument("an image is cut short, or there are too many", words=words)
        places = table_of(view[4 * words :], words)
        decoded = Decoder(_words(view[: 4 * words]), self, places).decode()
        prepared = self.core.prepare(hardware, decoded.commands)
        extents = [(slot, size) for slot, size in decoded.extents.items() if size]
        slots = sum(len(each) for each in places.values())
        self._images[number] = _Image(queue, prepared, slots, extents)

    def replay(self, told: list[int], data: Bytes) -> None:
        """Run placed images; told: image, value, image, value. data: what fills their places."""
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
                self.check(given[slot], size)
            if value > self._last[image.queue]:
                self._replay_one(image, value, given)

    def _replay_one(self, image: _Image, value: int, given: list[int]) -> None:
        hardware = self.hardware[image.queue]
        self._begin(
            image.queue, value, lambda: self.core.submit_prepared(hardware, image.prepared, given)
        )

    def drop(self, number: int) -> None:
        """Forget an image."""
        self._images.pop(number, None)

    def _queue(self, index: int) -> HardwareQueue:
        if index >= len(self.hardware):
            raise BadArgument(f"this lease has {len(self.hardware)} queues, got {index}")
        return self.hardware[index]

    def _begin(self, queue: int, value: int, submit: Callable[[], int]) -> None:
        """Submit, or have it submitted when what came before it on this queue is."""
        with self._lock:
            waiting = len(self._backlog[queue]) + len(self._under_way[queue])
            if waiting > 2 * OUTSTANDING:
                raise BadArgument(
                    "too many submissions under way on one queue", limit=2 * OUTSTANDING
                )
            self._last[queue] = value
            hardware = self.hardware[queue]
            if self._backlog[queue] or not hardware.room(0):
                self._backlog[queue].append((value, submit))
            else:
                self._under_way[queue].append((submit(), value))
            self._changed.notify_all()

    def watch(self, address: int, value: int, limit_s: float) -> bool:
        """Wait until memory of the lease holds at least `value`; whether it does within `limit_s`.
        In a thread of its own."""
        part = self._part(address, 8)
        patience = self.core.driver.clock.patience(limit_s)
        while True:
            if self._closed or self.failed is not None:
                return False
            view = part.view
            if view is not None:
                found = int.from_bytes(view[:8], "little")
            else:
                found = int.from_bytes(bytes(self.read(address, 8)), "little")
            if found >= value:
                return True
            if patience.over():
                return False
            self.core.driver.pause(min(patience.pause_s, 1e-3))

    # ---- failures ----------------------------------------------------------------------------

    def diagnose(self, queue: int, value: int) -> dict[str, object]:
        """What the device says of a queue that does not get to `value`."""
        hardware = self._queue(queue)
        with self.core.lock:
            found = self.core.driver.diagnose(hardware.timeline, hardware.timeline.last)
        return {**found, "submissions_under_way": len(self._under_way[queue])}

    def fail(self, error: UgpuError) -> None:
        """Something of the client's failed that it does not wait for: nothing more is executed
        until it resets."""
        with self._lock:
            if self.failed is None:
                self.failed = error

    def reset(self, lasts: list[int], level: int, resets: int) -> list[object]:
        """Bring the device back; work under way is lost. Returns the report for the client.
        resets: what tells what was reached after it from before."""
        if len(lasts) != len(self.hardware):
            raise BadArgument(f"expected {len(self.hardware)} values, got {len(lasts)}")
        only = _level(level)
        with self._lock:
            self._forget_work()
            self._resets = resets
        recovery = self.core.reset(only)
        self.device.synchronize(limit_s=RESET_DRAIN_S)  # work of queues that went on
        with self._lock:
            for queue, (timeline, last) in enumerate(zip(self.timelines, lasts, strict=True)):
                timeline.last = self._last[queue] = last
                timeline.restart()
            self.failed = None
            self._changed.notify_all()
        return failures.recovery_to_wire(recovery)

    def plan(self, level: int) -> list[object]:
        """Return what a reset would do."""
        with self.core.lock:
            return failures.plan_to_wire(self.core.driver.recovery_plan(_level(level)))

    # ---- the end -----------------------------------------------------------------------------

    def close(self, drain_s: float) -> bool:
        """Wait for the work for up to `drain_s`, then free everything; whether the device is as
        it was before: not where work hangs or the device has failed."""
        self.stop()
        clean = self.device.failure is None
        try:
            if clean:
                self.device.synchronize(limit_s=drain_s)
        except UgpuError as error:
            log.info("%s: a lease ends with work that does not: %s", self.device.name, error)
            clean = False
        return clean

    def stop(self) -> None:
        """Submit nothing any more."""
        with self._lock:
            self._closed = True
            for each in self._backlog:
                each.clear()
            self._changed.notify_all()
        if self._runner.ident is not None:
            self._runner.join()

    def free_all(self) -> None:
        """Free all of the lease's objects; the device works and is idle, or is closed."""
        self._images.clear()
        self._kernels.clear()
        programs, buffers = list(self._programs.values()), list(self._buffers.values())
        self._programs.clear()
        self._buffers.clear()
        self._starts.clear()
        self._addresses.clear()
        self.used = 0
        closes = [program.close for program in programs]
        closes += [buffer.close for buffer in buffers]
        closes += [timeline.close for timeline in self.timelines]
        for close in (*closes, self._lane.close):
            try:
                close()
            except UgpuError as error:
                log.warning("%s: freeing a lease's memory: %s", self.device.name, error)
        if self.tenant:
            self.device.close()

    # ---- the thread that watches -------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                self._look()
                if self._closed:
                    return
                busy = [n for n, each in enumerate(self._under_way) if each]
                late = any(self._backlog)
                if not busy and not late:
                    self._changed.wait()
                    continue
                queue = busy[0] if busy else 0
                first = self._under_way[queue][0][0] if busy else 0
            limit = 1e-3 if late or len(busy) > 1 else LOOK_S
            try:
                self.core.check_failures()
                self.core.driver.pause_until(self.hardware[queue].timeline, first, limit)
            except UgpuError as error:
                self._failed(error)

    def _look(self) -> None:
        """Tell what has ended and submit what has room; the lock is held."""
        for queue, (hardware, under_way) in enumerate(
            zip(self.hardware, self._under_way, strict=True)
        ):
            reached, value = hardware.timeline.value, 0
            while under_way and under_way[0][0] <= reached:
                value = under_way.popleft()[1]
            if value:
                self._notify("reached", queue, value, self._resets)
            backlog = self._backlog[queue]
            try:
                while backlog and hardware.room(0):
                    value, submit = backlog[0]
                    under_way.append((submit(), value))
                    backlog.popleft()
            except UgpuError as error:
                self._failed(error)

    def _forget_work(self) -> None:
        for under_way in self._under_way:
            under_way.clear()
        for backlog in self._backlog:
            backlog.clear()

    def _failed(self, error: UgpuError) -> None:
        """The device has failed, or refuses a submission: the client learns it once."""
        with self._lock:
            self._forget_work()
            if self.failed is None and not isinstance(error, Closed):
                self.failed = error
                self._notify("failed", error)


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
