"""Copies between devices while kernels of both run: those of a recorded function's replay.

    copy     waits for the kernels before it that touch its source or its target, and for other
             copies of the same memory; on a copy queue
    kernels  wait for the copies before them whose source or target they touch

A copy that the target's queues can make themselves is one command of its copy queue. Another one
passes through memory of the host: the source's copy queue fills that, and once something needs the
copy, the host passes it on to the target's copy queue. When a replay ends, each device's compute
queue waits for all copies that it took part in, so that what follows needs to know of none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Set
from dataclasses import dataclass, field

from ugpu.compiler.runtime.memory_pool import Place
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.hcq.work.timeline import Timeline

SHORT_S = 5e-4  # a wait of the host up to which the thread that a queue's wait takes costs more

Point = tuple[Timeline, int]  # of a queue's work
Staging = tuple[Buffer, Buffer]  # host memory of a copy's source, and of its target


@dataclass
class Passage:
    """A copy of `source` to `target`, of one size. places: of both in the recording. staging: for a
    copy through host memory. done: when it will have ended; None while its elements are in host
    memory, from `full` on."""

    devices: tuple[Device, Device]
    places: tuple[Place, Place]
    source: Buffer
    target: Buffer
    staging: Staging | None = None
    full: Point | None = None
    done: Point | None = None


@dataclass
class Crossing:
    """The copies of one replay. devices: all that take part."""

    devices: tuple[Device, ...]
    copies: list[Passage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._first = {id(each): _last(each) for each in self.devices}  # what came before
        self._used: dict[Place, Point] = {}  # the last use of a place by kernels

    def holds(self, places: Set[Place]) -> bool:
        """Return whether the host has to wait for a copy before anything may use these places."""
        return any(each.done is None for each in self._of(places))

    def before(self, device: Device, places: Set[Place]) -> None:
        """Have the compute queue of a device wait for the copies of these places."""
        for each in self._of(places):
            wait_for(device.queue(), self._sent(each))

    def after(self, device: Device, places: Set[Place]) -> None:
        """Note that the device's last work touches these places."""
        self._used |= dict.fromkeys(places, _last(device))

    def copy(self, new: Passage) -> None:
        """Begin a copy."""
        points = [self._sent(each) for each in self._of(set(new.places))]
        points += map(self._last_use, new.devices, new.places)
        giver, taker = new.devices
        if new.staging is None:
            near = taker.driver.reach_memory(new.source)
            assert near is not None, new
            new.done = _submitted(taker, new.target, near, points)
        else:
            new.full = _submitted(giver, new.staging[0], new.source, points)
        self.copies.append(new)

    def end(self) -> None:
        """Have later work of each device wait for its copies."""
        for each in self.copies:
            done = self._sent(each)
            for device in each.devices:
                wait_for(device.queue(), done)
        self.copies.clear()

    def drop(self) -> None:
        """Do the same after an error, without waiting: of a copy whose elements are still in host
        memory nothing more is done."""
        for each in self.copies:
            point = each.done or each.full
            assert point is not None, each
            for device in each.devices:
                with contextlib.suppress(UgpuError):  # it has failed, and runs nothing more
                    device.queue().wait(*point).submit()
        self.copies.clear()

    def _of(self, places: Set[Place]) -> list[Passage]:
        return [each for each in self.copies if not places.isdisjoint(each.places)]

    def _last_use(self, device: Device, place: Place) -> Point:
        return self._used.get(place) or self._first.get(id(device)) or _last(device)

    def _sent(self, copy: Passage) -> Point:
        """Return when a copy will have ended, after passing it on from host memory."""
        if copy.done is None:
            assert copy.staging is not None and copy.full is not None, copy
            (here, there), (timeline, value) = copy.staging, copy.full
            timeline.wait(value)
            assert here.view is not None and there.view is not None, copy
            there.view[:] = here.view
            taker = copy.devices[1]
            use = self._last_use(taker, copy.places[1])
            copy.done = _submitted(taker, copy.target, there, [use])
        return copy.done


def staging_for(giver: Device, taker: Device, size: int) -> Staging | None:
    """Return host memory of both devices for a copy that has to pass through it; None if this
    process cannot access it."""
    made = tuple(each.alloc(size, placement=Placement.HOST) for each in (giver, taker))
    if all(each.view is not None for each in made):
        return made[0], made[1]
    for each in made:
        each.close()
    return None


def wait_for(queue: Queue, point: Point) -> None:
    """Have a queue wait for work of another, unless that ends shortly."""
    timeline, value = point
    if not timeline.reached(value):
        timeline.core.driver.pause_until(timeline, value, SHORT_S)
    if not timeline.reached(value):
        queue.wait(timeline, value).submit()


def _last(device: Device) -> Point:
    timeline = device.queue().timeline
    return timeline, timeline.last


def _submitted(device: Device, target: Buffer, source: Buffer, points: list[Point]) -> Point:
    """Submit a copy to the copy queue, after some work; return when it will have ended."""
    queue = device.queue(QueueKind.COPY)
    for timeline, value in points:
        if not timeline.reached(value):
            queue.wait(timeline, value)
    queue.copy(target, source, source.size)
    return queue.timeline, queue.submit()
