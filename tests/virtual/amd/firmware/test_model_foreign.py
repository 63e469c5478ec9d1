"""What the Linux kernel's own driver looks for on the card, found by letting it probe the model."""

from __future__ import annotations

import struct

from tests.support.amd.navi31_bench import FRAME_BUFFER, STAGING, Bench, bench, options
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.firmware.discovery import build_discovery
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.generations.record import generation_of

ROM_INDEX, ROM_DATA = 0x16800 + 0xE4, 0x16800 + 0xE5  # smuio_13_0_6_offset.h
SCRATCH = 0x14 + 0x38  # BIOS_SCRATCH_0, nbio_4_3_0_offset.h
FIRMWARE_FLAGS = 0x03B1_0024 >> 2
GART = 0x7FFF_0000_0000
TABLES = 0x90_0000


def rom(card: Bench, size: int) -> bytes:
    card.write(ROM_INDEX, 0)
    return b"".join(card.read(ROM_DATA).to_bytes(4, "little") for _ in range(0, size, 4))


def test_the_rom_holds_an_atom_bios_whose_tables_hang_together() -> None:
    with bench() as card:
        card.enable()
        size = rom(card, 4)[2] * 512
        image = rom(card, size)
        assert card.read(ROM_DATA) == 0xFFFF_FFFF, "behind the image the flash is erased"
        assert card.chip.violations == []
    assert image[:2] == b"\x55\xaa" and image[0x30:0x3A] == b" 761295520"
    assert sum(image) % 256 == 0
    (header,) = struct.unpack_from("<H", image, 0x48)
    assert image[header + 4 : header + 8] == b"ATOM"
    (data,) = struct.unpack_from("<H", image, header + 0x20)
    places = struct.unpack_from("<35H", image, data + 4)
    revisions, end = {}, 0
    for place, number in sorted((place, number) for number, place in enumerate(places) if place):
        length, major, minor = struct.unpack_from("<HBB", image, place)
        assert place >= end, "tables lie on one another"
        end = place + length
        revisions[number] = (major, minor, length)
    assert end < len(image)
    # sizes by atomfirmware.h: firmware, smu, gfx and vram information
    assert revisions[4] == (3, 4, 108) and revisions[8] == (3, 6, 240)
    assert revisions[14] == (3, 0, 136) and revisions[28] == (3, 0, 64 + 8 * 68)
    assert struct.unpack_from("<I", image, places[4] + 24)[0] == SCRATCH
    assert struct.unpack_from("<I", image, places[14] + 40)[0] == 10_000  # 100 MHz
    assert image[places[28] + 24] == 0x70 and image[places[28] + 25] * 16 == 384


def test_the_board_was_posted() -> None:
    with bench() as card:
        card.transport.config_write(4, 0x6, 2)
        assert card.read(SCRATCH + 7) == 0
        card.pass_time()
        assert card.read(SCRATCH + 7) & 0x200


def test_discovery_names_no_id_that_cannot_be() -> None:
    neighbours = generation_of(NAVI31.generation).neighbours
    image = build_discovery(NAVI31, options().on(NAVI31), neighbours)
    place = 0x3C + 0x50 + 4
    (count,) = struct.unpack_from("<H", image, place - 2)
    for _ in range(count):
        number, instance, bases = struct.unpack_from("<HBB", image, place)
        assert number < 300 and instance < 28
        place += 8 + 4 * bases
    assert count > 15


def test_the_loader_reads_through_the_gart() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.vram.write(STAGING, card.boot_part(3).ljust(1 << 20, b"\x00"))
        entries = [(STAGING + 4096 * page) | 0x71 for page in range(256)]
        card.vram.write(TABLES, struct.pack("<256Q", *entries))
        card.flush_hdp()
        for name, value in (
            ("PAGE_TABLE_BASE", TABLES | 1),
            ("PAGE_TABLE_START", GART >> 12),
            ("PAGE_TABLE_END", (GART >> 12) + 255),
        ):
            card.write(card.hub("mmhub", name), value & 0xFFFF_FFFF)
            card.write(card.hub("mmhub", name) + 1, value >> 32)
        card.write(card.hub("mmhub", "CONTEXT0_CNTL"), 1)
        card.write(card.psp(36), GART >> 20)
        card.write(card.psp(35), 0x80000)
        card.pass_time()
        assert card.read(card.psp(35)) == 0x8000_0000
        assert card.chip.violations == []


def test_the_loader_refuses_what_the_gart_does_not_map() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.write(card.psp(36), GART >> 20)
        card.write(card.psp(35), 0x80000)
        card.pass_time()
        assert card.read(card.psp(35)) == 0x8000_0033


def test_the_power_manager_says_that_it_listens_and_hands_out_its_table() -> None:
    with bench() as card:
        card.enable()
        assert card.chip.space.read(FIRMWARE_FLAGS) == 0
        card.boot()
        card.chip.space.write(FIRMWARE_FLAGS, 0)
        assert card.chip.space.read(FIRMWARE_FLAGS) == 1
        assert card.message(0x0E, FRAME_BUFFER >> 32)[0] == 1
        assert card.message(0x0F, 0x40_0000)[0] == 1
        assert card.message(0x12, 1)[0] == 1
        table = card.vram.read(0x40_0000, 4804)
    size, revision = struct.unpack_from("<HB", table)
    assert (size, revision) == (4804, 15)
    assert struct.unpack_from("<H", table, 6)[0] == 832  # where PPTable_t begins
    assert struct.unpack_from("<H", table, 832 + 16)[0] == 339  # SocketPowerLimitAc[0]
    assert struct.unpack_from("<4H", table, 832 + 748) == (500, 800, 1000, 1200)


def test_trusted_applications_need_a_signature() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.boot_secure_os()
        card.create_ring()
        image = bytearray(synthetic_set(NAVI31, 7)["psp_13_0_0_ta.bin"][256:])
        for flaw in (0, 1):
            image[0x400] ^= flaw
            card.vram.write(STAGING, bytes(image))
            address = FRAME_BUFFER + STAGING
            status = card.command(4, address & 0xFFFF_FFFF, address >> 32, len(image))[0]
            assert bool(status) == bool(flaw)
