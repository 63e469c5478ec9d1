"""A transport whose device reaches 512 KiB of memory outside itself, behind messages: what a bridge
leaves of the one inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from hcq.errors import OutOfMemory
from hcq.transport.base import DmaMemory, ResetKind, Traits, Transport, Window
from hcq.transport.life import TransportLife
from hcq.transport.view import RemoteView

BYTES = 512 << 10
GRANULE = 16 << 10


class ScarceMemory:
    def __init__(self, inner: DmaMemory, release: Callable[[int], None]) -> None:
        self.inner = inner
        self.size, self.segments = inner.size, inner.segments
        self.view = RemoteView(self._read, self._write, self.size)
        self._release = release
        self._closed = False

    def _read(self, offset: int, size: int) -> bytes:
        return bytes(self.inner.view[offset : offset + size])

    def _write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.inner.view[offset : offset + len(data)] = data

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release(self.size)
            self.inner.close()


class ScarceTransport(TransportLife):
    """See above. Owns `inner`."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner.name)
        self.inner, self.identity = inner, inner.identity
        self.traits = Traits(host_memory=False, dma_bytes=BYTES)
        self.taken = 0
        self.at_end(inner.close)
        self.opened()

    def config_read(self, offset: int, width: int = 4) -> int:
        return self.inner.config_read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.inner.config_write(offset, value, width)

    def window(self, index: int) -> Window:
        return self.inner.window(index)

    def batch(self) -> AbstractContextManager[None]:
        return self.inner.batch()

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> ScarceMemory:
        memory = ScarceMemory(self.inner.allocate_dma(size, contiguous=True), self._give_back)
        self.taken += self._cost(memory.size)
        if self.taken > BYTES:
            memory.close()
            raise OutOfMemory("the memory behind the bridge is used up", size=size)
        return memory

    def _cost(self, size: int) -> int:
        return -(-size // GRANULE) * GRANULE

    def _give_back(self, size: int) -> None:
        self.taken -= self._cost(size)

    @property
    def interrupts(self) -> None:
        self.check_open()

    def reset(self, kind: ResetKind) -> None:
        self.inner.reset(kind)

    def present(self) -> bool:
        return not self.closed and self.inner.present()
