"""One PCI-to-PCI bridge of the enclosure: its configuration space, windows and bus numbers.

Facts: PCI Express Base Specification 5.0, 7.5.1.3 (type 1 header); PCI-to-PCI Bridge Architecture
Specification 1.2, 3.2.5 (windows: 1 MiB steps; closed where the limit is below the base).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

SIZE = 4096
_COMMAND, _CLASS, _HEADER, _BUSES = 0x04, 0x08, 0x0E, 0x18
_MEMORY, _PREFETCHABLE = 0x20, 0x24
_PREFETCHABLE_BASE_HIGH, _PREFETCHABLE_LIMIT_HIGH = 0x28, 0x2C
_CAPABILITIES, _CONTROL = 0x34, 0x3E
_PCIE = 0x40
_LINK = _PCIE + 0x12  # Link Status
_MEMORY_ENABLE, _BUS_MASTER = 1 << 1, 1 << 2
_SECONDARY_RESET = 1 << 6
_GEN3, _X2 = 3, 2 << 4

#: bits that software can write, by the offset of their dword
_WRITABLE = {
    _COMMAND: 0x0000_0547,
    0x0C: 0x0000_00FF,
    _BUSES: 0x00FF_FFFF,
    0x1C: 0,
    _MEMORY: 0xFFF0_FFF0,
    _PREFETCHABLE: 0xFFF0_FFF0,
    _PREFETCHABLE_BASE_HIGH: 0xFFFF_FFFF,
    _PREFETCHABLE_LIMIT_HIGH: 0xFFFF_FFFF,
    0x3C: 0x004F_00FF,
    _PCIE + 8: 0x0000_FFFF,
    _PCIE + 0x10: 0x0000_FFFF,
}


class Bridge:
    """A switch port with one device below it.

    upstream: the port points to the host (PCI Express capability), else away from it. lanes: width
    of its link now. secondary_reset: called when software sets Secondary Bus Reset.
    """

    def __init__(
        self,
        vendor: int,
        device: int,
        *,
        upstream: bool,
        lanes: int = 2,
        secondary_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self._identity = (vendor, device)
        self._upstream = upstream
        self._lanes = lanes
        self._secondary_reset = secondary_reset
        self._bytes = bytearray(SIZE)
        self._windows: list[tuple[int, int]] | None = None  # as decoded since the last change
        self.reset()

    def reset(self) -> None:
        """Clear everything that software wrote: buses, windows, enables."""
        self._bytes[:] = bytes(SIZE)
        self._windows = None
        struct.pack_into("<HH", self._bytes, 0, *self._identity)
        struct.pack_into("<H", self._bytes, _COMMAND + 2, 0x0010)
        struct.pack_into("<I", self._bytes, _CLASS, 0x060400 << 8)
        self._bytes[_HEADER] = 1
        struct.pack_into("<HH", self._bytes, _PREFETCHABLE, 1, 1)  # 64-bit window
        self._bytes[_CAPABILITIES] = _PCIE
        kind = 5 if self._upstream else 6
        struct.pack_into("<BBH", self._bytes, _PCIE, 0x10, 0, 2 | kind << 4)
        struct.pack_into("<I", self._bytes, _PCIE + 0x0C, _GEN3 | _X2)
        struct.pack_into("<H", self._bytes, _LINK, _GEN3 | self._lanes << 4)

    def config_read(self, offset: int, width: int) -> int:
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def config_write(self, offset: int, value: int, width: int) -> None:
        start = offset & ~3
        old = self.config_read(start, 4)
        shift = 8 * (offset - start)
        written = ((1 << 8 * width) - 1) << shift
        mask = _WRITABLE.get(start, 0) & written
        new = old & ~mask | value << shift & mask
        struct.pack_into("<I", self._bytes, start, new)
        self._windows = None
        if start == _CONTROL & ~3:
            rising = new & ~old
            if rising & _SECONDARY_RESET << 16:
                self._secondary_reset()

    # ---- decoded fields ------------------------------------------------------------------------

    @property
    def buses(self) -> tuple[int, int]:
        """Return the secondary and subordinate bus number; (0, 0) before software wrote them."""
        return self._bytes[_BUSES + 1], self._bytes[_BUSES + 2]

    @property
    def masters(self) -> bool:
        """Return whether the bridge forwards requests from below towards the host."""
        return bool(self._word(_COMMAND) & _BUS_MASTER)

    @property
    def held_in_reset(self) -> bool:
        """Return whether Secondary Bus Reset is set."""
        return bool(self._word(_CONTROL) & _SECONDARY_RESET)

    def _word(self, offset: int) -> int:
        return self.config_read(offset, 2)

    def windows(self) -> list[tuple[int, int]]:
        """Return the address ranges forwarded downstream: first, and one past the last; none with
        memory off."""
        if self._windows is None:
            self._windows = self._decode_windows()
        return self._windows

    def _decode_windows(self) -> list[tuple[int, int]]:
        if not self._word(_COMMAND) & _MEMORY_ENABLE:
            return []
        found = [_window(self._word(_MEMORY), self._word(_MEMORY + 2), 0, 0)]
        found.append(
            _window(
                self._word(_PREFETCHABLE),
                self._word(_PREFETCHABLE + 2),
                self.config_read(_PREFETCHABLE_BASE_HIGH, 4),
                self.config_read(_PREFETCHABLE_LIMIT_HIGH, 4),
            )
        )
        return [(start, end) for start, end in found if start < end]

    def routes(self, address: int, size: int) -> bool:
        """Return whether a whole memory request is forwarded downstream."""
        return any(start <= address and address + size <= end for start, end in self.windows())


def _window(base: int, limit: int, base_high: int, limit_high: int) -> tuple[int, int]:
    start = (base & 0xFFF0) << 16 | base_high << 32
    last = (limit & 0xFFF0) << 16 | 0xF_FFFF | limit_high << 32
    return start, last + 1
