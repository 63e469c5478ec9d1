"""Queues that are full: work that waits for another queue's, and threads that wait for room."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import ugpu.am.work.queue
import ugpu.nv.rm.channel
import ugpu.nv.work.queue
from tests.support.waiting import until
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.timeline import SIZE, Timeline

# A ring whose pointers are equal is empty: one entry stays free.
RINGS = {
    ugpu.am.work.queue.RingQueue: ugpu.am.work.queue.SLOTS - 1,
    ugpu.nv.work.queue.ChannelQueue: ugpu.nv.rm.channel.ENTRIES - 1,
}


def ring_limit(hardware: HardwareQueue) -> int:
    """How many submissions a queue holds; a skip where it takes fresh memory and never waits."""
    for kind, limit in RINGS.items():
        if isinstance(hardware, kind):
            return limit
    pytest.skip(f"{type(hardware).__name__} has no ring of a fixed size")


class Stall:
    """A queue whose work waits for `release`, which is a submission of another queue. Leaving
    `with` releases it too."""

    def __init__(self, device: Device, kind: QueueKind) -> None:
        self.device = device
        self.memory = device.alloc(SIZE, placement=Placement.HOST)
        self.gate = Timeline(device.driver.core, self.memory, "gate")
        other = QueueKind.COMPUTE if kind is QueueKind.COPY else QueueKind.COPY
        self.other = device.queue(other)
        device.queue(kind).wait(self.gate, 1).submit()

    def release(self) -> None:
        self.other.signal(self.gate, 1).submit()

    def __enter__(self) -> Stall:
        return self

    def __exit__(self, *_: object) -> None:
        if self.gate.value < 1:
            self.release()
        self.device.synchronize()
        self.memory.close()


def waiting(device: Device, patch: pytest.MonkeyPatch, act: Callable[[], None]) -> threading.Thread:
    """Start a thread that does `act`, and come back once it waits for room."""
    full = threading.Event()
    room = device.driver.core.await_room

    def wait(hardware: HardwareQueue, words: int) -> None:
        full.set()
        room(hardware, words)

    patch.setattr(device.driver.core, "await_room", wait)
    thread = threading.Thread(target=act)
    thread.start()
    until(lambda: full.is_set() or not thread.is_alive(), "a submission to wait for room")
    assert full.is_set(), "the submission has not waited"
    return thread
