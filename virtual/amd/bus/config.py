"""PCI configuration space of the virtual card.

Facts: PCI Express Base Specification (header, PM, PCIe, MSI, AER, Resizable BAR capabilities).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

SIZE = 4096
_COMMAND, _BARS, _CAPABILITIES = 0x04, 0x10, 0x34
_PM, _PCIE, _MSI = 0x50, 0x64, 0xA0
_DEVICE_CONTROL = _PCIE + 0x08
_LINK_CONTROL = _PCIE + 0x10
_VENDOR_SPECIFIC, _AER, _REBAR = 0x100, 0x150, 0x200
_REBAR_CONTROL = _REBAR + 8
_MEMORY, _MASTER = 1 << 1, 1 << 2
_COMMAND_BITS = 0x0547
_FLR, _FLR_CAPABLE = 1 << 15, 1 << 28
# (BAR index, low bits, address assigned by the platform's firmware); 64-bit BARs take two slots.
_PLACES = (
    (0, 0xC, 0x38_0000_0000_00 << 4),
    (2, 0xC, 0x37_0000_0000_00 << 4),
    (4, 0x1, 0xE000),
    (5, 0x0, 0xFCA0_0000),
)
_IO_SIZE = 256


class ConfigSpace:
    """4096 bytes and their behaviour.

    memory_enabled: whether the BARs decode accesses. bus_master: whether the card may do DMA.
    """

    def __init__(self, chip: Board) -> None:
        self._chip = chip
        self._bytes = bytearray(SIZE)
        self.memory_enabled = False
        self.bus_master = False
        self._vram_bar = self._reset_vram_bar()
        self._placed: dict[int, int] = {}

    def _whole_vram(self) -> int:
        return 1 << (self._chip.options.vram - 1).bit_length()

    def _reset_vram_bar(self) -> int:
        """Return BAR0's size after a reset: at most 256 MiB, until it is enlarged."""
        return self._chip.options.visible_vram or min(self._whole_vram(), 256 << 20)

    # ---- sizes --------------------------------------------------------------------------------

    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""
        options = self._chip.options
        sizes = {0: self._vram_bar, 2: options.doorbells, 4: _IO_SIZE, 5: options.registers}
        return sizes.get(index, 0)

    # ---- resets -------------------------------------------------------------------------------

    def reset(self, *, keep_bars: bool) -> None:
        """Enter the state after a reset: nothing is enabled.

        BARs and their sizes are lost unless `keep_bars`.
        """
        bars = bytes(self._bytes[_BARS : _BARS + 24])
        self._bytes[:] = bytes(SIZE)
        facts = self._chip.facts
        if not keep_bars:
            self._vram_bar = self._reset_vram_bar()
        vendor = facts.generation.vendor
        self._put(0x00, "<HH", vendor, facts.pci_ids[0])
        self._put(_COMMAND, "<HH", 0, 0x0010)
        self._put(0x08, "<I", facts.generation.class_code << 8 | 0xC8)
        self._put(0x0E, "<B", 0x80)  # boards have more functions: audio, on some USB
        self._put(0x2C, "<HH", vendor, 0x0E3B)
        self._put(_CAPABILITIES, "<B", _PM)
        self._put(0x3C, "<BB", 0xFF, 1)
        self._put(_PM, "<BBH", 0x01, _PCIE, 0x0003)
        # UNSURE: no function-level reset, as published listings of these boards show ("FLReset-");
        # the configuration space of a board, read by lspci -vvv, would settle it.
        capabilities = _FLR_CAPABLE if self._chip.options.function_reset else 0
        self._put(_PCIE, "<BBHIHHIHH", 0x10, _MSI, 0x0002, capabilities, 0, 0, 0x104, 0, 0x104)
        self._put(_MSI, "<BBH", 0x05, 0, 0x0080)
        # As lspci shows for these boards; amdgpu takes it as proof that extended space exists.
        self._put(_VENDOR_SPECIFIC, "<I", 0x000B | 1 << 16 | _AER << 20)
        self._put(_VENDOR_SPECIFIC + 4, "<I", 0x0001 | 1 << 16 | 0x010 << 20)
        self._put(_AER, "<I", 0x0001 | 2 << 16 | _REBAR << 20)
        self._put(_REBAR, "<II", 0x0015 | 1 << 16, self._rebar_sizes())
        self._show_size()
        for index, flags, _ in _PLACES:
            self._put(_BARS + 4 * index, "<I", flags)
        if keep_bars:
            self._bytes[_BARS : _BARS + 24] = bars
        self._update()

    def _rebar_sizes(self) -> int:
        largest = (self._whole_vram() >> 20).bit_length() - 1
        return sum(1 << (4 + power) for power in range(8, largest + 1))

    def _show_size(self) -> None:
        self._put(_REBAR_CONTROL, "<I", 1 << 5 | (self._vram_bar >> 20).bit_length() - 1 << 8)

    def assign_bars(self) -> None:
        """Configure the function as the platform's firmware does at power-on.

        Enlarges BAR0, assigns each BAR an address, and enables ASPM on the link.
        """
        self._vram_bar = self._chip.options.visible_vram or self._whole_vram()
        self._show_size()
        self._put(_LINK_CONTROL, "<H", self._chip.options.aspm)
        for index, flags, address in _PLACES:
            self._put(_BARS + 4 * index, "<I", address & 0xFFFF_FFFF | flags)
            if flags == 0xC:
                self._put(_BARS + 4 * index + 4, "<I", address >> 32)
            self._placed[index] = address
        self._update()

    def bar_address(self, index: int) -> int:
        """Return the bus address that was last written to a memory BAR."""
        flags = next(flags for place, flags, _ in _PLACES if place == index)
        return self._address(index, flags)

    def snapshot(self) -> bytes:
        """Return the writable header fields and capabilities, as an operating system saves them."""
        return bytes(self._bytes)

    def restore(self, saved: bytes) -> None:
        """Write a snapshot back. ORDER: the BAR size must be written while decoding is off."""
        self.write(_COMMAND, 0, 2)
        for offset in (_REBAR_CONTROL, *range(_BARS, _BARS + 24, 4), _COMMAND):
            self.write(offset, int.from_bytes(saved[offset : offset + 4], "little"), 4)

    # ---- access -------------------------------------------------------------------------------

    def _check(self, offset: int, width: int) -> None:
        if width not in (1, 2, 4) or offset % width or not 0 <= offset <= SIZE - width:
            raise BadArgument(
                "the access must be aligned and inside configuration space",
                offset=offset,
                width=width,
            )

    def read(self, offset: int, width: int) -> int:
        """Read 1, 2 or 4 aligned bytes."""
        self._check(offset, width)
        if self._chip.lost:
            return (1 << 8 * width) - 1
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def write(self, offset: int, value: int, width: int) -> None:
        """Write 1, 2 or 4 aligned bytes; read-only bits keep their values."""
        self._check(offset, width)
        if self._chip.lost:
            return
        start = offset & ~3
        word = bytearray(self._bytes[start : start + 4])
        word[offset - start : offset - start + width] = value.to_bytes(width, "little")
        self._write_word(start, int.from_bytes(word, "little"))
        self._update()

    def _write_word(self, offset: int, value: int) -> None:
        if offset == _COMMAND:
            self._put(_COMMAND, "<H", value & _COMMAND_BITS)
        elif _BARS <= offset < _BARS + 24:
            self._write_bar((offset - _BARS) // 4, value)
        elif offset == _REBAR_CONTROL:
            self._resize(value)
        elif offset == _DEVICE_CONTROL and value & _FLR and self._chip.options.function_reset:
            self._chip.bus_reset()
        elif offset == _MSI or _MSI + 4 <= offset <= _MSI + 12:
            keep = 0x0080_FFFF & ~0x0001_0000 if offset == _MSI else 0
            old = int.from_bytes(self._bytes[offset : offset + 4], "little")
            self._put(offset, "<I", old & keep | value & 0xFFFF_FFFF & ~keep)
        elif offset in (0x3C, _PM + 4, _DEVICE_CONTROL, _LINK_CONTROL):
            self._put(offset, "<H", value & 0xFFFF)

    def _write_bar(self, slot: int, value: int) -> None:
        high = slot in (1, 3)
        index = slot - 1 if high else slot
        size, flags = self.bar_size(index), {place[0]: place[1] for place in _PLACES}[index]
        mask = ~(size - 1)
        if high:
            self._put(_BARS + 4 * slot, "<I", value & mask >> 32 & 0xFFFF_FFFF)
        else:
            self._put(_BARS + 4 * slot, "<I", value & mask & 0xFFFF_FFF0 | flags)

    def _resize(self, value: int) -> None:
        power = value >> 8 & 0x3F
        if self.memory_enabled:
            self._chip.violation("BAR resized while memory decoding is on")
        elif self._rebar_sizes() >> (4 + power) & 1:
            self._vram_bar = 1 << (20 + power)
            self._show_size()

    def _put(self, offset: int, layout: str, *values: int) -> None:
        struct.pack_into(layout, self._bytes, offset, *values)

    def _address(self, index: int, flags: int) -> int:
        start = _BARS + 4 * index
        width = 8 if flags == 0xC else 4
        return int.from_bytes(self._bytes[start : start + width], "little") & ~0xF

    def _update(self) -> None:
        command = int.from_bytes(self._bytes[_COMMAND : _COMMAND + 2], "little")
        # Without a platform the bus model finds the function by its BARs (bus.endpoint).
        in_place = not self._chip.options.platform or all(
            self._address(index, flags) == self._placed.get(index)
            for index, flags, _ in _PLACES
            if index != 4
        )
        self.memory_enabled = bool(command & _MEMORY) and in_place
        self.bus_master = bool(command & _MASTER)
