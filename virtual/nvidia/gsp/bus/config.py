"""Configuration space of a card; the BARs as NVIDIA's boards have them (BAR0 registers, BAR1 video
memory, BAR3 instance memory, BAR5 I/O ports)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.virtual.bus import config
from ugpu.virtual.bus.config import Bar
from ugpu.virtual.bus.msix import MsixFacts, MsixTable

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_PM, _MSI, _PCIE, _MSIX = 0x60, 0x68, 0x78, 0xC8
_STATE, _D3 = _PM + 4, 3  # PMCSR, PowerState
_TABLE, _PENDING = 0xB9_0000, 0xBA_0000  # in BAR0
REGISTERS = 16 << 20
INSTANCE = 32 << 20
_IO = 128


class ConfigSpace(config.ConfigSpace):
    """See the base class."""

    bars = (
        Bar(0, 0x0, 0xF000_0000), Bar(1, 0xC, 0x10_0000_0000), Bar(3, 0xC, 0x20_0000_0000),
        Bar(5, 0x1),
    )  # fmt: skip
    capabilities = (_PM, _MSI, _PCIE)
    chain = (_PM, _MSI, _PCIE)

    def __init__(self, card: Card) -> None:
        options, vectors = card.options, card.boot.table_size
        super().__init__(card, platform=options.platform, function_reset=options.function_reset)
        self._card = card
        self._sizes = {0: REGISTERS, 1: options.bar1, 3: INSTANCE, 5: _IO}
        if vectors:
            facts = MsixFacts(_MSIX, vectors, 0, _TABLE, _PENDING)
            self.messages = MsixTable(facts, card.message)
        self._placed = {bar.index: bar.address for bar in self.bars}
        self.reset()
        if options.platform:
            self._place()

    def bar_size(self, index: int) -> int:
        """Return the size in bytes that a BAR decodes; 0 if the BAR does not exist."""
        return self._sizes.get(index, 0)

    def function_reset(self) -> None:
        """Reset the card as over the bus."""
        self._card.function_reset()

    def _write_word(self, offset: int, value: int) -> None:
        state = self.read(_STATE, 1) & _D3
        super()._write_word(offset, value)
        if self._card.options.cut_in_d3 and offset == _STATE and value & _D3 == _D3 != state:
            self._card.power_cycle()
            self._put(_STATE, "<H", _D3)

    def reset(self) -> None:
        """Enter the state after a reset: nothing is enabled, BARs are not assigned."""
        self._clear(0x10DE, self._card.facts.pci_device, 0x030000 << 8 | 0xA1, 0x167C)
        self._update()

    def _update(self) -> None:
        super()._update()
        if self._bytes[_STATE] & _D3:  # a function outside of D0 decodes nothing
            self.memory_enabled = self.bus_master = False
        self._card.revoked(0, 0)  # bus mastering may be off now
