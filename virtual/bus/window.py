"""The windows (BARs) of a virtual card: bounds, alignment, widths of accesses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NoReturn, Protocol

from ugpu.hcq.errors import BadArgument, Closed


class BarSizes(Protocol):
    """A configuration space, as windows use it."""

    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""
        ...


class Card(Protocol):
    """A virtual card, as its windows use it."""

    @property
    def config(self) -> BarSizes: ...

    def violation(self, text: str) -> None:
        """Record a use that a board would punish silently."""
        ...


ONES_32 = 0xFFFF_FFFF


def refuse_value(value: int, bits: int) -> NoReturn:
    """Raise BadArgument for a value that is too wide."""
    raise BadArgument(f"the value must fit in {bits} bits", value=value)


def check_value(value: int, bits: int) -> None:
    """Raise BadArgument unless the value fits in `bits` bits."""
    if not 0 <= value < 1 << bits:
        refuse_value(value, bits)


class BarWindow:
    """Common behaviour of all BARs: bounds, alignment, and 64-bit accesses split into two."""

    def __init__(self, card: Card, index: int) -> None:
        self._card = card
        self.index = index
        self.closed = False

    def close(self) -> None:
        """Refuse further accesses; idempotent."""
        self.closed = True

    @property
    def size(self) -> int:
        """Size in bytes that the BAR currently decodes."""
        return self._card.config.bar_size(self.index)

    def _check(self, offset: int, size: int, alignment: int) -> None:
        if self.closed:
            raise Closed(f"the window of BAR {self.index} was closed")
        misfit = (offset | size) % alignment
        if misfit or offset < 0 or size < 0 or offset + size > self.size:
            raise BadArgument(
                f"the access to BAR{self.index} must be aligned to {alignment} and inside the "
                "window",
                offset=offset,
                size=size,
                window=self.size,
            )

    def read32(self, offset: int) -> int:
        """Read one dword."""
        raise NotImplementedError

    def write32(self, offset: int, value: int) -> None:
        """Write one dword."""
        raise NotImplementedError

    def read64(self, offset: int) -> int:
        """Read two dwords, low first."""
        self._check(offset, 8, 8)
        return self.read32(offset) | self.read32(offset + 4) << 32

    def write64(self, offset: int, value: int) -> None:
        """Write two dwords, low first."""
        self._check(offset, 8, 8)
        check_value(value, 64)
        self.write32(offset, value & ONES_32)
        self.write32(offset + 4, value >> 32)

    def read(self, offset: int, size: int) -> bytes:
        """Read a block as dwords; recorded as a violation, because registers are not memory."""
        self._check(offset, size, 4)
        self._card.violation(f"block read of BAR{self.index} at {offset:#x}")
        words = (self.read32(offset + at) for at in range(0, size, 4))
        return b"".join(word.to_bytes(4, "little") for word in words)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block as dwords; also recorded as a violation."""
        content = bytes(data)
        self._check(offset, len(content), 4)
        self._card.violation(f"block write of BAR{self.index} at {offset:#x}")
        for at in range(0, len(content), 4):
            self.write32(offset + at, int.from_bytes(content[at : at + 4], "little"))


class RegisterWindow(BarWindow):
    """Registers of 32 bits.

    read, write: access the one at a byte offset that was shifted right by `shift`.
    """

    def __init__(
        self, card: Card, index: int, read: Callable[[int], int],
        write: Callable[[int, int], None], shift: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(card, index)
        self._read, self._write, self._shift = read, write, shift
        self._size = self._whole = super().size

    def close(self) -> None:
        """Refuse further accesses; idempotent."""
        super().close()
        self._size = 0  # makes the bounds check of reads and writes fail, without a second check

    @property
    def size(self) -> int:
        return self._whole

    def read32(self, offset: int) -> int:
        """Read one register."""
        if offset & 3 or not 0 <= offset < self._size:
            self._check(offset, 4, 4)
        return self._read(offset >> self._shift)

    def write32(self, offset: int, value: int) -> None:
        """Write one register."""
        if offset & 3 or not 0 <= offset < self._size:
            self._check(offset, 4, 4)
        if not 0 <= value <= ONES_32:
            refuse_value(value, 32)
        self._write(offset >> self._shift, value)


class MemoryWindow(BarWindow):
    """Memory, accessed by words and blocks."""

    def read32(self, offset: int) -> int:
        """Read a dword."""
        self._check(offset, 4, 4)
        return int.from_bytes(self._read(offset, 4), "little")

    def write32(self, offset: int, value: int) -> None:
        """Write a dword."""
        self._check(offset, 4, 4)
        check_value(value, 32)
        self._write(offset, value.to_bytes(4, "little"))

    def read64(self, offset: int) -> int:
        """Read a quadword."""
        self._check(offset, 8, 8)
        return int.from_bytes(self._read(offset, 8), "little")

    def write64(self, offset: int, value: int) -> None:
        """Write a quadword."""
        self._check(offset, 8, 8)
        check_value(value, 64)
        self._write(offset, value.to_bytes(8, "little"))

    def read(self, offset: int, size: int) -> bytes:
        """Read a block."""
        self._check(offset, size, 4)
        return self._read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block."""
        content = bytes(data)
        self._check(offset, len(content), 4)
        self._write(offset, content)

    @abstractmethod
    def _read(self, offset: int, size: int) -> bytes:
        """Read what is inside the window."""

    @abstractmethod
    def _write(self, offset: int, content: bytes) -> None:
        """Write what is inside the window."""
