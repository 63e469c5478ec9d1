"""Data collected from a thread's runs while a function is recorded (compiler.front.jit)."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ugpu.compiler.graph.node import Node
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage
from ugpu.compiler.runtime.numbers import Places
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported

_thread = threading.local()
under_way: set[int] = set()  # ids of the recordings of all threads


class Recording:
    """The kernels of one call of a function.

    pool: allocates its results, None for the device's own. keys: the kernels, in order. used: the
    addresses of the memory that the kernels name. made: the storages that were computed. written:
    the addresses of memory that assignments write into.
    """

    def __init__(self, name: str, pool: MemoryPool | None = None) -> None:
        self.name = name
        self.pool = pool
        self.device: Device | None = None
        self.places: Places | None = None  # of random numbers, if it is captured
        self.keys: list[tuple[Any, ...]] = []
        self.used: set[int] = set()
        self.made: list[weakref.ref[Storage]] = []
        self.written: set[int] = set()
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
        if self.device is not None and self.device is not own.device:
            raise NotSupported(
                f"@jit {self.name}: kernels on {self.device.name} and "
                f"{own.device.name}; a recorded function runs on one device"
            )
        self.device = own.device
        return self.pool or own

    def random(self, own: MemoryPool, count: int) -> Storage | None:
        """Return memory that holds at each replay the first of `count` random numbers; None in a
        call that runs as usual."""
        pool = self.pool_for(own)
        if self.pool is None:
            return None
        if self.places is None:
            self.places = Places(pool)
        return self.places.take(count)

    def launched(
        self, key: tuple[Any, ...], result: Storage, given: list[Storage], in_place: bool
    ) -> None:
        """Note a kernel. in_place: whether its result is in memory that was filled before."""
        self.keys.append(key)
        self.used.add(int(result.address))
        self.used.update(int(storage.address) for storage in given)
        if in_place:
            self.written.add(int(result.address))

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
