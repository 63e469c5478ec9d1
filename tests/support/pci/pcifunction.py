"""A small PCI function for tests of transports: registers in BAR 5, memory in BAR 0."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment, Interrupts, PciIdentity, ResetKind
from ugpu.hcq.transport.dma import rounded
from ugpu.hcq.transport.life import TransportLife
from ugpu.hcq.transport.pci.config import check_access

SIZES = {0: 1 << 16, 5: 4096}


def _check_value(value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise BadArgument(f"the value must fit in {bits} bits", value=value)


class PlainMemory:
    def __init__(self, size: int, address: int) -> None:
        self.size = rounded(size)
        self.view = memoryview(bytearray(self.size))
        self.segments = (DmaSegment(BusAddr(address), self.size),)

    def close(self) -> None:
        """Nothing to give back but the memory itself."""


class PlainWindow:
    """Bytes; register 0 of BAR 5 counts its reads."""

    def __init__(self, function: PlainFunction, index: int) -> None:
        self.function = function
        self.index = index
        self.size = SIZES[index]
        self.data = bytearray(self.size)

    def _check(self, offset: int, size: int, align: int) -> None:
        self.function.check_open()
        outside = offset < 0 or size < 0 or offset + size > self.size
        if outside or offset % align or size % 4:
            raise BadArgument("offset or size is out of range", offset=offset, size=size)

    def read32(self, offset: int) -> int:
        self._check(offset, 4, 4)
        if self.function.lost:
            return (1 << 32) - 1
        value = int.from_bytes(self.data[offset : offset + 4], "little")
        if self.index == 5 and offset == 0:
            self.data[0:4] = (value + 1).to_bytes(4, "little")
        return value

    def write32(self, offset: int, value: int) -> None:
        self._check(offset, 4, 4)
        _check_value(value, 32)
        self.data[offset : offset + 4] = value.to_bytes(4, "little")

    def read64(self, offset: int) -> int:
        self._check(offset, 8, 8)
        if self.function.lost:
            return (1 << 64) - 1
        return int.from_bytes(self.data[offset : offset + 8], "little")

    def write64(self, offset: int, value: int) -> None:
        self._check(offset, 8, 8)
        _check_value(value, 64)
        self.data[offset : offset + 8] = value.to_bytes(8, "little")

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size, 4)
        if self.function.lost:
            return b"\xff" * size
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check(offset, len(data), 4)
        self.data[offset : offset + len(data)] = data


class PlainFunction(TransportLife):
    """Implements hcq.transport.base.Transport."""

    def __init__(self) -> None:
        super().__init__("plain")
        self.identity = PciIdentity(0x1234, 0x5678, 1, 0x1AF4, 0x1100, 0x30000)
        self.lost = False  # set by tests: it has fallen off the bus
        self.resets: list[ResetKind] = []
        self._config = bytearray(4096)
        self._config[0:4] = bytes.fromhex("34127856")
        self._windows = {index: PlainWindow(self, index) for index in SIZES}
        self._next_address = 0x10_0000
        self.opened()

    def config_read(self, offset: int, width: int = 4) -> int:
        self.check_open()
        check_access(offset, width)
        if self.lost:
            return (1 << 8 * width) - 1
        return int.from_bytes(self._config[offset : offset + width], "little")

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.check_open()
        check_access(offset, width)
        _check_value(value, 8 * width)
        if offset >= 4:
            self._config[offset : offset + width] = value.to_bytes(width, "little")

    def window(self, index: int) -> PlainWindow:
        self.check_open()
        if index not in self._windows:
            raise BadArgument("no such window", index=index)
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> PlainMemory:
        self.check_open()
        memory = PlainMemory(size, self._next_address)
        self._next_address += memory.size
        return memory

    @property
    def interrupts(self) -> Interrupts | None:
        self.check_open()
        return None

    def reset(self, kind: ResetKind) -> None:
        self.check_open()
        if kind is ResetKind.POWER:
            raise NotSupported("this function cannot be switched off")
        self.resets.append(kind)

    def present(self) -> bool:
        return not self.closed and not self.lost
