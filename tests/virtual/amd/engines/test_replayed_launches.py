"""A replayed indirect buffer: what is kept of its packets and launches, and what ends that."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from tests.support.amd.virtual_engines import DATA, UNMAPPED, Bench, high, low
from ugpu.virtual.amd.objections import Level
from ugpu.virtual.amd.shader import Dispatch

BUFFER = DATA + 0x1_0000
CODE = 0x8000_1234_5600
# Offsets from 0x2C00, by the register header.
NUM_THREAD_X, PGM_LO, SCRATCH_LO = 0x207, 0x20C, 0x210
RSRC1, RSRC2, TMPRING, RSRC3, USER_DATA = 0x212, 0x213, 0x218, 0x228, 0x240
EN, FORCE_START, WAVE32 = 1, 1 << 2, 1 << 15
ACQUIRE = [0xC0065800, 0, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA, 1 << 7 | 1 << 8 | 1 << 9]
FLUSH = [0xC0004600, 7 | 4 << 8]


def sh(offset: int, *values: int) -> list[int]:
    return [0xC0007600 | len(values) << 16, offset, *values]


def dispatch(x: int = 3, y: int = 4, z: int = 5) -> list[int]:
    return [0xC0031500, x, y, z, EN | FORCE_START | WAVE32]


def write(address: int, value: int) -> list[int]:
    return [0xC0033700, 0x00100500, low(address), high(address), value]


LAUNCH = [
    *sh(PGM_LO, low(CODE >> 8), high(CODE >> 8)),
    *sh(SCRATCH_LO, 0x10, 0x2),
    *sh(RSRC1, 1 << 29 | 3, 2 << 1 | 1 << 7),
    *sh(TMPRING, 32 | 5 << 12),
    *sh(RSRC3, 0x10),
    *sh(NUM_THREAD_X, 64, 1, 1),
    *sh(USER_DATA, *range(100, 116)),
    *ACQUIRE,
    *dispatch(),
    *FLUSH,
]


class Replays(Bench):
    """A bench with one indirect buffer, whose words a test changes."""

    def fill(self, words: Sequence[int]) -> None:
        """Write the buffer."""
        self.words = list(words)
        self.store(BUFFER, struct.pack(f"<{len(words)}I", *words))

    def change(self, at: int, value: int) -> None:
        """Change one word of the buffer."""
        self.words[at] = value
        self.store(BUFFER + 4 * at, struct.pack("<I", value))

    def replay(self, *before: Sequence[int]) -> None:
        """Run packets, then the buffer."""
        control = len(self.words) | 1 << 23  # VALID
        self.submit(*before, [0xC0023F00, low(BUFFER), high(BUFFER), control])


@pytest.fixture
def bench() -> Iterator[Replays]:
    bench = Replays()
    bench.start_mec()
    bench.select(me=0, vmid=0)
    bench.set("SH_MEM_BASES", 1 << 16 | 2)
    bench.activate()
    bench.fill(LAUNCH)
    yield bench
    bench.close()


def test_an_unchanged_launch_is_the_same_one(bench: Replays) -> None:
    for _ in range(3):
        bench.replay()
    first, second, third = bench.core.launches
    assert first == second and second is third, "from its second time on"
    assert (first.repeats, second.repeats) == (False, True)
    assert first.code_address == CODE
    assert (first.groups, first.threads) == ((3, 4, 5), (64, 1, 1))
    assert bench.chip.violations == []


@pytest.mark.parametrize(
    ("name", "offset", "value", "expected"),
    [
        ("code_address", PGM_LO, low((CODE >> 8) + 1), CODE + 0x100),
        ("code_address", PGM_LO + 1, high(CODE >> 8) + 1, CODE + (1 << 40)),
        ("scratch_base", SCRATCH_LO, 0x11, 0x2_0000_0011 << 8),
        ("rsrc1", RSRC1, 1 << 29 | 2, 1 << 29 | 2),
        ("rsrc2", RSRC2, 3 << 1 | 1 << 7, 3 << 1 | 1 << 7),
        ("rsrc3", RSRC3, 0x20, 0x20),
        ("scratch_waves", TMPRING, 64 | 5 << 12, 64),
        ("scratch_wave_size", TMPRING, 32 | 6 << 12, 6 * 256),
        ("threads", NUM_THREAD_X + 1, 2, (64, 2, 1)),
        ("user_data", USER_DATA, 99, (99, *range(101, 116))),
        ("user_data", USER_DATA + 15, 99, (*range(100, 115), 99)),
    ],
)
def test_one_changed_register_is_noticed(
    bench: Replays, name: str, offset: int, value: int, expected: object
) -> None:
    bench.replay()
    bench.change(place(offset), value)
    bench.replay()
    before, after = bench.core.launches
    assert getattr(before, name) != expected
    assert getattr(after, name) == expected


def place(register: int) -> int:
    """Return the index of a register's value in LAUNCH."""
    at = 0
    while True:
        count = LAUNCH[at] >> 16 & 0x3FFF
        if LAUNCH[at] >> 8 & 0xFF == 0x76 and 0 <= register - LAUNCH[at + 1] < count:
            return at + 2 + register - LAUNCH[at + 1]
        at += count + 2


@pytest.mark.parametrize(("axis", "groups"), [(0, (9, 4, 5)), (1, (3, 9, 5)), (2, (3, 4, 9))])
def test_a_changed_grid_is_noticed(bench: Replays, axis: int, groups: tuple[int, int, int]) -> None:
    bench.replay()
    bench.change(LAUNCH.index(0xC0031500) + 1 + axis, 9)
    bench.replay()
    assert [launch.groups for launch in bench.core.launches] == [(3, 4, 5), groups]


def test_a_changed_initiator_is_noticed(bench: Replays) -> None:
    bench.replay()
    bench.change(LAUNCH.index(0xC0031500) + 4, EN | FORCE_START)
    bench.replay()
    assert [launch.wave32 for launch in bench.core.launches] == [True, False]


def test_registers_outside_the_buffer_are_noticed(bench: Replays) -> None:
    """The buffer does not write RSRC3, and apertures are not registers of the queue."""
    at = place(RSRC3) - 2
    bench.fill([*LAUNCH[:at], *LAUNCH[at + 3 :]])
    bench.replay(sh(RSRC3, 0x10))
    bench.replay(sh(RSRC3, 0x20))
    bench.select(me=0, vmid=0)
    bench.set("SH_MEM_BASES", 3 << 16 | 2)
    bench.replay()
    assert [launch.rsrc3 for launch in bench.core.launches] == [0x10, 0x20, 0x20]
    assert [launch.shared_aperture >> 48 for launch in bench.core.launches] == [1, 1, 3]


def test_a_launch_that_became_invalid_hangs(bench: Replays) -> None:
    bench.replay()
    bench.change(place(NUM_THREAD_X), 0)
    bench.submit([0xC0023F00, low(BUFFER), high(BUFFER), len(LAUNCH) | 1 << 23], wait=False)
    assert "0x1x1 is 0 threads" in bench.hung()


def test_a_packet_that_became_invalid_hangs(bench: Replays) -> None:
    bench.replay()
    bench.change(LAUNCH.index(0xC0031500), 0xC003FF00)
    bench.submit([0xC0023F00, low(BUFFER), high(BUFFER), len(LAUNCH) | 1 << 23], wait=False)
    assert "unknown opcode 0xff" in bench.hung()
    assert len(bench.core.launches) == 1


def test_a_buffer_that_is_unmapped_meanwhile_hangs(bench: Replays) -> None:
    bench.replay()
    bench.submit([0xC0023F00, low(UNMAPPED), high(UNMAPPED), len(LAUNCH) | 1 << 23], wait=False)
    assert "page fault while fetching" in bench.hung()


def test_launches_without_an_acquire_are_violations_each_time(bench: Replays) -> None:
    first = LAUNCH.index(ACQUIRE[0])
    bench.fill([*LAUNCH[:first], *LAUNCH[first + len(ACQUIRE) :]])
    for number in range(1, 4):
        bench.replay()
        assert counted(bench, "launch without ACQUIRE_MEM") == number
        assert len(bench.core.launches) == number


def test_undefined_registers_are_violations_each_time(bench: Replays) -> None:
    bench.fill([*LAUNCH, *sh(0x3F0, 7), *write(DATA + 4, 1)])
    for number in range(1, 4):
        bench.store(DATA + 4, bytes(4))
        bench.replay()
        assert counted(bench, "no compute register is there") == number
        assert bench.dword(DATA + 4) == 1


def test_reserved_bits_are_violations_each_time(bench: Replays) -> None:
    reserved = write(DATA + 4, 1)
    reserved[3] |= 1 << 31
    bench.fill([*LAUNCH, *reserved])
    for number in range(1, 4):
        bench.store(DATA + 4, bytes(4))
        bench.replay()
        assert counted(bench, "reserved bits 0x80000000 are set") == number
        assert bench.dword(DATA + 4) == 1


def counted(bench: Bench, text: str) -> int:
    """Return how many violations have a text."""
    kinds = bench.chip.objections.of(Level.VIOLATION)
    return sum(count for kind, count in kinds.items() if text in kind)


def test_memory_decides_what_a_replay_skips(bench: Replays) -> None:
    """COND_EXEC reads its flag each time; the packets behind it are found at their new place."""
    conditional = [0xC0032200, low(DATA), high(DATA), 0, 5]  # skips the five words that follow
    bench.fill([*conditional, *write(DATA + 4, 1), *write(DATA + 8, 1), *LAUNCH])
    for flag in (1, 0, 1):
        bench.store(DATA, struct.pack("<3I", flag, 0, 0))
        bench.replay()
        assert (bench.dword(DATA + 4), bench.dword(DATA + 8)) == (flag, 1)
    assert len(bench.core.launches) == 3


def test_a_skip_beyond_the_end_hangs_in_each_replay(bench: Replays) -> None:
    conditional = [0xC0032200, low(DATA), high(DATA), 0, 6]
    bench.fill([*LAUNCH, *conditional, *write(DATA + 4, 1)])
    bench.store(DATA, struct.pack("<2I", 1, 0))
    bench.replay()
    assert bench.dword(DATA + 4) == 1
    bench.store(DATA, struct.pack("<2I", 0, 0))
    control = len(bench.words) | 1 << 23
    bench.submit([0xC0023F00, low(BUFFER), high(BUFFER), control], wait=False)
    assert "ends outside the buffer" in bench.hung()
    assert bench.dword(DATA + 4) == 0
    assert len(bench.core.launches) == 2


def test_a_chain_replaces_the_rest_in_each_replay(bench: Replays) -> None:
    other = BUFFER + 0x1000
    bench.store(other, struct.pack("<5I", *write(DATA + 4, 7)))
    chain = [0xC0023F00, low(other), high(other), 5 | 1 << 20 | 1 << 23]
    bench.fill([*LAUNCH, *chain, *write(DATA + 8, 1)])
    for value in (7, 8):
        bench.store(other, struct.pack("<5I", *write(DATA + 4, value)))
        bench.replay()
        assert (bench.dword(DATA + 4), bench.dword(DATA + 8)) == (value, 0)
    assert len(bench.core.launches) == 2


def test_more_buffers_and_launches_than_are_kept(bench: Replays) -> None:
    expected: list[int] = []
    for _ in range(2):
        for number in range(40):
            bench.change(place(USER_DATA), number)
            bench.replay()
            expected.append(number)
    launches: list[Dispatch] = bench.core.launches
    assert [launch.user_data[0] for launch in launches] == expected
