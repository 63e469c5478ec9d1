"""Device memory: how the host reaches it, and which part of it the driver allocates from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.transport.base import Window

PAGE = 4096
LARGE_PAGE = 2 << 20


@dataclass(frozen=True)
class MemoryMap:
    """The driver's part of a card's memory, in bytes. What lies outside the heap is the firmware's,
    or data at fixed places that outlives a process.

    heap, heap_end: the part of VRAM that the driver allocates from, as offsets in VRAM.
    table_offset: added to an offset in VRAM, it gives the address that page tables hold. bus_bits:
    host memory that a table entry can name lies below 1 << bus_bits. virtual, virtual_end: the
    addresses that address spaces allocate from.
    """

    heap: int
    heap_end: int
    table_offset: int
    bus_bits: int
    virtual: int
    virtual_end: int

    def physical(self, address: int) -> int:
        """Return the address that page tables hold for VRAM offset `address`."""
        return self.table_offset + address

    def offset(self, physical: int) -> int:
        """Return the VRAM offset for an address that page tables hold."""
        return physical - self.table_offset


class Vram(Protocol):
    """A card's memory as the host reaches it. Addresses are offsets in VRAM; they and sizes are
    multiples of 4 bytes, see `check_range`.

    size: bytes in all. visible: bytes, from the first on, that the host reaches directly.
    """

    size: int

    @property
    def visible(self) -> int: ...

    def read(self, address: int, size: int) -> bytes: ...
    def write(self, address: int, data: bytes | bytearray | memoryview) -> None: ...


class WindowVram:
    """Vram through a BAR, up to its size; a subclass adds how the rest is reached."""

    def __init__(self, window: Window, size: int) -> None:
        self.window = window
        self.size = size

    @property
    def visible(self) -> int:
        """Bytes the host reaches directly."""
        return min(self.window.size, self.size)

    def read(self, address: int, size: int) -> bytes:
        """See Vram."""
        check_range(address, size, self.size)
        if address + size <= self.visible:
            return self.window.read(address, size)
        return self.read_beyond(address, size)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """See Vram."""
        view = memoryview(data).cast("B")
        check_range(address, len(view), self.size)
        if address + len(view) <= self.visible:
            self.window.write(address, view)
            return
        self.write_beyond(address, view)

    def read_beyond(self, address: int, size: int) -> bytes:
        """Read a range that ends beyond the BAR; NotSupported unless a subclass can."""
        raise NotSupported(f"VRAM beyond the BAR: expected at most {self.visible:#x}, "
                           f"found {address + size:#x}")  # fmt: skip

    def write_beyond(self, address: int, data: memoryview) -> None:
        """Write a range that ends beyond the BAR; NotSupported unless a subclass can."""
        raise NotSupported(f"VRAM beyond the BAR: expected at most {self.visible:#x}, "
                           f"found {address + len(data):#x}")  # fmt: skip


def check_range(address: int, size: int, limit: int) -> None:
    """Raise BadArgument unless the range consists of whole dwords inside VRAM of `limit` bytes."""
    if address % 4 or size % 4 or address < 0 or address + size > limit:
        raise BadArgument("the range must lie inside VRAM", address=address, size=size, vram=limit)
