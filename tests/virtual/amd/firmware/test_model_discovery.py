"""The discovery binary, read with a parser of our own made from include/discovery.h by hand."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.support.amd.navi31_bench import SMALL, bench, options
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.firmware.discovery import build_discovery
from ugpu.virtual.amd.generations.record import generation_of


def byte_sum(data: bytes) -> int:
    return sum(data) % 65536


def parse(image: bytes) -> dict[str, Any]:
    """Check every signature and checksum, and list what is in it; ValueError says what is wrong."""
    signature, major, _, checksum, size = struct.unpack_from("<IHHHH", image, 0)
    if signature != 0x28211407 or major != 1:
        raise ValueError("binary signature")
    if size > len(image) or byte_sum(image[10:size]) != checksum:
        raise ValueError("binary checksum")
    tables = [struct.unpack_from("<HHH", image, 12 + 8 * slot) for slot in range(6)]
    start = tables[0][0]
    ips_signature, version, length, _, dies = struct.unpack_from("<IHHIH", image, start)
    if ips_signature != 0x53445049:
        raise ValueError("table signature")
    if byte_sum(image[start : start + length]) != tables[0][1]:
        raise ValueError("table checksum")
    assert dies == 1
    wide = version == 4 and image[start + 78] & 1
    at = struct.unpack_from("<HH", image, start + 14)[1]
    die_id, count = struct.unpack_from("<HH", image, at)
    assert die_id == 0
    at += 4
    ips: dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for _ in range(count):
        hardware, instance, bases, *numbers, _ = struct.unpack_from("<HBBBBBB", image, at)
        at += 8
        ips[hardware, instance] = (
            tuple(numbers),
            struct.unpack_from(f"<{bases}{'Q' if wide else 'I'}", image, at),
        )
        at += bases * (8 if wide else 4)
    assert at == start + length
    start, checksum, _ = tables[1]
    identifier, major, minor, length = struct.unpack_from("<IHHI", image, start)
    assert (identifier, major, minor) == (0x4347, 1, 2)
    if byte_sum(image[start : start + length]) != checksum:
        raise ValueError("gc checksum")
    gc = struct.unpack_from("<19I", image, start + 12)
    start, checksum, _ = tables[2]
    assert struct.unpack_from("<I", image, start)[0] == 0x56524148
    if byte_sum(image[start : start + 8 + 32 * 4]) != checksum:
        raise ValueError("harvest checksum")
    harvested = [struct.unpack_from("<HB", image, start + 8 + 4 * entry) for entry in range(32)]
    return {"ips": ips, "gc": gc, "harvested": [pair for pair in harvested if pair[0]]}


@pytest.mark.parametrize("version", [3, 4])
def test_the_binary_near_the_end_of_vram_describes_the_chip(version: int) -> None:
    with bench(discovery_version=version, harvested=((12, 1), (43, 0))) as card:
        card.enable()
        found = parse(card.vram.read(SMALL - 0x10000, 0x2800))
        assert found["ips"][11, 0] == ((11, 0, 0), (0x1260, 0xA000, 0x1C000, 0x2402C00))
        assert found["ips"][34, 0] == ((3, 0, 0), (0x1A000, 0x2408800))
        assert found["ips"][255, 0][0] == (13, 0, 0)
        assert found["ips"][108, 0][0] == (4, 3, 0)
        assert {(42, 0), (43, 0), (40, 0), (41, 0), (1, 0)} <= set(found["ips"])
        assert (found["gc"][0], found["gc"][1], found["gc"][16]) == (6, 4, 2)  # SE, WGP, SA
        assert found["gc"][11] == 32  # wave size
        assert found["harvested"] == [(12, 1), (43, 0)]


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("signature", "binary signature"),
        ("checksum", "binary checksum"),
        ("size", "binary checksum"),
        ("table signature", "table signature"),
        ("table checksum", "table checksum"),
        ("gc checksum", "gc checksum"),
        ("harvest", "harvest checksum"),
    ],
)
def test_each_flaw_breaks_exactly_one_check(flaw: Any, words: str) -> None:
    neighbours = generation_of(NAVI31.generation).neighbours
    flawed = options(discovery_flaw=flaw).on(NAVI31)
    image = build_discovery(NAVI31, flawed, neighbours).ljust(0x2800, b"\x00")
    with pytest.raises(ValueError, match=words):
        parse(image)


def test_nothing_is_there_until_the_board_firmware_is_done() -> None:
    with bench() as card:
        card.transport.config_write(4, 6, 2)
        assert card.read(0xDE3) == 0  # RCC_CONFIG_MEMSIZE
        assert card.read(0x16061) == 0  # C2PMSG_33
        assert card.vram.read32(SMALL - 0x10000) != 0x28211407
        card.pass_time()
        assert card.read(0xDE3) == SMALL >> 20
        assert card.read(0x16061) == 0x80000000
        assert card.vram.read32(SMALL - 0x10000) == 0x28211407
        assert not card.chip.violations


def test_a_small_bar_leaves_the_table_to_the_indirect_window() -> None:
    with bench(vram=1 << 30, visible_vram=256 << 20) as card:
        card.enable()
        assert card.vram.size == 256 << 20
        place = (1 << 30) - 0x10000
        card.write(6, place >> 31)
        card.write(0, place & 0x7FFFFFFF | 0x80000000)
        assert card.read(1) == 0x28211407
        assert not card.chip.violations


def test_the_board_firmware_may_never_finish() -> None:
    with bench() as card:
        card.chip.faults.ifwi_never = True
        card.chip.power_cycle()
        card.transport.config_write(4, 6, 2)
        card.pass_time(10)
        assert card.read(0xDE3) == 0
