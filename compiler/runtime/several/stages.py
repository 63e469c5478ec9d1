"""The graphs of a recorded function: of each device, cut where elements pass between devices.

A graph begins with a device's first kernel after a copy, and ends at the next copy from or to the
device. Graphs and copies are replayed in the order in which they ended: a device's work is in its
own order, and copies come after what they read and before what reads them.

Copies are made by a queue of the target where it reaches the source's memory (peers, and `cpu`
devices of one process), otherwise through the host. In a replay they are made beside kernels that
need neither end: see compiler.runtime.several.crossing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ugpu.compiler.runtime.memory_pool import MemoryPool, Place, Storage, place_of
from ugpu.compiler.runtime.numbers import Slot
from ugpu.compiler.runtime.several.crossing import Crossing, Passage, Staging, staging_for, wait_for
from ugpu.hcq.device.device import Device, core_of, owner_of
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.graph import Capture
from ugpu.hcq.work.prepared import repetition_of
from ugpu.hcq.work.program import Parameter
from ugpu.hcq.work.queue import Repetition


@dataclass
class Part:
    """A graph of one device. used: the memory that its kernels name. slots: of the graph's
    parameters, in their order."""

    device: Device
    graph: Capture
    used: set[Place]
    slots: list[Slot] = field(default_factory=list)

    def parameter(self, slot: Slot) -> Parameter:
        """Return the argument of a kernel that each replay sets."""
        if slot not in self.slots:
            self.slots.append(slot)
        return Parameter(self.slots.index(slot), 8)

    @property
    def devices(self) -> tuple[Device, ...]:
        return (self.device,)


@dataclass
class Move:
    """A copy to another device. source, target: memory in the recording. start: the first byte.
    staging: host memory that it passes through, once that was needed."""

    source: Buffer
    start: int
    target: Buffer
    size: int
    staging: Staging | None = None

    @property
    def devices(self) -> tuple[Device, Device]:
        """The source's, and the target's."""
        return owner_of(self.source), owner_of(self.target)

    @property
    def used(self) -> set[Place]:
        return {place_of(self.source), place_of(self.target)}


class Lane:
    """The part of a recording on one device. part: the graph that records; None between graphs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = MemoryPool(device, keep=1 << 62)
        self.part: Part | None = None


class Stages:
    """Graphs and copies in the order of their replay. A context manager, inside of which they are
    recorded. Owns their memory."""

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self._stages: list[Part | Move] = []

    def lane(self, device: Device) -> Lane:
        """Return the part on a device, which records from now on."""
        lane = self.lanes.get(id(device))
        if lane is None:
            lane = self.lanes[id(device)] = Lane(device)
        if lane.part is None:
            graph = device.capture()
            graph.__enter__()
            lane.part = Part(device, graph, set())
        return lane

    def move(self, source: Storage, start: int, target: Storage, size: int) -> None:
        """Record a copy to another device."""
        for pool in (source.pool, target.pool):
            lane = self.lanes.get(id(pool.device))
            if lane is not None:
                self._end(lane)
        self._stages.append(Move(source.buffer, start, target.buffer, size))

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for lane in self.lanes.values():
            self._end(lane, kind)

    def _end(self, lane: Lane, kind: type[BaseException] | None = None) -> None:
        """End the graph that records on a device; kind: of the exception that ended it."""
        part, lane.part = lane.part, None
        if part is None:
            return
        part.graph.__exit__(kind)
        if kind is None and part.graph.images():
            self._stages.append(part)
        else:
            part.graph.close()

    def replay(
        self,
        bound: Mapping[Buffer, Buffer],
        current: Mapping[Place, Storage],
        words: Mapping[Slot, int],
    ) -> None:
        """Run everything. bound: memory to use instead of the recording's; current: the same for
        copies, by place. words: of the numbers that each replay sets. Closed, before anything has
        run, if memory that a graph names is gone."""
        if len(self._stages) == 1 and isinstance(self._stages[0], Part):
            part = self._stages[0]
            part.graph.replay(inputs=bound, parameters=[words[slot] for slot in part.slots])
            return
        for stage in self._stages:
            if isinstance(stage, Part):
                stage.graph.check()
        crossing = Crossing(tuple([lane.device for lane in self.lanes.values()]))
        left = self._stages
        try:
            while left:
                left = self._replay_some(left, crossing, bound, current, words)
            crossing.end()
        except BaseException:
            crossing.drop()
            raise

    def _replay_some(
        self, stages: Sequence[Part | Move], crossing: Crossing, bound: Mapping[Buffer, Buffer],
        current: Mapping[Place, Storage], words: Mapping[Slot, int],
    ) -> list[Part | Move]:  # fmt: skip
        """Run the first stage, and others as long as the host need not wait for a copy; return
        those left. What is behind one left on a device, or joined with it by a copy, is left
        too."""
        blocked: set[int] = set()
        left: list[Part | Move] = []
        for stage in stages:
            devices, places = stage.devices, stage.used
            waits = not blocked.isdisjoint(map(id, devices)) or crossing.holds(places)
            if waits and stage is not stages[0]:
                blocked.update(map(id, devices))
                left.append(stage)
            elif isinstance(stage, Part):
                named = {old: new for old, new in bound.items() if place_of(old) in places}
                crossing.before(stage.device, places)
                numbers = [words[slot] for slot in stage.slots]
                stage.graph.replay(inputs=named, parameters=numbers)
                crossing.after(stage.device, places)
            elif stage.size:
                self._cross(crossing, stage, current)
        return left

    @staticmethod
    def _cross(crossing: Crossing, move: Move, current: Mapping[Place, Storage]) -> None:
        """Begin a copy of a replay, or make it if it passes through memory out of reach."""
        source = _now(move.source, current)[move.start : move.start + move.size]
        target = _now(move.target, current)[: move.size]
        giver, taker = move.devices
        near = taker.driver.reach_memory(source) is not None
        if not near and move.staging is None:
            move.staging = staging_for(giver, taker, move.size)
            if move.staging is None:
                crossing.end()
                carry(source, target, move.size)
                return
        places = place_of(move.source), place_of(move.target)
        staging = None if near else move.staging
        crossing.copy(Passage((giver, taker), places, source, target, staging))

    def repetition(self, inputs: Sequence[Buffer]) -> Repetition | None:
        """Return work that does what a replay does, in one step, with the addresses of other memory
        for `inputs` as its numbers; None if that takes more. Closed if the graph is."""
        if len(self._stages) != 1 or not isinstance(self._stages[0], Part):
            return None
        graph = self._stages[0].graph
        graph.check()
        if len(graph.recorded) != 1:
            return None
        repetition = repetition_of(*graph.recorded[0], inputs)
        return repetition if repetition is not None and repetition.in_one_step else None

    def retire(self) -> None:
        """Close the graphs; memory stays valid."""
        for stage in self._stages:
            if isinstance(stage, Part):
                stage.graph.close()

    def close(self) -> None:
        """Free graphs and memory once the last replay has ended."""
        self.retire()
        for stage in self._stages:
            for buffer in (stage.staging or ()) if isinstance(stage, Move) else ():
                buffer.close()
        for lane in self.lanes.values():
            lane.pool.keep = 0
            lane.pool.clear()


def _now(buffer: Buffer, current: Mapping[Place, Storage]) -> Buffer:
    storage = current.get(place_of(buffer))
    return buffer if storage is None else storage.buffer


def carry(source: Buffer, target: Buffer, size: int) -> None:
    """Copy bytes to another device, after all work of both devices so far and before later work.
    The host waits for a copy that passes through it, for others at most twice SHORT_S."""
    if not size:
        return
    giver, taker = owner_of(source), owner_of(target)
    near = taker.driver.reach_memory(source)
    if near is None:
        staging = np.empty(size, np.uint8)
        core_of(giver).copies.download(source[:size], staging.data)
        core_of(taker).copies.upload(target, staging.data)
        return
    timeline = giver.queue().timeline
    wait_for(taker.queue(), (timeline, timeline.last))
    queue = taker.queue()
    value = queue.copy(target, near, size).submit()
    wait_for(giver.queue(), (queue.timeline, value))  # the source's memory may be used again then
