"""PCI configuration space of a virtual card: header, BARs, power management, PCI Express, MSI,
MSI-X.

Source: PCI Local Bus Specification 3.0; PCI Express Base Specification 5.0.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ugpu.hcq.errors import BadArgument
from ugpu.virtual.bus.msix import MsixTable

SIZE = 4096
COMMAND, BARS, _CAPABILITIES, _LINE = 0x04, 0x10, 0x34, 0x3C
_FLR, _FLR_CAPABLE = 1 << 15, 1 << 28
_MEMORY, _MASTER = 1 << 1, 1 << 2
_COMMAND_BITS = 0x0547
_MSI_READ_ONLY = 0x0080_FFFF & ~0x0001_0000
_WIDE = 0xC  # type bits of a 64-bit BAR, which takes two slots


@dataclass(frozen=True)
class Bar:
    """A BAR. kind: its type bits. address: assigned by the platform's firmware."""

    index: int
    kind: int
    address: int = 0


class Owner(Protocol):
    """The card, as its configuration space uses it. lost: it does not answer any more."""

    @property
    def lost(self) -> bool: ...


class ConfigSpace(ABC):
    """4096 bytes and their behaviour. The card's lock protects them.

    memory_enabled: whether the BARs decode accesses. bus_master: whether the card may do DMA.
    capabilities: offsets of power management, MSI and PCI Express. chain: the order of their list.
    saved: the words that an operating system writes back after a reset, in this order. messages:
    the table of MSI-X; None for a card that has MSI only. It ends the list of capabilities.
    """

    bars: ClassVar[Sequence[Bar]]
    capabilities: ClassVar[tuple[int, int, int]]
    chain: ClassVar[tuple[int, int, int]]
    saved: ClassVar[Sequence[int]] = (*range(BARS, BARS + 24, 4), COMMAND)

    def __init__(self, owner: Owner, *, platform: bool, function_reset: bool) -> None:
        """platform: one has assigned addresses to BARs. function_reset: the card has it (FLR)."""
        self._owner = owner
        self._platform = platform
        self._flr = function_reset
        self._bytes = bytearray(SIZE)
        self._pm, self._msi, self._pcie = self.capabilities
        self._bars = {bar.index: bar for bar in self.bars}
        self._placed: dict[int, int] = {}
        self.memory_enabled = False
        self.bus_master = False
        self.messages: MsixTable | None = None

    @abstractmethod
    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""

    @abstractmethod
    def function_reset(self) -> None:
        """Reset the card as over the bus."""

    def bar_address(self, index: int) -> int:
        """Return the bus address that was last written to a memory BAR."""
        start = BARS + 4 * index
        width = 8 if self._bars[index].kind == _WIDE else 4
        return int.from_bytes(self._bytes[start : start + width], "little") & ~0xF

    def snapshot(self) -> bytes:
        """Return the content, as an operating system saves it before a reset."""
        return bytes(self._bytes)

    def restore(self, saved: bytes) -> None:
        """Write a snapshot back. ORDER: BARs are written while decoding is off."""
        self.write(COMMAND, 0, 2)
        for offset in self.saved:
            self.write(offset, int.from_bytes(saved[offset : offset + 4], "little"), 4)

    def _clear(self, vendor: int, device: int, class_code: int, subsystem: int) -> None:
        """Enter the state after a reset: nothing is enabled, BARs have no address. class_code:
        with the revision."""
        self._bytes[:] = bytes(SIZE)
        self._put(0, "<HHHH", vendor, device, 0, 0x10)
        self._put(8, "<I", class_code)
        self._put(0x2C, "<HH", vendor, subsystem)
        self._put(_CAPABILITIES, "<B", self.chain[0])
        self._put(_LINE, "<BB", 0xFF, 1)
        table = self.messages
        last = 0 if table is None else table.facts.at
        following = dict(zip(self.chain, (*self.chain[1:], last), strict=True))
        self._put(self._pm, "<BBH", 0x01, following[self._pm], 0x0003)
        self._put(self._msi, "<BBH", 0x05, following[self._msi], 0x0080)
        self._put(
            self._pcie, "<BBHIHHIHH", 0x10, following[self._pcie], 0x0002,
            _FLR_CAPABLE if self._flr else 0, 0, 0, 0x104, 0, 0x104,
        )  # fmt: skip
        for bar in self.bars:
            self._put(BARS + 4 * bar.index, "<I", bar.kind)
        if table is not None:
            table.reset()
            self._bytes[last : last + 12] = table.facts.capability(0)

    def assign_messages(self, vectors: Collection[int]) -> None:
        """Enable these vectors as an operating system does that has requested them; without any,
        disable MSI-X. Does nothing for a card that has MSI only."""
        if self.messages is not None:
            self.messages.assign(vectors)
            self._show_messages(self.messages)

    def _show_messages(self, table: MsixTable) -> None:
        self._put(table.facts.at + 2, "<H", table.facts.vectors - 1 | table.control)

    def _place(self) -> None:
        """Assign the BARs their addresses, as the platform's firmware does."""
        for bar in self.bars:
            self._put(BARS + 4 * bar.index, "<I", bar.address & 0xFFFF_FFFF | bar.kind)
            if bar.kind == _WIDE:
                self._put(BARS + 4 * bar.index + 4, "<I", bar.address >> 32)
            self._placed[bar.index] = bar.address

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
        if offset == COMMAND:
            self._put(COMMAND, "<H", value & _COMMAND_BITS)
        elif BARS <= offset < BARS + 24:
            self._write_bar((offset - BARS) // 4, value)
        elif offset == self._pcie + 8 and value & _FLR and self._flr:
            self.function_reset()
        elif self._msi <= offset <= self._msi + 12:
            keep = _MSI_READ_ONLY if offset == self._msi else 0
            old = int.from_bytes(self._bytes[offset : offset + 4], "little")
            self._put(offset, "<I", old & keep | value & 0xFFFF_FFFF & ~keep)
        elif self.messages is not None and offset == self.messages.facts.at:
            self.messages.control = value >> 16
            self._show_messages(self.messages)
        elif offset in (_LINE, self._pm + 4, self._pcie + 8, self._pcie + 16):
            self._put(offset, "<H", value & 0xFFFF)

    def _write_bar(self, slot: int, value: int) -> None:
        index = slot if slot in self._bars else slot - 1
        mask = ~(self.bar_size(index) - 1)
        if slot != index:
            self._put(BARS + 4 * slot, "<I", value & mask >> 32 & 0xFFFF_FFFF)
        else:
            kind = self._bars[index].kind
            self._put(BARS + 4 * slot, "<I", value & mask & 0xFFFF_FFF0 | kind)

    def _put(self, offset: int, layout: str, *values: int) -> None:
        struct.pack_into(layout, self._bytes, offset, *values)

    def _update(self) -> None:
        command = int.from_bytes(self._bytes[COMMAND : COMMAND + 2], "little")
        # Without a platform the bus model finds the function by its BARs.
        in_place = not self._platform or all(
            self.bar_address(bar.index) == self._placed.get(bar.index)
            for bar in self.bars
            if bar.kind != 1
        )
        self.memory_enabled = bool(command & _MEMORY) and in_place
        self.bus_master = bool(command & _MASTER)
