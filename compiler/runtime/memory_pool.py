"""Device memory for tensors: buffers are kept after a tensor is freed, and used again.

Reuse needs no waiting: kernels of a device run on one queue in order, and copies to and from the
host wait for that queue. Sizes are rounded up to a few classes so that reuse is likely.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from ugpu.compiler.plan.sizes import round_up
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import OutOfMemory, UgpuError
from ugpu.hcq.state.memory import MemoryUse, Placement
from ugpu.hcq.work.buffer import Buffer

KEEP = 512 << 20  # bytes of unused buffers kept per device
Place = tuple[int, int]  # memory of a device: the id of its core, and an address


def place_of(buffer: Buffer) -> Place:
    """Return where a buffer lies, different for all memory of all open devices."""
    return id(buffer.core), int(buffer.address)


class Storage:
    """The memory of one realized tensor; returns to its pool when it is no longer referenced.
    writable: whether assignments may be done in place."""

    __slots__ = ("__weakref__", "address", "buffer", "pool", "size")
    writable = True

    def __init__(self, pool: MemoryPool, buffer: Buffer, size: int) -> None:
        self.pool = pool
        self.buffer = buffer
        self.address: int = buffer.address
        self.size = size  # bytes in use; the buffer may be larger

    def __del__(self) -> None:
        self.pool.give_back(self.buffer)


class Part(Storage):
    """Some bytes of another storage, to which it keeps a reference."""

    __slots__ = ("whole",)

    def __init__(self, whole: Storage, start: int, size: int) -> None:
        super().__init__(whole.pool, whole.buffer[start : start + size], size)
        self.whole = whole

    def __del__(self) -> None:
        """Do nothing: the whole storage returns to the pool by itself."""


class Reused(Storage):
    """The memory of a result that its owner keeps for another one, which gets it once nothing else
    refers to this object. An assignment copies first, since more refer to it than its tensor."""

    __slots__ = ()
    writable = False


class MemoryPool:
    """Unused buffers of one device, by size. Thread-safe.

    keep: bytes of unused buffers; beyond them, those of the sizes that were not taken or returned
    for longest are freed, so that a program that does the same again and again finds its own.
    placement: where its memory is; `placed` gives the pool of the same device for another place.
    poison: for tests, a 32-bit value that fills all memory when it is taken, to detect kernels that
    read unwritten memory; no buffers are kept then. Memory taken during a capture is not filled:
    the fill would run before work that precedes it in the graph.
    """

    def __init__(
        self, device: Device, keep: int = KEEP, placement: Placement = Placement.DEVICE
    ) -> None:
        self.device = device
        self.placement = placement
        self.core = core_of(device)
        self.keep = keep
        self.kept = 0
        self.poison: int | None = None
        counted = self.core.memory_use if placement is Placement.DEVICE else MemoryUse()
        self._used = counted
        self._free: OrderedDict[int, list[Buffer]] = OrderedDict()  # the last used size is last
        self._lock = threading.RLock()  # see give_back
        self._elsewhere: MemoryPool | None = None

    def placed(self, placement: Placement) -> MemoryPool:
        """Return the pool of the same device with memory at a place; it is made on first use. Host
        memory counts neither as used by tensors nor for `keep`."""
        if placement is self.placement:
            return self
        with self._lock:
            if self._elsewhere is None:
                self._elsewhere = MemoryPool(self.device, self.keep, placement)
                self._elsewhere.poison = self.poison
            return self._elsewhere

    def take(self, size: int) -> Storage:
        """Return memory of `size` bytes, content undefined. Raises OutOfMemory, after freeing all
        unused buffers and a second attempt."""
        rounded = round_up(size)
        if self.core.inherited:  # the lock belongs to the parent
            self.core.check_open()
        with self._lock:
            try:  # without a check before: give_back may run in between
                unused = self._free[rounded].pop()
            except (KeyError, IndexError):
                unused = None
            if unused is not None:
                self.kept -= rounded
                self._free.move_to_end(rounded)
                self._used.add(rounded)
                return Storage(self, unused, size)
        return self.fresh(size)

    def fresh(self, size: int) -> Storage:
        """Return memory like `take`, which no work in flight uses."""
        rounded = round_up(size)
        try:
            buffer = self.core.alloc(rounded, placement=self.placement)
        except OutOfMemory:
            self.clear()
            buffer = self.core.alloc(rounded, placement=self.placement)
        if self.poison is not None and self.core.capturing is None:
            buffer.fill(self.poison)
        with self._lock:
            self._used.add(buffer.size)
        return Storage(self, buffer, size)

    def reused(self, size: int) -> Reused:
        """Return memory like `take`, for several results one after the other."""
        storage = self.take(size)
        storage.__class__ = Reused
        assert isinstance(storage, Reused)
        return storage

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back when a Storage dies, wherever the collector runs: even inside `take`
        and inside the driver. Never raises."""
        if self.core.closed:
            return
        excess = [buffer]
        size = buffer.size
        with self._lock:
            self._used.bytes -= size
            if self.poison is None and size <= self.keep:
                self.kept += size
                self._free.setdefault(size, []).append(buffer)
                self._free.move_to_end(size)
                if self.kept <= self.keep:
                    return
                excess = self._excess()
        for each in excess:
            each.drop()

    def _excess(self) -> list[Buffer]:
        """Remove and return buffers beyond those to keep."""
        excess = []
        for size, free in list(self._free.items()):
            while self.kept > self.keep:
                try:  # as in `take`
                    excess.append(free.pop())
                except IndexError:
                    break
                self.kept -= size
        return excess

    def clear(self) -> None:
        """Free all unused buffers, wherever they are."""
        if self._elsewhere is not None:
            self._elsewhere.clear()
        with self._lock:
            unused = [buffer for group in self._free.values() for buffer in group]
            self._free.clear()
            self.kept = 0
        for buffer in unused:
            self._close(buffer)

    def _close(self, buffer: Buffer) -> None:
        try:
            buffer.close()
        except UgpuError:
            # a failed device keeps its memory until it is reset or closed
            return
