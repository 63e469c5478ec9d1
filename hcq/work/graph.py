"""Graphs: commands of all queues of a device, captured once, replayed with new inputs.

Capturing does all work that grows with the number of commands: each queue's commands become one
image resident in device-reachable memory. Replaying computes the values of the graph's symbols,
patches the words whose symbols changed in one vectorised step, and rings one doorbell per queue.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.checks import seconds
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Part, Symbol
from ugpu.hcq.work.graph_inputs import Binding, Place, bits_of, find_binding
from ugpu.hcq.work.queue import HardwareQueue, QueueState, Resident
from ugpu.hcq.work.timeline import CAPTURED, Timeline

if TYPE_CHECKING:
    from ugpu.hcq.state.weak_registry import WeakRegistry
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.state import OpenDevice

FEW = 64  # commands that a graph keeps as they were recorded
PARTS = 256  # number of input bindings whose patches are kept
_serials = itertools.count(1)


class GraphState(QueueState, Protocol):
    """What graphs use of their device, and work that cannot be captured.

    Attributes:
        capturing: the graph that records.
        replaying: a replay that has begun.
        graphs: captured and not closed.
    """

    capturing: Capture | None
    replaying: Replay | None
    graphs: WeakRegistry[Capture]


@dataclass
class _Image:
    """One queue's part of a graph. signals, parameters: positions among its symbols. signal_points,
    parameter_slots: the point or slot of each."""

    hardware: HardwareQueue
    encoded: CommandBuffer
    resident: Resident
    signals: list[int]
    signal_points: list[int]
    parameters: list[int]
    parameter_slots: list[int]


@dataclass(frozen=True)
class Replay:
    """A replay that is decided on.

    It stays in Core.replaying until it is submitted to all queues. If an exception occurs between
    two queues, `Core.complete` submits to the others.

    Attributes:
        graph: the graph that is replayed.
        ends: the values that the graph's timelines reach by it.
    """

    graph: Capture
    ends: Sequence[int]

    def complete(self) -> None:
        """Submit to the queues that do not have the replay yet. The device's lock is held."""
        self.graph.submit(self.ends)
        self.graph.core.replaying = None

    def give_up(self) -> None:
        """Count the replay as submitted to all queues: the device is being reset, which loses it.
        The device's lock is held."""
        self.graph.expect(self.ends)


class Capture:
    """Records what its thread submits to the device between entering and leaving, and replays it.

        with device.capture() as graph:
            with device.queue() as queue:
                queue.launch(kernel, grid=..., block=..., args=(out, x, Parameter(0, 4)))
        graph.replay(inputs={x: y}, parameters=[7])

    Submissions of other threads run as usual. Queues inside the same graph may wait for a
    submission's value, other queues may not. The graph keeps references to the programs and buffers
    that it uses, but does not keep them open: after one is closed, `replay` raises Closed. Owned by
    the caller: `close` frees the images. The images of a dropped graph are freed some time after
    its last replay.

    Attributes:
        recorded: the commands of each queue, until it is closed; empty if they are more than FEW.
    """

    def __init__(self, core: GraphState) -> None:
        self.core = core
        self.closed = False
        self.launches = 0  # kernels in a replay
        self._serial = next(_serials)
        # One replay at a time. Reentrant: a thread interrupted before the release can acquire it
        # again.
        self._lock = threading.RLock()
        self._thread: int | None = None
        self.recorded: Sequence[tuple[HardwareQueue, Sequence[Command]]] = ()
        self._commands: dict[HardwareQueue, list[Command]] = {}
        self._submissions: dict[Timeline, int] = {}
        self._images: list[_Image] = []
        self._timelines: list[Timeline] = []
        self._point_timeline = np.zeros(0, np.intp)  # per point: which timeline, and how far it
        self._point_step = np.zeros(0, np.uint64)  # rises above that timeline's value before
        self._rises: list[int] = []
        self._ends: Sequence[int] = []
        self._widths: dict[int, int] = {}
        self._aligned: list[tuple[int, int, int]] = []  # parameters: slot, what is added, multiple
        self._roots: dict[int, Buffer] = {}
        self._bindings: dict[Place, Binding] = {}
        self._bound: tuple[Place, ...] = ()  # in the previous replay
        self._parts: dict[tuple[Place, ...], list[Part]] = {}  # by places bound, or no longer bound
        self._ready = False
        self._lost: str | None = None

    # ---- capture -----------------------------------------------------------------------------

    @property
    def device(self) -> OpenDevice:
        """The device of the graph."""
        return self.core.device

    def __enter__(self) -> Capture:
        with self.core.lock:
            if self._thread is not None or self._ready or self.closed:
                raise BadArgument("this graph has already been captured")
            if self.core.capturing is not None:
                raise BadArgument(f"{self.core.name} is already capturing a graph")
            self._thread = threading.get_ident()
            self.core.capturing = self
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.core.lock:
            self.core.capturing = None
            if kind is not None:
                self.closed = True
                return
            try:
                self.core.check_usable()
                self._build()
            except BaseException:
                self._release()
                raise
            self.core.graphs.add(self)
            self._ready = True

    @property
    def is_mine(self) -> bool:
        """Return whether the calling thread's submissions are recorded."""
        return self._thread == threading.get_ident()

    def record(self, hardware: HardwareQueue, commands: Sequence[Command]) -> int:
        """Record one submission; return a stand-in for its timeline value, valid inside this
        graph."""
        number = self._submissions.get(hardware.timeline, 0) + 1
        self._submissions[hardware.timeline] = number
        value = CAPTURED | self._serial << 32 | number
        end = Signal(hardware.timeline, Symbol.constant(value))
        self._commands.setdefault(hardware, []).extend([*commands, end])
        return value

    def last(self, timeline: Timeline) -> int:
        """Return the value that a wait for all work submitted so far waits for: the last recorded
        value, or the last real one."""
        number = self._submissions.get(timeline)
        return timeline.last if number is None else CAPTURED | self._serial << 32 | number

    # ---- replay ------------------------------------------------------------------------------

    def replay(
        self,
        inputs: Mapping[Buffer, Buffer] | None = None,
        parameters: Sequence[int | np.generic] = (),
    ) -> None:
        """Run the graph; return once it is submitted to its queues (see `wait`).

        inputs: captured buffer (or slice) -> the one to use in its place this time, at least as
        large as the part that the graph accesses. parameters: a value for each Parameter slot: an
        int, or a NumPy scalar whose bits are taken. Blocks while this graph's previous replay still
        runs. Raises BadArgument before touching anything, Closed, or the device's failure.
        """
        with self._lock:
            self.check()
            places, addresses = self._bind(inputs) if inputs else ((), [])
            scalars = self._scalars(parameters) if parameters or self._widths else []
            self._await_previous()
            while True:
                with self.core.lock:
                    self.core.check_usable()
                    self.core.complete()
                    self.check()
                    full = next((i.hardware for i in self._images if not i.hardware.room(0)), None)
                    if full is None:
                        ends = self._patch(places, addresses, scalars)
                        self.core.replaying = Replay(self, ends)
                        self.core.launches += self.launches
                        self.core.complete()
                        for timeline, end in zip(self._timelines, ends, strict=True):
                            self.core.losses.submitted(timeline, end)
                        return
                self.core.await_room(full, 0)

    def wait(self, limit_s: float | None = None) -> None:
        """Block until the last replay has finished; raises the same errors as Timeline.wait."""
        if limit_s is not None:
            seconds("limit_s", limit_s)
        for timeline, value in zip(self._timelines, self._ends, strict=False):
            timeline.wait(value, limit_s=limit_s)

    def images(self) -> Sequence[Resident]:
        """Return the images, one for each queue that the graph uses."""
        return [image.resident for image in self._images]

    def forget(self, buffer: Buffer) -> None:
        """Note that `buffer` is being freed, so that replaying raises Closed."""
        if id(buffer) in self._roots:
            self._lost = f"{buffer!r}, which this graph uses, has been closed"

    def close(self) -> None:
        """Free the images once the last replay has ended; idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            if not self.core.closed:
                self.core.settle()
            with self.core.lock:
                self._release()

    def __repr__(self) -> str:
        words = sum(image.encoded.command_words for image in self._images)
        state = "closed" if self.closed else "ready" if self._ready else "empty"
        return f"<Graph on {self.core.name}: {len(self._images)} queues, {words} words, {state}>"

    def abandon(self) -> None:
        """Drop this graph in a forked child: no thread of the parent continues its work there."""
        self._lock = threading.RLock()

    def __del__(self) -> None:
        if self._images and not self.core.closed:  # dropped; a replay may be in flight
            self.closed = True  # also for finalizers of objects that referred to it
            images, self._images = self._images, []
            self.core.retired.drop(lambda: _close(images))

    # ---- internals ---------------------------------------------------------------------------

    def _patch(
        self, places: tuple[Place, ...], addresses: Sequence[int], scalars: Sequence[int]
    ) -> list[int]:
        """Write the words that change into the images; return the values that the timelines will
        have."""
        before = [timeline.last for timeline in self._timelines]
        bound = places
        if places != self._bound:  # places bound before get their own addresses again
            again = [place for place in self._bound if place not in places]
            places, addresses = (*again, *places), [*[p[1] for p in again], *addresses]
        parts = self._parts.get(places)
        if parts is None:
            if len(self._parts) >= PARTS:
                self._parts.clear()
            parts = self._parts[places] = self._find_parts(places)
        values = np.array([*self._points(before), *scalars, *addresses], np.uint64)
        self._bound = places  # after an exception from here on, all are written again
        for image, part in zip(self._images, parts, strict=True):
            image.resident.insert(part, values)
        self._bound = bound
        return [value + rise for value, rise in zip(before, self._rises, strict=True)]

    def submit(self, ends: Sequence[int]) -> None:
        """Submit to the queues that do not have the replay yet; see Replay."""
        self._ends = ends
        for timeline, end in zip(self._timelines, ends, strict=True):
            if not self.core.is_own(timeline):
                timeline.last = max(timeline.last, end)
        for image in self._images:
            end = ends[self._timelines.index(image.hardware.timeline)]
            if image.hardware.timeline.last < end:
                image.hardware.submit_resident(image.resident, image.encoded.command_words, end)

    def expect(self, ends: Sequence[int]) -> None:
        """Raise the last values of all timelines to those of a replay; see Replay."""
        self._ends = ends
        for timeline, end in zip(self._timelines, ends, strict=True):
            timeline.last = max(timeline.last, end)

    def _points(self, before: Sequence[int]) -> list[int]:
        """Return the values of all points."""
        if len(self._point_step) == 1:
            return [before[0] + int(self._point_step[0])]
        found = np.array(before, np.uint64)[self._point_timeline] + self._point_step
        return cast(list[int], found.tolist())

    def _find_parts(self, places: Sequence[Place]) -> list[Part]:
        """Return the patches of each image if these places are bound. Their values are those of all
        points, then the parameters, then one address for each place."""
        points, slots = len(self._point_step), max(self._widths, default=-1) + 1
        parts = []
        for number, image in enumerate(self._images):
            sources = dict(zip(image.signals, image.signal_points, strict=True))
            for position, slot in zip(image.parameters, image.parameter_slots, strict=True):
                sources[position] = points + slot
            offsets = dict.fromkeys(sources, 0)
            for count, place in enumerate(places):
                binding = self._bindings[place]
                each = zip(binding.positions[number], binding.offsets[number], strict=True)
                for position, offset in each:
                    sources[position], offsets[position] = points + slots + count, offset
            parts.append(image.encoded.part([*sources], [*sources.values()], [*offsets.values()]))
        return parts

    def check(self) -> None:
        """Raise Closed if it cannot be replayed any more, BadArgument if it cannot be yet."""
        if self.closed:
            raise Closed("graph used after close")
        if not self._ready:
            raise BadArgument("replay called before the capture has ended")
        if self._lost is not None:
            raise Closed(self._lost)

    def _await_previous(self) -> None:
        """Wait until the images may be written; raise errors of replays that were lost, once."""
        losses = self.core.losses
        for timeline, value in zip(self._timelines, self._ends, strict=False):
            if not timeline.reached(value):
                timeline.wait(value)
            losses.tell_recovered(timeline)
            losses.tell_own(timeline)

    def _release(self) -> None:
        self.closed = True
        if not self.core.closed:  # shutting down has released everything already
            self.core.retired.release(partial(_close, self._images))
        self._images = []  # ORDER: `__del__` releases them if this is interrupted
        self._commands.clear()
        self.recorded = ()
        self._roots.clear()
        self.core.graphs.discard(self)

    def _build(self) -> None:
        if sum(map(len, self._commands.values())) <= FEW:
            self.recorded = tuple(self._commands.items())
        points = self._number_points()
        for hardware, commands in self._commands.items():
            final = CAPTURED | self._serial << 32 | self._submissions[hardware.timeline]
            encoded = hardware.encode(self._resolve(commands, points, (hardware.timeline, final)))
            self.launches += sum(isinstance(command, Launch) for command in commands)
            self._images.append(self._place(hardware, encoded))
            self._aligned += [
                (symbol.slot, symbol.addend, align)
                for symbol, align in encoded.aligned
                if symbol.kind == "parameter"
            ]
        self._commands.clear()

    def _number_points(self) -> dict[tuple[Timeline, int], int]:
        """Give a number to each (timeline, value) that the graph raises and that a command waits
        for."""
        raised: set[tuple[Timeline, int]] = set()
        awaited: set[tuple[Timeline, int]] = set()
        for hardware, commands in self._commands.items():
            final = CAPTURED | self._serial << 32 | self._submissions[hardware.timeline]
            awaited.add((hardware.timeline, final))
            for command in commands:
                if isinstance(command, Signal):
                    raised.add((command.timeline, command.value.addend))
                    if command.value.addend < CAPTURED:
                        awaited.add((command.timeline, command.value.addend))
                elif isinstance(command, Wait):
                    awaited.add((command.timeline, command.value.addend))
        for timeline, value in awaited - raised:
            if value >= CAPTURED:
                raise BadArgument(
                    f"{timeline.name}: the value to wait for belongs to another capture"
                )
        ordered = sorted(raised & awaited, key=lambda point: point[1])
        self._timelines = list(dict.fromkeys(timeline for timeline, _ in ordered))
        steps = dict.fromkeys(self._timelines, 0)
        step_of = []
        for timeline, _ in ordered:
            steps[timeline] += 1
            step_of.append(steps[timeline])
        self._point_timeline = np.array([self._timelines.index(t) for t, _ in ordered], np.intp)
        self._point_step = np.array(step_of, np.uint64)
        self._rises = list(steps.values())
        return {point: number for number, point in enumerate(ordered)}

    def _resolve(
        self,
        commands: Sequence[Command],
        points: Mapping[tuple[Timeline, int], int],
        final: tuple[Timeline, int],
    ) -> list[Command]:
        """Turn values of this graph into symbols; signals without a wait become barriers."""
        resolved: list[Command] = []
        for command in commands:
            if isinstance(command, Signal | Wait):
                point = (command.timeline, command.value.addend)
                if point in points:
                    command = replace(command, value=Symbol("signal", slot=points[point]))
                elif isinstance(command, Signal):
                    command = Barrier()
            self._note(command)
            resolved.append(command)
            if isinstance(command, Signal) and point != final:
                resolved.append(Barrier())  # submissions execute in order, also inside one image
        return resolved

    def _note(self, command: Command) -> None:
        """Remember the buffers and parameters that `command` depends on."""
        symbols: list[Symbol] = []
        if isinstance(command, Launch):
            symbols = [reference.symbol for reference in command.references]
            for reference in command.references:
                if reference.symbol.kind == "parameter":
                    slot = reference.symbol.slot
                    if self._widths.setdefault(slot, reference.width) != reference.width:
                        raise BadArgument("a parameter slot must have one width", slot=slot)
            if command.kernel.program.memory is not None:
                self._hold(command.kernel.program.memory)
        elif isinstance(command, Copy):
            symbols = [command.destination, command.source]
        elif isinstance(command, Fill | Timestamp):
            symbols = [command.destination]
        elif isinstance(command, Wait | Signal):
            self._hold(command.timeline.memory)
        for symbol in symbols:
            if symbol.buffer is not None:
                self._hold(symbol.buffer)

    def _hold(self, buffer: Buffer) -> None:
        root = buffer.owner or buffer
        self._roots[id(root)] = root

    def _place(self, hardware: HardwareQueue, encoded: CommandBuffer) -> _Image:
        resident = hardware.place(encoded)
        captured = np.zeros(len(encoded.symbols), np.uint64)
        where: dict[str, list[int]] = {"signal": [], "parameter": [], "image": [], "buffer": []}
        for position, symbol in enumerate(encoded.symbols):
            where.setdefault(symbol.kind, []).append(position)
            if symbol.kind == "image":
                captured[position] = resident.address
            elif symbol.buffer is not None:
                captured[position] = int(symbol.buffer.address)
        slots = [encoded.symbols[position].slot for position in where["parameter"]]
        points = [encoded.symbols[position].slot for position in where["signal"]]
        resident.fill(encoded, captured)
        return _Image(
            hardware, encoded, resident, where["signal"], points, where["parameter"], slots
        )

    def _scalars(self, parameters: Sequence[int | np.generic]) -> list[int]:
        count = max(self._widths, default=-1) + 1
        if len(parameters) != count:
            raise BadArgument(f"the graph takes {count} parameters, got {len(parameters)}")
        return [
            bits_of(value, self._widths.get(slot, 8), slot) for slot, value in enumerate(parameters)
        ]

    def _bind(self, inputs: Mapping[Buffer, Buffer]) -> tuple[tuple[Place, ...], list[int]]:
        """Return the places that are replaced, and the addresses of their replacements."""
        places, addresses = [], []
        for old, new in inputs.items():
            if new.core is not self.core:
                raise BadArgument("the buffer belongs to another device", buffer=new)
            new._check_open()
            place = (id(old.owner or old), int(old.address), old.size)
            if place not in self._bindings:
                self._bindings[place] = find_binding([image.encoded for image in self._images], old)
            self._bindings[place].check(new)
            places.append(place)
            addresses.append(int(new.address))
        return tuple(places), addresses


def _close(images: Sequence[_Image]) -> None:
    for image in images:
        image.resident.close()
