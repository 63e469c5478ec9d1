"""Data collected from a thread's runs while a function is recorded (compiler.front.jit)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.graph.node import ByValue, Node
from ugpu.compiler.runtime.memory_pool import MemoryPool, Place, Storage, place_of
from ugpu.compiler.runtime.numbers import Draws
from ugpu.compiler.runtime.several.stages import Stages, carry
from ugpu.hcq.device.device import Device

_thread = threading.local()
under_way: set[int] = set()  # ids of the recordings of all threads


class Recording:
    """The kernels of one call of a function.

    stages: what is captured, with memory of its own; None for a call that runs as usual. devices:
    that run kernels. keys: the kernels and copies between devices, in order; kernels: how many are
    kernels. used: the memory that they name. made: the storages that were computed. written: memory
    that assignments write into. draws: of random numbers, if it is captured.
    """

    def __init__(self, name: str, stages: Stages | None = None) -> None:
        self.name = name
        self.stages = stages
        self.devices: list[Device] = []
        self.draws = Draws()
        self.keys: list[tuple[Any, ...]] = []
        self.kernels = 0
        self.used: set[Place] = set()
        self.made: list[weakref.ref[Storage]] = []
        self.written: set[Place] = set()
        self._settled: list[tuple[Node, str, tuple[Node, ...], Any]] = []

    def __enter__(self) -> Recording:
        self._outer = current_recording()
        _thread.recording = self
        under_way.add(id(self))
        return self

    def __exit__(self, *_: object) -> None:
        _thread.recording = self._outer
        under_way.discard(id(self))

    def pool_for(self, own: MemoryPool) -> MemoryPool:
        """Return the pool for a run of the device whose own pool is given."""
        self._number(own.device)
        return own if self.stages is None else self.stages.lane(own.device).pool

    def _number(self, device: Device) -> int:
        for number, known in enumerate(self.devices):
            if known is device:
                return number
        self.devices.append(device)
        return len(self.devices) - 1

    def copied(self, source: Storage, start: int, own: MemoryPool, size: int) -> Storage:
        """Copy bytes of memory to another device, whose own pool is given."""
        target = self.pool_for(own).take(size)
        numbers = self._number(source.pool.device), self._number(own.device)
        self.keys.append(("copy", *numbers, start, size))
        self.used.update((place_of(source.buffer), place_of(target.buffer)))
        self.made.append(weakref.ref(target))
        if self.stages is None:
            carry(source.buffer[start : start + size], target.buffer, size)
        else:
            self.stages.move(source, start, target, size)
        return target

    def launched(
        self,
        key: tuple[Any, ...],
        result: Storage,
        given: Sequence[Storage | ByValue],
        written: Sequence[Storage],
    ) -> None:
        """Note a kernel. written: its results in memory that was filled before."""
        device = result.pool.device
        self.keys.append((self._number(device), key))
        self.kernels += 1
        memories = [storage for storage in (result, *given) if isinstance(storage, Storage)]
        used = {place_of(storage.buffer) for storage in memories}
        self.used |= used
        if self.stages is not None:
            part = self.stages.lane(device).part
            assert part is not None
            part.used |= used
        self.written.update(place_of(each.buffer) for each in written)

    def settling(self, node: Node, storage: Storage, new: bool) -> None:
        """Record a result that is about to be stored. new: in newly allocated memory."""
        self._settled.append((node, node.op, node.sources, node.arg))
        if new:
            self.made.append(weakref.ref(storage))

    def undo(self) -> None:
        """Restore how each node is computed, since nothing of this was run."""
        for node, op, sources, arg in self._settled:
            node.op, node.sources, node.arg, node.storage = op, sources, arg, None
        self._settled.clear()

    def finish(self) -> None:
        """Drop the records of how the results were computed."""
        self._settled.clear()


def current_recording() -> Recording | None:
    """Return the recording that this thread's runs belong to."""
    if not under_way:
        return None
    found: Recording | None = getattr(_thread, "recording", None)
    return found
