"""PCI configuration space of the virtual card.

Facts: PCI Express Base Specification (AER, Resizable BAR capabilities).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.virtual.bus import config
from ugpu.virtual.bus.config import BARS, Bar

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

_PM, _PCIE, _MSI = 0x50, 0x64, 0xA0
_LINK_CONTROL = _PCIE + 0x10
_VENDOR_SPECIFIC, _AER, _REBAR = 0x100, 0x150, 0x200
_REBAR_CONTROL = _REBAR + 8
_IO_SIZE = 256


class ConfigSpace(config.ConfigSpace):
    """See the base class; BAR0's size can be changed."""

    bars = (
        Bar(0, 0xC, 0x38_0000_0000_00 << 4), Bar(2, 0xC, 0x37_0000_0000_00 << 4),
        Bar(4, 0x1, 0xE000), Bar(5, 0x0, 0xFCA0_0000),
    )  # fmt: skip
    capabilities = (_PM, _MSI, _PCIE)
    chain = (_PM, _PCIE, _MSI)
    # ORDER: the BAR size is written while decoding is off, and before the BARs.
    saved = (_REBAR_CONTROL, *config.ConfigSpace.saved)

    def __init__(self, chip: Board) -> None:
        # UNSURE: no function-level reset, as published listings of these boards show ("FLReset-");
        # the configuration space of a board, read by lspci -vvv, would settle it.
        super().__init__(
            chip, platform=chip.options.platform, function_reset=chip.options.function_reset
        )
        self._chip = chip
        self._vram_bar = self._reset_vram_bar()

    def _whole_vram(self) -> int:
        return 1 << (self._chip.options.vram - 1).bit_length()

    def _reset_vram_bar(self) -> int:
        """Return BAR0's size after a reset: at most 256 MiB, until it is enlarged."""
        return self._chip.options.visible_vram or min(self._whole_vram(), 256 << 20)

    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""
        options = self._chip.options
        sizes = {0: self._vram_bar, 2: options.doorbells, 4: _IO_SIZE, 5: options.registers}
        return sizes.get(index, 0)

    def function_reset(self) -> None:
        """Reset the card as over the bus."""
        self._chip.bus_reset()

    def reset(self, *, keep_bars: bool) -> None:
        """Enter the state after a reset: nothing is enabled.

        BARs and their sizes are lost unless `keep_bars`.
        """
        bars = bytes(self._bytes[BARS : BARS + 24])
        generation = self._chip.facts.generation
        if not keep_bars:
            self._vram_bar = self._reset_vram_bar()
        self._clear(
            generation.vendor, self._chip.facts.pci_ids[0], generation.class_code << 8 | 0xC8,
            0x0E3B,
        )  # fmt: skip
        self._put(0x0E, "<B", 0x80)  # boards have more functions: audio, on some USB
        # As lspci shows for these boards; amdgpu takes it as proof that extended space exists.
        self._put(_VENDOR_SPECIFIC, "<I", 0x000B | 1 << 16 | _AER << 20)
        self._put(_VENDOR_SPECIFIC + 4, "<I", 0x0001 | 1 << 16 | 0x010 << 20)
        self._put(_AER, "<I", 0x0001 | 2 << 16 | _REBAR << 20)
        self._put(_REBAR, "<II", 0x0015 | 1 << 16, self._rebar_sizes())
        self._show_size()
        if keep_bars:
            self._bytes[BARS : BARS + 24] = bars
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
        self._place()
        self._update()

    def _write_word(self, offset: int, value: int) -> None:
        if offset == _REBAR_CONTROL:
            self._resize(value)
        else:
            super()._write_word(offset, value)

    def _resize(self, value: int) -> None:
        power = value >> 8 & 0x3F
        if self.memory_enabled:
            self._chip.violation("BAR resized while memory decoding is on")
        elif self._rebar_sizes() >> (4 + power) & 1:
            self._vram_bar = 1 << (20 + power)
            self._show_size()
