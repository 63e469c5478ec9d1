"""Configuration space that a reset clears is restored in an order that hardware takes."""

from __future__ import annotations

import pytest

from ugpu.hcq.errors import DeviceLost
from ugpu.hcq.transport.pci.config import SavedConfig, extended_capability

_COMMAND, _BAR0, _AER, _REBAR = 0x04, 0x10, 0x150, 0x200
_MEMORY, _MASTER = 1 << 1, 1 << 2


class Function:
    """A function of two resizable BARs. PCI Express Base Specification 5.0, 7.8.6."""

    def __init__(self) -> None:
        self.words = {
            0x00: 0x744C1002, 0x04: _MEMORY | _MASTER, 0x08: 0x03000000, _BAR0: 0x8000000C,
            0x100: 0x0001000B | _AER << 20, _AER: 0x00020001 | _REBAR << 20, _REBAR: 0x00010015,
            0x208: 0xF20 | 2 << 5, 0x210: 0x822,
        }  # fmt: skip
        self.written: list[tuple[int, int]] = []

    def read(self, offset: int, width: int) -> int:
        word = self.words.get(offset & ~3, 0) >> 8 * (offset & 3)
        return word & (1 << 8 * width) - 1

    def write(self, offset: int, value: int, width: int) -> None:
        assert width == 4 or offset == _COMMAND
        self.written.append((offset, value))
        self.words[offset] = value


def test_sizes_come_before_addresses_and_decoding_last() -> None:
    function = Function()
    before = dict(function.words)
    saved = SavedConfig(function.read)
    function.words |= {_COMMAND: _MEMORY, _BAR0: 0xC, 0x208: 0x840, 0x210: 0x022}
    saved.restore(function.write)
    assert {place: function.words[place] for place in before} == before
    order = [place for place, _ in function.written]
    assert function.written[0] == (_COMMAND, 0)
    assert function.written[-1] == (_COMMAND, _MEMORY | _MASTER)
    assert order.index(0x208) < order.index(0x210) < order.index(_BAR0)


def test_a_chain_that_loops_ends() -> None:
    function = Function()
    function.words[_REBAR] = 0x00010001 | 0x100 << 20
    assert extended_capability(function.read, 0x15) is None
    assert SavedConfig(function.read) is not None


def ones(_: int, width: int) -> int:
    """A read that nothing answers."""
    return (1 << 8 * width) - 1


def test_what_cannot_be_seen_is_not_saved() -> None:
    """sysfs shows an unprivileged reader 64 bytes; a function that left shows ones."""
    function = Function()
    saved = SavedConfig(lambda at, n: function.read(at, n) if at < 64 else ones(at, n))
    saved.restore(function.write)
    assert not any(place >= 64 for place, _ in function.written)
    with pytest.raises(DeviceLost):
        SavedConfig(ones)
