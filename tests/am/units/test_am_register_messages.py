"""Registers behind a link where each access is a message: what is known is not read again."""

from __future__ import annotations

import struct

import pytest

from ugpu.hcq.bare.bus import ALL_ONES, RegisterBus
from ugpu.hcq.registers.fields import BoundRegister, Field, Register

FIELDS = (Field("LOW", 0, 8), Field("HIGH", 8, 8))


class Words:
    """A window of registers. accesses: what crossed the link, as ("read", index) and the like."""

    index = 5
    size = 256

    def __init__(self) -> None:
        self.words = [0] * (self.size // 4)
        self.accesses: list[tuple[object, ...]] = []

    def read32(self, offset: int) -> int:
        self.accesses.append(("read", offset // 4))
        return self.words[offset // 4]

    def write32(self, offset: int, value: int) -> None:
        self.accesses.append(("write", offset // 4, value))
        self.words[offset // 4] = value

    def read(self, offset: int, size: int) -> bytes:
        self.accesses.append(("block", offset // 4, size // 4))
        return struct.pack(f"<{size // 4}I", *self.words[offset // 4 : (offset + size) // 4])

    def read64(self, offset: int) -> int:
        raise NotImplementedError

    def write64(self, offset: int, value: int) -> None:
        raise NotImplementedError

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError


@pytest.fixture
def words() -> Words:
    return Words()


def register(bus: RegisterBus, index: int) -> BoundRegister:
    return BoundRegister(Register(f"R{index}", index, 0, FIELDS), index, bus)


def reads(words: Words) -> int:
    return sum(one[0] != "write" for one in words.accesses)


def test_a_register_is_read_once_for_all_its_changes(words: Words) -> None:
    words.words[3] = 0x1200
    bus = RegisterBus(words, messages=True)
    with bus.setting_up():
        register(bus, 3).update(LOW=1)
        register(bus, 3).update(LOW=2)
        register(bus, 4).write(0x3400)
        register(bus, 4).update(LOW=3)
    assert words.accesses == [
        ("read", 3), ("write", 3, 0x1201), ("write", 3, 0x1202),
        ("write", 4, 0x3400), ("write", 4, 0x3403),
    ]  # fmt: skip


def test_a_read_is_a_read(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    with bus.setting_up():
        register(bus, 3).write(1)
        words.words[3] = 2  # the chip changed it
        assert register(bus, 3).read() == 2


def test_nothing_is_known_outside_or_where_registers_are_mapped(words: Words) -> None:
    mapped, link = RegisterBus(words), RegisterBus(words, messages=True)
    with mapped.setting_up():
        register(mapped, 3).update(LOW=1)
        register(mapped, 3).update(LOW=2)
    assert reads(words) == 2
    for _ in range(2):
        with link.setting_up():
            register(link, 3).update(LOW=3)
    register(link, 3).update(LOW=4)
    assert reads(words) == 5


def test_nothing_is_known_after_an_error(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    with pytest.raises(ZeroDivisionError), bus.setting_up():
        register(bus, 3).update(LOW=1)
        raise ZeroDivisionError
    words.words[3] = 0x500
    register(bus, 3).update(LOW=2)
    assert words.words[3] == 0x502


def test_a_selector_changes_what_other_registers_are(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    bus.selectors = frozenset({9})
    with bus.setting_up():
        register(bus, 3).update(LOW=1)
        register(bus, 9).write(1)
        words.words[3] = 0x700  # another queue's
        register(bus, 3).update(LOW=2)
    assert words.words[3] == 0x702


def test_ones_are_no_value(words: Words) -> None:
    """A read that gave ones may have been lost."""
    bus = RegisterBus(words, messages=True)
    words.words[3] = ALL_ONES
    with bus.setting_up():
        bus.read_ahead(register(bus, 3), register(bus, 4))
        words.words[3] = 0x900
        register(bus, 3).update(LOW=1)
    assert words.words[3] == 0x901


def test_neighbours_are_read_as_a_block(words: Words) -> None:
    words.words[3:6] = 0x100, 0x200, 0x300
    bus = RegisterBus(words, messages=True)
    with bus.setting_up():
        bus.read_ahead(register(bus, 3), register(bus, 5))
        for index in (3, 4, 5):
            register(bus, index).update(LOW=1)
    assert words.words[3:6] == [0x101, 0x201, 0x301]
    assert words.accesses[0] == ("block", 3, 3) and reads(words) == 1


def test_a_block_is_read_ahead_only_for_changes_that_follow(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    bus.read_ahead(register(bus, 3), register(bus, 5))
    mapped = RegisterBus(words)
    with mapped.setting_up():
        mapped.read_ahead(register(mapped, 3), register(mapped, 5))
    assert words.accesses == []


def test_an_index_register_stays_aimed_while_registers_are_set_up(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    bus.index_register, bus.data_register = 1, 2
    beyond = register(bus, words.size // 4 + 8)
    with bus.setting_up():
        beyond.update(LOW=1)
        assert words.accesses.count(("write", 1, beyond.index * 4)) == 1
        assert words.accesses.count(("read", 1)) == 0  # messages arrive in their order
        register(bus, beyond.index + 1).write(1)
        beyond.write(1)
        assert words.accesses.count(("write", 1, beyond.index * 4)) == 2
    beyond.write(1)
    assert words.accesses.count(("write", 1, beyond.index * 4)) == 3


def test_what_is_kept_serves_the_next_change_alone(words: Words) -> None:
    words.words[3:5] = 0x100, 0x200
    bus = RegisterBus(words, messages=True)
    with bus.setting_up():
        bus.read_ahead(register(bus, 3), register(bus, 4))
        bus.keep(register(bus, 3))
        bus.keep(register(bus, 5))  # nothing is known of it
    register(bus, 3).update(LOW=1)
    register(bus, 4).update(LOW=1)
    register(bus, 5).update(LOW=1)
    assert reads(words) == 3 and words.words[3:6] == [0x101, 0x201, 1]
    register(bus, 3).update(LOW=2)
    assert reads(words) == 4


def test_a_block_that_is_kept_is_not_read_ahead_again(words: Words) -> None:
    words.words[3:6] = 0x100, 0x200, 0x300
    bus = RegisterBus(words, messages=True)
    with bus.setting_up():
        bus.read_ahead(register(bus, 3), register(bus, 4))
        bus.keep(register(bus, 4))
    with bus.setting_up():
        bus.read_ahead(register(bus, 4), register(bus, 4))
        register(bus, 4).update(LOW=1)
        register(bus, 4).update(LOW=2)
        bus.read_ahead(register(bus, 4), register(bus, 5))
    assert words.words[4] == 0x202
    assert [one for one in words.accesses if one[0] != "write"] == [
        ("block", 3, 2), ("block", 4, 2),
    ]  # fmt: skip


def test_a_write_a_reset_and_ones_end_what_is_kept(words: Words) -> None:
    bus = RegisterBus(words, messages=True)
    words.words[3:6] = 0x100, 0x200, ALL_ONES
    with bus.setting_up():
        bus.read_ahead(register(bus, 3), register(bus, 5))
        for index in (3, 4, 5):
            bus.keep(register(bus, index))
    register(bus, 3).write(0x700)
    words.words[3] = 0x800  # the chip changed it
    words.words[5] = 0x900  # the read above was lost
    register(bus, 3).update(LOW=1)
    register(bus, 5).update(LOW=1)
    bus.forget()
    words.words[4] = 0
    register(bus, 4).update(LOW=1)
    assert words.words[3:6] == [0x801, 1, 0x901]


def test_neighbours_that_are_read_with_a_register_are_kept(words: Words) -> None:
    words.words[3:8] = 0x100, 0x200, 0x300, 0x400, 0x500
    bus, mapped = RegisterBus(words, messages=True), RegisterBus(words)
    assert bus.read_with(3, (1, 4)) == 0x100 and words.accesses == [("block", 3, 5)]
    assert register(bus, 4).current() == 0x200 and register(bus, 7).current() == 0x500
    assert reads(words) == 1
    assert register(bus, 4).current() == 0x200 and register(bus, 5).current() == 0x300
    assert reads(words) == 3
    assert mapped.read_with(3, (1, 4)) == 0x100 and words.accesses[-1] == ("read", 3)
