"""Memory of a client that the device of a server can access."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment
from ugpu.hcq.transport.vfio_user.files import sealed_memory


class ClientAllocation:
    """A run of bus addresses backed by its own file. See hcq.transport.base.DmaMemory."""

    def __init__(
        self, address: int, size: int, release: Callable[[ClientAllocation], None]
    ) -> None:
        self.size = size
        self.segments: Sequence[DmaSegment] = (DmaSegment(BusAddr(address), size),)
        self.descriptor = sealed_memory("ugpu-dma", size)
        self._map = mmap.mmap(self.descriptor, size)
        self.view = memoryview(self._map)
        self._release = release
        self._closed = False

    def close_descriptor(self) -> None:
        """Close the descriptor; mappings keep the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Unshare it from the device and free it. Idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self._release(self)
            finally:
                self.discard()

    def discard(self) -> None:
        """Free it here, or leave that to the last array that still uses it."""
        self._closed = True
        self.close_descriptor()
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()

    def __repr__(self) -> str:
        return f"<ClientAllocation {self.size} bytes at bus {self.segments[0].address:#x}>"


class Memories:
    """All allocations of a client, found by bus address; answers a server's DMA commands."""

    def __init__(self) -> None:
        self._all: dict[int, ClientAllocation] = {}
        self._lock = threading.Lock()

    def add(self, memory: ClientAllocation) -> None:
        with self._lock:
            self._all[memory.segments[0].address] = memory

    def remove(self, memory: ClientAllocation) -> bool:
        """Remove a memory; return whether it was present."""
        with self._lock:
            return self._all.pop(memory.segments[0].address, None) is not None

    def discard_all(self) -> None:
        with self._lock:
            taken = list(self._all.values())
            self._all.clear()
        for memory in taken:
            memory.discard()

    def read(self, address: int, size: int) -> bytes:
        """Read memory of the client; BadArgument unless one allocation contains it all."""
        with self._lock:
            return bytes(self._find(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Write memory of the client; BadArgument unless one allocation contains it all."""
        with self._lock:
            self._find(address, len(data))[:] = data

    def _find(self, address: int, size: int) -> memoryview:
        for start, memory in self._all.items():
            if start <= address and address + size <= start + memory.size:
                return memory.view[address - start : address - start + size]
        raise BadArgument("no memory is mapped at this address", address=address, size=size)
