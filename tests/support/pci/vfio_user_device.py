"""A small device for tests of vfio-user: memory, registers, and a DMA engine that can do both.

BAR 0 is memory, BAR 5 registers:
    0x00 counts its reads     0x08 scratch
    0x10 bus address (64 bit) 0x18 bytes    0x1c command: 1 memory -> BAR 0, 2 BAR 0 -> memory,
    3 nothing; the device then raises an interrupt     0x20 status: 1 done, 0xdead refused
    0x24 which vector it raises
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection

from tests.support.pci.pcifunction import PlainFunction, PlainWindow
from ugpu.hcq.errors import BadArgument, NotSupported, TransportError
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.vfio_user.files import sealed_memory
from ugpu.virtual.serve.model import Client, SharedMemory

ADDRESS, SIZE, COMMAND, STATUS, VECTOR = 0x10, 0x18, 0x1C, 0x20, 0x24
REFUSED = 0xDEAD
_WORD = struct.Struct("<I")


class _Registers(PlainWindow):
    device: MemoryDevice

    def write32(self, offset: int, value: int) -> None:
        self._check(offset, 4, 4)
        _WORD.pack_into(self.data, offset, value)
        if offset == COMMAND:
            self.device.command(value)


class _Memory(PlainWindow):
    """Copies once, so that benchmarks measure the way to it."""

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size, 4)
        return bytes(memoryview(self.data)[offset : offset + size])

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check(offset, len(data), 4)
        memoryview(self.data)[offset : offset + len(data)] = data


class _Function(PlainFunction):
    """PlainFunction with a configuration space that has BARs 0 and 5, and resets that count."""

    def __init__(self, device: MemoryDevice, bar0: int) -> None:
        super().__init__()
        self.device = device
        registers = _Registers(self, 5)
        registers.device = device
        memory = _Memory(self, 0)
        memory.size, memory.data = bar0, bytearray(bar0)
        self._windows = {0: memory, 5: registers}
        self._config[8:12] = (0x030000 << 8 | 1).to_bytes(4, "little")
        self._config[0x2C:0x30] = bytes.fromhex("f41a0011")
        self._config[0x3D] = 1

    def reset(self, kind: ResetKind) -> None:
        super().reset(kind)
        for window in self._windows.values():
            window.data[:] = bytes(window.size)

    def close(self) -> None:
        """Stays usable: the device outlives its clients."""


class MemoryDevice:
    """Implements virtual.serve.model.DeviceModel."""

    def __init__(
        self,
        *,
        bar0: int = 1 << 16,
        share: bool = False,
        shared_size: int = 0,
        vectors: int = 1,
    ) -> None:
        self.vectors = vectors
        self.function = _Function(self, bar0)
        self.maps: dict[int, tuple[int, int | None]] = {}
        self.attached = 0
        self.messages: frozenset[int] = frozenset()
        self.client: Client | None = None
        self._shared: SharedMemory | None = None
        if share:
            size = shared_size or bar0
            self._shared = SharedMemory(sealed_memory("bar0", size), 0, size)

    def attach(self, client: Client) -> Transport:
        assert self.client is None, "one client at a time"
        self.client = client
        self.attached += 1
        return self.function

    def detach(self) -> None:
        self.client = None

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        assert address not in self.maps
        self.maps[address] = (size, host)

    def unmap_dma(self, address: int, size: int) -> None:
        assert self.maps.pop(address)[0] == size

    def assign_messages(self, vectors: Collection[int]) -> None:
        self.messages = frozenset(vectors)

    def shared(self, bar: int) -> SharedMemory | None:
        return self._shared if bar == 0 else None

    def command(self, what: int) -> None:
        """The DMA engine."""
        registers, memory = self.function.window(5), self.function.window(0)
        address, size = registers.read64(ADDRESS), registers.read32(SIZE)
        assert self.client is not None
        try:
            if what == 1:
                memory.write(0, self.read(address, size))
            elif what == 2:
                self.write(address, memory.read(0, size))
            status = 1
        except (BadArgument, NotSupported, TransportError):
            status = REFUSED
        PlainWindow.write32(registers, STATUS, status)
        self.client.interrupt(registers.read32(VECTOR))

    def _find(self, address: int, size: int) -> int | None:
        for start, (length, host) in self.maps.items():
            if start <= address and address + size <= start + length:
                return None if host is None else host + address - start
        raise BadArgument("no such bus address", address=address)

    def read(self, address: int, size: int) -> bytes:
        host = self._find(address, size)
        assert self.client is not None
        if host is None:
            return self.client.read_memory(address, size)
        return ctypes.string_at(host, size)

    def write(self, address: int, data: bytes) -> None:
        host = self._find(address, len(data))
        assert self.client is not None
        if host is None:
            self.client.write_memory(address, data)
        else:
            ctypes.memmove(host, data, len(data))
