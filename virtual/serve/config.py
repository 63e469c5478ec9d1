"""Configuration space as a server presents it; fields that belong to the host are read-only.

A client, and a guest behind it, may size and place BARs freely; the device keeps the addresses that
its own platform assigned. The kernel's VFIO does the same (Linux
drivers/vfio/pci/vfio_pci_config.c, vfio_bar_restore and vfio_exp_config_write). The interrupt pin
of a device that sends no interrupts is hidden, and so are the registers of the Resizable BAR
capability.
"""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.base import ResetKind, Transport

SIZE = 4096
_COMMAND, _BARS, _BARS_END, _ROM, _PIN = 0x04, 0x10, 0x28, 0x30, 0x3D
_PCIE_CAPABILITY, _PCIE_CONTROL, _FLR = 0x10, 8, 1 << 15
_REBAR_CAPABILITY = 0x15
_MSIX_CAPABILITY, _MSIX_CONTROL, _MSIX_ENTRIES = 0x11, 2, 0x7FF
_IO = 1


class ServedConfig:
    """Bytes in, bytes out; accesses of any size that stay inside."""

    def __init__(self, transport: Transport, *, interrupts: bool = False) -> None:
        """interrupts: the device sends some."""
        self._transport = transport
        self._pin = transport.config_read(_PIN, 1) if interrupts else 0
        self._bars = bytearray(
            b"".join(self._word(at).to_bytes(4, "little") for at in range(_BARS, _BARS_END, 4))
        )
        self._sizes = self._find_sizes()
        self._control = self._find(_PCIE_CAPABILITY) + _PCIE_CONTROL
        self._rebar = self._find_extended(_REBAR_CAPABILITY)

    def bar_size(self, index: int) -> int:
        """Return the bytes of a BAR; 0 if there is none."""
        return self._sizes[index]

    @property
    def has_line(self) -> bool:
        """Return whether the device has an interrupt pin that the client may use."""
        return 1 <= self._pin <= 4

    def table_size(self) -> int:
        """Return the messages of the MSI-X capability; 0 if there is none."""
        at = self._find(_MSIX_CAPABILITY)
        if at >= SIZE:
            return 0
        return (self._transport.config_read(at + _MSIX_CONTROL, 2) & _MSIX_ENTRIES) + 1

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes; BadArgument outside."""
        self._check(offset, size)
        plain = size in (1, 2, 4) and offset % size == 0 and not _BARS <= offset <= _PIN
        if plain:
            return self._transport.config_read(offset, size).to_bytes(size, "little")
        return bytes(self._byte(at) for at in range(offset, offset + size))

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes; BadArgument outside. Each naturally aligned piece is one access."""
        self._check(offset, len(data))
        while data:
            width = next(w for w in (4, 2, 1) if offset % w == 0 and w <= len(data))
            self._write_piece(offset, data[:width])
            offset, data = offset + width, data[width:]

    def _check(self, offset: int, size: int) -> None:
        if offset + size > SIZE:
            raise BadArgument("the access is outside configuration space", offset=offset, size=size)

    def _byte(self, at: int) -> int:
        if _BARS <= at < _BARS_END and self._transport.present():
            return self._bars[at - _BARS]
        if at == _PIN:
            return self._pin
        return self._transport.config_read(at, 1)

    def _word(self, offset: int) -> int:
        return self._transport.config_read(offset, 4)

    def _write_piece(self, offset: int, data: bytes) -> None:
        if _BARS <= offset < _BARS_END:
            for at, value in enumerate(data, offset - _BARS):
                self._bars[at] = value
            self._settle()
        elif _ROM <= offset < _ROM + 4 or offset in (_PIN,) or self._is_resize(offset):
            return
        elif self._is_function_reset(offset, data):
            self._transport.reset(ResetKind.FUNCTION)
        else:
            self._transport.config_write(offset, int.from_bytes(data, "little"), len(data))

    def _settle(self) -> None:
        """Make the BARs read as hardware does: size bits zero, type bits fixed."""
        index = 0
        while index < 6:
            kind = self._word(_BARS + 4 * index) & 0xF
            wide = not kind & _IO and kind & 0x6 == 0x4
            width = 8 if wide else 4
            place = slice(4 * index, 4 * index + width)
            low = 0x3 if kind & _IO else 0xF
            size = self._sizes[index]
            value = int.from_bytes(self._bars[place], "little")
            value = (value & ~(size - 1) & ~low | kind & low) if size else 0
            self._bars[place] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
            index += 2 if wide else 1

    def _find_sizes(self) -> list[int]:
        sizes = [0] * 6
        index = 0
        while index < 6:
            kind = self._word(_BARS + 4 * index) & 0xF
            wide = not kind & _IO and kind & 0x6 == 0x4
            if not kind & _IO:
                try:
                    sizes[index] = self._transport.window(index).size
                except BadArgument:
                    sizes[index] = 0  # no such BAR
            index += 2 if wide else 1
        return sizes

    def _find(self, wanted: int) -> int:
        """Return the offset of a capability; if there is none, an offset that no write can have."""
        at, seen = self._transport.config_read(0x34, 1) & 0xFC, 0
        while at >= 0x40 and seen < 48:
            word = self._word(at)
            if word & 0xFF == wanted:
                return at
            at, seen = word >> 8 & 0xFC, seen + 1
        return 2 * SIZE

    def _find_extended(self, wanted: int) -> int:
        at, seen = 0x100, 0
        while at >= 0x100 and seen < 960:
            word = self._word(at)
            if word in (0, 0xFFFF_FFFF):
                break
            if word & 0xFFFF == wanted:
                return at
            at, seen = word >> 20 & 0xFFC, seen + 1
        return 2 * SIZE

    def _is_function_reset(self, offset: int, data: bytes) -> bool:
        if not offset <= self._control + 1 < offset + len(data):
            return False
        return bool(data[self._control + 1 - offset] << 8 & _FLR)

    def _is_resize(self, offset: int) -> bool:
        return self._rebar <= offset < self._rebar + 0x34
