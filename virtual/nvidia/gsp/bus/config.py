"""Configuration space of a card: header, BARs, power management, PCI Express, MSI.

Source: PCI Local Bus Specification 3.0, PCI Express Base Specification 5.0; the BARs as NVIDIA's
boards have them (BAR0 registers, BAR1 video memory, BAR3 instance memory, BAR5 I/O ports).
"""

from __future__ import annotations

import struct
from typing import Protocol

from ugpu.hcq.errors import BadArgument

SIZE = 4096
_COMMAND, _BARS, _CAPABILITIES, _LINE = 0x04, 0x10, 0x34, 0x3C
_PM, _MSI, _PCIE = 0x60, 0x68, 0x78
_DEVICE_CONTROL, _FLR, _FLR_CAPABLE = _PCIE + 8, 1 << 15, 1 << 28
_MEMORY, _MASTER = 1 << 1, 1 << 2
_COMMAND_BITS = 0x0547
_MSI_READ_ONLY = 0x0080_FFFF & ~0x0001_0000
REGISTERS = 16 << 20
INSTANCE = 32 << 20
_IO = 128
# slot of the first word, type bits, the address that a platform assigns
_PLACES = {0: (0, 0x0, 0xF000_0000), 1: (1, 0xC, 0x10_0000_0000), 3: (3, 0xC, 0x20_0000_0000)}


class Owner(Protocol):
    """The card, as its configuration space uses it."""

    lost: bool

    def function_reset(self) -> None: ...
    def bus_changed(self) -> None:
        """Hear that the command register or a BAR changed."""
        ...


class ConfigSpace:
    """The card's lock protects it. memory_enabled, bus_master: as the command register says."""

    def __init__(
        self, owner: Owner, device: int, bar1: int, *, platform: bool, function_reset: bool
    ) -> None:
        self._owner = owner
        self._device = device
        self._platform = platform
        self._flr = function_reset
        self._sizes = {0: REGISTERS, 1: bar1, 3: INSTANCE, 5: _IO}
        self.memory_enabled = self.bus_master = False
        self._bytes = bytearray(SIZE)
        self.reset()
        if platform:
            for slot, kind, address in _PLACES.values():
                self._put(_BARS + 4 * slot, "<I", address & 0xFFFF_FFFF | kind)
                if kind:
                    self._put(_BARS + 4 * slot + 4, "<I", address >> 32)

    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""
        return self._sizes.get(index, 0)

    def bar_address(self, index: int) -> int:
        """Return the bus address of a memory BAR."""
        slot, kind, _ = _PLACES[index]
        at = _BARS + 4 * slot
        return int.from_bytes(self._bytes[at : at + (8 if kind else 4)], "little") & ~0xF

    def reset(self) -> None:
        """Enter the state after a reset: nothing is enabled, BARs are not assigned."""
        self._bytes[:] = bytes(SIZE)
        self._put(0, "<HHHH", 0x10DE, self._device, 0, 0x10)
        self._put(8, "<I", 0x030000 << 8 | 0xA1)
        self._put(0x2C, "<HH", 0x10DE, 0x167C)
        self._put(_CAPABILITIES, "<B", _PM)
        self._put(_LINE, "<BB", 0xFF, 1)
        self._put(_PM, "<BBH", 0x01, _MSI, 0x0003)
        self._put(_MSI, "<BBH", 0x05, _PCIE, 0x0080)
        flr = _FLR_CAPABLE if self._flr else 0
        self._put(_PCIE, "<BBHIHHIHH", 0x10, 0, 0x0002, flr, 0, 0, 0x104, 0, 0x104)
        for slot, kind, _ in _PLACES.values():
            self._put(_BARS + 4 * slot, "<I", kind)
        self._put(_BARS + 20, "<I", 1)
        self._update()

    def snapshot(self) -> bytes:
        """Return the header, as an operating system saves it before a reset."""
        return bytes(self._bytes[:64])

    def restore(self, saved: bytes) -> None:
        """Write a snapshot's BARs and command back."""
        for offset in (*range(_BARS, _BARS + 24, 4), _COMMAND):
            self.write(offset, int.from_bytes(saved[offset : offset + 4], "little"), 4)

    def read(self, offset: int, width: int) -> int:
        """Read 1, 2 or 4 aligned bytes; all ones once the card is gone."""
        self._check(offset, width)
        if self._owner.lost:
            return (1 << 8 * width) - 1
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def write(self, offset: int, value: int, width: int) -> None:
        """Write 1, 2 or 4 aligned bytes; read-only bits keep their values."""
        self._check(offset, width)
        if self._owner.lost:
            return
        start = offset & ~3
        word = bytearray(self._bytes[start : start + 4])
        word[offset - start : offset - start + width] = value.to_bytes(width, "little")
        self._write_word(start, int.from_bytes(word, "little"))
        self._update()

    def _check(self, offset: int, width: int) -> None:
        if width not in (1, 2, 4) or offset % width or not 0 <= offset <= SIZE - width:
            raise BadArgument(
                "the access must be aligned and inside configuration space",
                offset=offset,
                width=width,
            )

    def _write_word(self, offset: int, value: int) -> None:
        if offset == _COMMAND:
            self._put(_COMMAND, "<H", value & _COMMAND_BITS)
        elif _BARS <= offset < _BARS + 24:
            self._write_bar((offset - _BARS) // 4, value)
        elif offset == _DEVICE_CONTROL and value & _FLR and self._flr:
            self._owner.function_reset()
        elif _MSI <= offset <= _MSI + 12:
            keep = _MSI_READ_ONLY if offset == _MSI else 0
            old = int.from_bytes(self._bytes[offset : offset + 4], "little")
            self._put(offset, "<I", old & keep | value & ~keep & 0xFFFF_FFFF)
        elif offset in (_LINE, _PM + 4, _DEVICE_CONTROL, _PCIE + 16):
            self._put(offset, "<H", value & 0xFFFF)

    def _write_bar(self, slot: int, value: int) -> None:
        if slot == 5:
            self._put(_BARS + 20, "<I", value & ~(_IO - 1) & 0xFFFF_FFFF | 1)
            return
        index = {2: 1, 4: 3}.get(slot, slot)
        size, kind = self._sizes[index], _PLACES[index][1]
        mask = ~(size - 1)
        if slot != index:
            self._put(_BARS + 4 * slot, "<I", value & mask >> 32 & 0xFFFF_FFFF)
        else:
            self._put(_BARS + 4 * slot, "<I", value & mask & 0xFFFF_FFF0 | kind)

    def _put(self, offset: int, layout: str, *values: int) -> None:
        struct.pack_into(layout, self._bytes, offset, *values)

    def _update(self) -> None:
        command = int.from_bytes(self._bytes[_COMMAND : _COMMAND + 2], "little")
        # Without a platform the bus model finds the function by its BARs.
        in_place = not self._platform or all(
            self.bar_address(index) == place[2] for index, place in _PLACES.items()
        )
        self.memory_enabled = bool(command & _MEMORY) and in_place
        self.bus_master = bool(command & _MASTER)
        self._owner.bus_changed()
