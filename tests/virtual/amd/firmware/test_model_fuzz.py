"""Nothing a driver writes may break the model: random registers, images, page tables."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.am_navi31 import build_chip
from tests.support.amd.navi31_bench import FRAME_BUFFER, Bench, bench, options
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.regs import load
from ugpu.virtual.amd.firmware.images import image_size, sign, verify

INTERESTING = (0, 1, 0xFFFFFFFF, 0x80000000, 0x30000007, 0x00020000, 0x55555555)


def every_register() -> list[int]:
    """The absolute index of every register of every block."""
    indices = []
    for block, table in NAVI31.register_tables.items():
        registers = load(table)
        bases = NAVI31.generation.typical_bases[block]
        for name in registers:
            register = registers[name]
            if register.segment < len(bases):
                indices.append(bases[register.segment] + register.offset)
    return sorted(set(indices))


@pytest.mark.parametrize("seed", range(4))
def test_random_register_writes_break_nothing(seed: int) -> None:
    source = random.Random(seed)
    chip = build_chip(options(manual_time=True))
    card = Bench(chip)
    try:
        card.boot()
        for index in source.sample(every_register(), 3000):
            value = source.choice((*INTERESTING, source.getrandbits(32)))
            with chip.lock:
                chip.space.write(index, value)
                assert 0 <= chip.space.read(index) <= 0xFFFFFFFF
        card.pass_time()
        card.transport.window(2).write64(24, 1 << 40)
        card.transport.config_write(4, 6, 2)
        # A reset mends whatever that did.
        chip.power_cycle()
        card.boot()
    finally:
        card.close()


@given(st.binary(max_size=600))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_firmware(data: bytes) -> None:
    assert not verify("SOS", data)
    assert image_size(data[:200]) is None


@given(st.binary(min_size=1, max_size=300), st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_every_flipped_byte_is_noticed(body: bytes, place: int, flip: int) -> None:
    image = bytearray(sign("RLC_G", body, 1))
    assert verify("RLC_G", bytes(image))
    assert not verify("RLC_P", bytes(image))
    image[place % len(image)] ^= flip
    assert not verify("RLC_G", bytes(image))


@given(st.lists(st.binary(min_size=40, max_size=40), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_random_ring_frames_and_commands_break_nothing(commands: list[bytes]) -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.boot_secure_os()
        card.create_ring()
        for content in commands:
            buffer = content.ljust(1024, b"\0")
            card.vram.write(0x21_0000, buffer)
            frame = struct.pack(
                "<QIQI", FRAME_BUFFER + 0x21_0000, 1024, FRAME_BUFFER + 0x22_0000, 1
            )
            card.vram.write(0x20_0000 + 4 * card.read(card.psp(67)), frame.ljust(64, b"\0"))
            card.flush_hdp()
            card.write(card.psp(67), (card.read(card.psp(67)) + 16) % 1024)
            card.pass_time()
        assert card.command(0x22)[0] == 0  # the ring still works


PAGE_COUNT = 64
BASE = 0x7_0000_0000  # virtual


@given(
    st.dictionaries(
        st.integers(0, PAGE_COUNT - 1),
        st.tuples(st.integers(0, 255), st.sampled_from([1, 0x21, 0x61, 0x41, 0x31])),
        max_size=PAGE_COUNT,
    ),
    st.lists(st.tuples(st.integers(0, PAGE_COUNT * 4096 - 9), st.booleans()), max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_translations_agree_with_the_table_as_written(
    pages: dict[int, tuple[int, int]], accesses: list[tuple[int, bool]]
) -> None:
    """Pages of a flat table, at random places with random rights, against a plain dictionary."""
    with bench(noise=4 << 20) as card:
        card.enable()
        card.open_hub("mmhub")
        for name, value in (
            ("PAGE_TABLE_BASE", 0x60_0001),
            ("PAGE_TABLE_START", BASE >> 12),
            ("PAGE_TABLE_END", (BASE >> 12) + PAGE_COUNT - 1),
        ):
            card.write(card.hub("mmhub", name) + 4, value)
            card.write(card.hub("mmhub", name) + 5, 0)
        card.write(card.hub("mmhub", "CONTEXT0_CNTL") + 2, 1)
        card.vram.write(0x60_0000, bytes(8 * PAGE_COUNT))
        for page, (place, flags) in pages.items():
            card.vram.write64(0x60_0000 + 8 * page, place << 12 | flags)
        card.flush_hdp()
        hub = card.chip.mm
        for offset, write in accesses:
            wanted = 0x40 if write else 0x20
            expected = bytearray()
            denied = None
            for at in range(offset, offset + 8):
                place, flags = pages.get(at >> 12, (0, 0))
                if flags & 1 and flags & wanted:
                    expected += card.chip.vram.read((place << 12) + at % 4096, 1)
                else:
                    denied = denied or (BASE + at) & -4096
                    expected += b"\0"
            if write:
                fault = hub.write(2, BASE + offset, bytes(range(8)), 8)
            else:
                data, fault = hub.read(2, BASE + offset, 8, 8)
                assert data == expected
            assert (fault is None) == (denied is None)
            if fault is not None:
                assert fault.address & -4096 == denied
