"""The driver of a leased device: it forwards all work to the server, which has the real driver.

Addresses are those of the server's device, so that kernels may find them in memory. Operations that
need an answer are calls (memory, programs, copies out). Submissions, replays, frees and short
copies in are messages without a reply, so that a chain of them costs no round trip.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.errors import LinkError, UgpuError
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.connection import Connection, Owned
from ugpu.hcq.remote.queue import QueuesDriver, RemoteQueue, RemoteResident, RemoteTimeline
from ugpu.hcq.remote.replies import checked, facts, number, real, text
from ugpu.hcq.remote.wire import CHUNK, Message, WireError
from ugpu.hcq.state.ladder import Diagnosis, Level, Planned
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.state.weak_registry import WeakRegistry
from ugpu.hcq.transport.view import RemoteView
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Kernel, Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.remote.request import Grant

SHORT = 64 << 10  # bytes of a copy that is not awaited: later messages follow it anyway
AHEAD = 8  # chunks of a large copy that are in flight at a time
#: seconds of a wait that the server makes for the client, for a timeline in memory; then repeated
_WATCH_S = 1.0


class RemoteDriver(QueuesDriver):
    """Driver of a leased device. Owns the connection, and with it the lease."""

    def __init__(self, name: str, connection: Connection, grant: Grant) -> None:
        super().__init__(name)
        self.connection = connection
        self.grant = grant
        self.target = grant.target
        self.clock_hertz = grant.clock_hertz
        if grant.kernels and connection.address.path:
            self.kernels = Path(grant.kernels)
        self.failed: UgpuError | None = None  # at the server, since the last reset
        self.resets = 0
        self._owned: WeakRegistry[Owned] = WeakRegistry()
        self._pending: dict[RemoteResident, int] = {}  # replays that go in one message
        self._queues: list[RemoteQueue] = []
        for kind in QueueKind:
            for address in grant.timelines.get(kind.value, []):
                self._queues.append(RemoteQueue(self, kind, len(self._queues), address))
        self._by_kind = {k: [q for q in self._queues if q.kind is k] for k in QueueKind}
        connection.on_event = self._on_event
        self.core.opened()

    # ---- memory and programs -----------------------------------------------------------------

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        owned = self._own("free", size)
        reply = self.connection.call("allocate", size, placement.value, owner=owned)
        with checked("allocate"):
            address = number(reply.arguments[0][1])
        view = None
        if placement is Placement.HOST:
            view = RemoteView(
                lambda offset, count: bytes(self.read(address + offset, count)),
                lambda offset, data: self.write(address + offset, memoryview(data).cast("B")),
                size,
            )
        return Buffer(self.core, VirtAddr(address), size, placement, view, owned)

    def free_memory(self, buffer: Buffer) -> None:
        if isinstance(buffer.handle, Owned):
            buffer.handle.give_back()

    def load_program(self, image: bytes) -> Program:
        owned = self._own("unload", 0)
        reply = self.connection.call("load", data=image, owner=owned)
        with checked("load"):
            _, address, size, kernels = reply.arguments[0]
            owned.size = number(size)
            where = VirtAddr(number(address))
            owner = Buffer(self.core, where, owned.size, Placement.DEVICE, handle=owned)
            program = Program(self.core, owner)
            for name, entry, argument_bytes, arguments, *sizes in kernels:
                local, private = map(number, sizes)
                declared = None if arguments is None else tuple(map(_argument, arguments))
                program.kernels[text(name)] = Kernel(
                    name, program, number(entry), number(argument_bytes), declared, local, private
                )
        return program

    def _own(self, undo: str, size: int) -> Owned:
        owned = Owned(self.connection, undo)
        owned.size = size
        self._owned.add(owned)
        return owned

    @property
    def used(self) -> int:
        """Bytes of memory that buffers and programs occupy."""
        return sum(owned.size for owned in self._owned if not owned.freed and owned.number)

    # ---- queues ------------------------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self._by_kind[kind]

    def all_queues(self) -> Sequence[HardwareQueue]:
        return self._queues

    def replay(self, resident: RemoteResident, value: int) -> None:
        resident.place()
        self._pending[resident] = value
        replaying = self.core.replaying
        if replaying is None or resident is replaying.graph.images()[-1]:
            self._replay_pending()

    def _replay_pending(self) -> None:
        pending = list(self._pending.items())
        told = [number for image, value in pending for number in (image.number, value)]
        data = b"".join(image.values().tobytes() for image, _ in pending)
        self.connection.post("replay", told, data=data)
        self._pending.clear()

    def post_quietly(self, operation: str, *arguments: object) -> None:
        with contextlib.suppress(LinkError):
            self.connection.post(operation, *arguments)

    # ---- waiting -----------------------------------------------------------------------------

    def pause(self, limit_s: float) -> None:
        timeline = self._queues[0].timeline
        timeline.pause(timeline.value + 1, limit_s)

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        if self.failed is not None or self.connection.failure is not None:
            return
        if isinstance(timeline, RemoteTimeline):
            timeline.pause(value, limit_s)
        elif limit_s > 0:
            seconds = min(limit_s, _WATCH_S)
            self.connection.call("watch", timeline.address, value, seconds)

    # ---- copies ------------------------------------------------------------------------------

    def make_transfer(self) -> Transfer:
        return RemoteTransfer(self)

    def write(self, address: int, data: memoryview) -> None:
        """Store bytes, before all work that is submitted later. Blocks until complete if there are
        several chunks."""
        if len(data) <= SHORT:
            self.connection.post("write", address, data=bytes(data))
            return
        begin = self.connection.begin
        self._pipelined(
            [
                partial(begin, "write", address + start, data=data[start : start + CHUNK])
                for start in range(0, len(data), CHUNK)
            ],
            lambda position, reply: None,
        )

    def read(self, address: int, size: int, out: memoryview | None = None) -> memoryview:
        """Load bytes, into `out` if given."""
        content = memoryview(bytearray(size)) if out is None else out

        def store(position: int, reply: Message) -> None:
            part = content[position * CHUNK : (position + 1) * CHUNK]
            if len(reply.data) != len(part):
                raise WireError("the daemon sent a different number of bytes than requested")
            part[:] = reply.data

        self._pipelined(
            [
                partial(self.connection.begin, "read", address + start, min(CHUNK, size - start))
                for start in range(0, size, CHUNK)
            ],
            store,
        )
        return content

    def _pipelined(
        self, begins: Sequence[Callable[[], int]], done: Callable[[int, Message], None]
    ) -> None:
        """Keep up to AHEAD requests in flight, and process their replies in order."""
        under_way: deque[int] = deque()
        taken = 0
        for position, begin in enumerate(begins):
            under_way.append(begin())
            if len(under_way) >= AHEAD or position == len(begins) - 1:
                while under_way and (len(under_way) >= AHEAD or position == len(begins) - 1):
                    done(taken, self.connection.finish(under_way.popleft()))
                    taken += 1

    # ---- failures ----------------------------------------------------------------------------

    def poll(self) -> UgpuError | None:
        return self.failed or self.connection.failure

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        index = next((q.index for q in self._queues if q.timeline is timeline), 0)
        diagnosis: dict[str, object] = {"daemon": self.connection.name, "lease": self.grant.lease}
        with contextlib.suppress(UgpuError):
            reply = self.connection.call("diagnose", index, value)
            with checked("diagnose"):
                diagnosis |= facts(reply.arguments[0])
        return diagnosis

    def recover(self, only: Level | None = None) -> Recovery:
        if self.connection.failure is not None:
            raise self.connection.failure
        self._pending.clear()
        self.resets += 1
        lasts = [queue.timeline.last for queue in self._queues]
        reply = self.connection.call("reset", lasts, 0 if only is None else int(only), self.resets)
        self.failed = None
        with checked("reset"):
            report = reply.arguments[0]
            lost = frozenset(Placement(name) for name in report[3])
            attempts = failures.attempts_from_wire(report)
        return Recovery(*attempts, tuple(self._queues), lost_placements=lost)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        reply = self.connection.call("plan", 0 if only is None else int(only))
        with checked("plan"):
            return failures.plan_from_wire(reply.arguments[0])

    def _on_event(self, event: Message | UgpuError) -> None:
        """Handle an event, in the connection's thread."""
        if isinstance(event, Message) and event.operation == "reached":
            index, value, resets = event.arguments
            if index < len(self._queues) and resets == self.resets:
                self._queues[index].timeline.reach(value)
            return
        if isinstance(event, UgpuError):
            self.failed = self.failed or event
        elif event.operation == "failed":
            self.failed = failures.from_wire(*event.arguments)
        for queue in self._queues:
            queue.timeline.wake()

    # ---- life and facts ----------------------------------------------------------------------

    def shutdown(self) -> None:
        try:
            with contextlib.suppress(LinkError):
                if self.connection.failure is None:
                    self.connection.call("release", None)
        finally:
            self.connection.close()

    def info(self) -> dict[str, object]:
        reply = self.connection.call("info")
        with checked("info"):
            properties = facts(reply.arguments[0])
        return {**properties, "device": self.name, "daemon": self.connection.name}

    def _readings(self) -> list[tuple[str, str, str, float]]:
        """Return name, unit, label and value of each of the server's sensors."""
        reply = self.connection.call("sensors")
        with checked("sensors"):
            return [
                (text(name), text(unit), text(label), real(value))
                for name, unit, label, value in reply.arguments[0]
            ]

    def sensors(self) -> Sequence[Sensor]:
        own = Sensor("memory_used_bytes", "B", lambda: float(self.used))
        listed = self._readings()
        latest: dict[tuple[str, str], float] = {}
        read_at = [-math.inf]

        def read(key: tuple[str, str]) -> float:
            now = self.clock.now()
            if now - read_at[0] > 0.05 or key not in latest:  # one call reads all of them
                for name, _, label, value in self._readings():
                    latest[name, label] = value
                read_at[0] = now
            with checked("sensors"):
                return latest[key]

        return (
            own,
            *(
                Sensor(name, unit, partial(read, (name, label)), label)
                for name, unit, label, _ in listed
                if name != own.name
            ),
        )


def _argument(row: list[Any]) -> Argument:
    """Return a declared argument of a kernel; ValueError, TypeError."""
    offset, size, name, is_address, kind = row
    if is_address is not None and not isinstance(is_address, bool):
        raise ValueError(f"expected true, false or nil, got {is_address!r}")
    return Argument(number(offset), number(size), text(name), is_address, text(kind))


class RemoteTransfer(Transfer):
    """Copies by messages; the server has the staging buffers."""

    def __init__(self, driver: RemoteDriver) -> None:
        super().__init__(driver.core)
        self._driver = driver

    def send(self, destination: Buffer, data: memoryview) -> None:
        self._driver.write(int(destination.address), data)

    def receive(self, source: Buffer, out: memoryview) -> None:
        self._driver.read(int(source.address), len(out), out)
