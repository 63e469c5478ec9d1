"""The security processor, driven by hand: loader, ring, firmware order, refusals."""

from __future__ import annotations

import copy
import struct

import pytest

from tests.support.amd.navi31_bench import COMMAND, FRAME_BUFFER, RING, STAGING, TMR, Bench, bench
from ugpu.hcq.errors import BadArgument
from ugpu.virtual.amd.options import FaultPlan


def ready(card: Bench) -> Bench:
    """Up to a ring."""
    card.enable()
    card.open_hub("mmhub")
    card.boot_secure_os()
    assert card.create_ring() == 0x80020000
    return card


def test_a_whole_boot_ends_with_autoload_and_breaks_no_rule() -> None:
    with bench() as card:
        started = []
        card.chip.autoload_listeners.append(lambda: started.append(True))
        card.boot()
        assert started == [True]
        assert card.chip.violations == []
        assert card.chip.notes == []


@pytest.mark.parametrize(
    ("command", "kind", "code"),
    [
        (0x10000, 2, 0x22),  # the system driver before the key database
        (0x20000, 1, 0x22),  # the secure OS first
        (0x80000, 2, 0x44),  # the system driver in place of the key database
        (0x70000, 3, 0x11),  # no such command
    ],
)
def test_the_loader_refuses_what_is_out_of_order(command: int, kind: int, code: int) -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        assert card.load(command, card.boot_part(kind)) == 0x80000000 | code
        # It stays refused: only a reset helps.
        card.write(card.psp(35), 0x80000)
        card.pass_time()
        assert card.read(card.psp(35)) != 0x80000000
        assert card.chip.violations


@pytest.mark.parametrize("spoil", ["flipped bit", "cut short", "no header", "foreign size"])
def test_the_loader_refuses_an_image_that_is_not_whole(spoil: str) -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        image = bytearray(card.boot_part(3))
        if spoil == "flipped bit":
            image[700] ^= 4
        elif spoil == "cut short":
            del image[-256:]
        elif spoil == "no header":
            image[0x10:0x14] = b"\0\0\0\0"
        else:
            struct.pack_into("<I", image, 0x6C, len(image) + 256)
        assert card.load(0x80000, bytes(image)) == 0x80000044


def test_the_loader_needs_the_image_flushed_and_the_hub_open() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.vram.write(STAGING, card.boot_part(3))  # and no HDP flush
        card.write(card.psp(36), (FRAME_BUFFER + STAGING) >> 20)
        card.write(card.psp(35), 0x80000)
        card.pass_time()
        assert card.read(card.psp(35)) == 0x80000044


@pytest.mark.parametrize("pages", [0, 1, 128, 256])
def test_the_loader_reads_no_further_than_the_image(pages: int) -> None:
    """Behind a USB bridge the buffer is as large as the bridge's memory: 512 KiB."""
    root, va, valid = 0x60_0000, 0x1234_5000_0000, 1
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        tables = [root + 0x1000 * depth for depth in range(4)]
        for depth, shift in enumerate((39, 30, 21)):
            slot = va >> shift & 511
            card.vram.write(tables[depth], bytes(4096))
            card.vram.write64(tables[depth] + 8 * slot, tables[depth + 1] | valid)
        card.vram.write(tables[3], bytes(4096))
        for page in range(pages):
            place = STAGING + 0x1000 * page | valid | 0x60  # readable and writable
            card.vram.write64(tables[3] + 8 * page, place)
        for register, low, high in (
            ("PAGE_TABLE_BASE", root | valid, 0),
            ("PAGE_TABLE_START", 0, 0),
            ("PAGE_TABLE_END", 0xFFFF_FFFF, 0xF),
        ):
            card.write(card.hub("mmhub", register), low)
            card.write(card.hub("mmhub", register) + 1, high)
        card.write(card.hub("mmhub", "CONTEXT0_CNTL"), 1 | 3 << 1 | 0x7FFE00)
        card.vram.write(STAGING, card.boot_part(3).ljust(1 << 20, b"\x00"))
        card.flush_hdp()
        card.write(card.psp(36), va >> 20)
        card.write(card.psp(35), 0x80000)
        card.pass_time()
        good = pages > 1
        assert card.read(card.psp(35)) == (0x8000_0000 if good else 0x8000_0033)
        if good:
            assert card.chip.violations == []


def test_leftovers_in_the_staging_buffer_are_noted() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        image = card.boot_part(3)
        card.load(0x80000, image + bytes(4096) + b"\xee" * 64)
        assert any("not zero behind the image" in note for note in card.chip.notes)


def test_optional_components_may_be_left_out() -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        steps = ((0x80000, 3), (0x10000, 2), (0xB0000, 7), (0xD0000, 8), (0xC0000, 9), (0x20000, 1))
        for command, kind in steps:
            assert card.load(command, card.boot_part(kind)) == 0x80000000
        assert card.read(card.psp(81)) != 0
        assert card.read(card.psp(64)) == 0x80000000


def test_the_secure_os_may_never_come_up() -> None:
    with bench(faults=FaultPlan(secure_os_never=True)) as card:
        card.enable()
        card.open_hub("mmhub")
        with pytest.raises(AssertionError):
            card.boot_secure_os()
        assert card.read(card.psp(81)) == 0


@pytest.mark.parametrize(("size", "status"), [(0x1800, 0x0A), (0x800, 0x0A), (0x1000, 0)])
def test_ring_sizes(size: int, status: int) -> None:
    with bench() as card:
        card.enable()
        card.open_hub("mmhub")
        card.boot_secure_os()
        assert card.create_ring(size) == 0x80020000 | status


def test_the_ring_wraps_after_64_frames() -> None:
    with bench() as card:
        ready(card)
        for _ in range(150):
            assert card.command(0x22)[0] == 0
        assert card.read(card.psp(67)) == (150 * 16) % 1024
        assert card.chip.violations == []


def test_a_write_pointer_outside_the_ring_is_not_followed() -> None:
    with bench() as card:
        ready(card)
        card.write(card.psp(67), 1024)
        card.pass_time()
        assert "outside the ring" in card.chip.violations[-1]


def test_several_frames_in_one_go() -> None:
    with bench() as card:
        ready(card)
        for number in range(5):
            buffer = bytearray(1024)
            struct.pack_into("<I", buffer, 8, 0x22)
            card.vram.write(COMMAND + 4096 * (number + 2), bytes(buffer))
            frame = struct.pack(
                "<QIQI",
                FRAME_BUFFER + COMMAND + 4096 * (number + 2),
                1024,
                FRAME_BUFFER + 0x30_0000 + 4 * number,
                100 + number,
            )
            card.vram.write(RING + 64 * number, frame.ljust(64, b"\0"))
        card.vram.write(0x30_0000, bytes(20))
        card.flush_hdp()
        card.write(card.psp(67), 5 * 16)
        card.pass_time()
        assert struct.unpack("<5I", card.vram.read(0x30_0000, 20)) == (100, 101, 102, 103, 104)


def test_unknown_and_unsupported_commands() -> None:
    with bench() as card:
        ready(card)
        assert card.command(0x55)[0] == 0x100
        assert card.command(1)[0] == 0xFFFF000A


def test_firmware_order() -> None:
    with bench() as card:
        ready(card)
        parts = card.parts()
        assert card.load_firmware(89, parts[89]) != 0  # before the TMR
        with pytest.raises(AssertionError):
            assert card.setup_tmr() == 0  # before the SMU's firmware
        assert card.load_firmware(18, parts[18]) == 0
        assert card.setup_tmr() == 0
        assert card.load_firmware(89, parts[89]) == 0
        assert card.load_firmware(89, parts[71]) != 0  # SDMA's image as the MEC's
        assert card.load_firmware(18, parts[18]) != 0  # after the TMR
        damaged = bytearray(parts[71])
        damaged[-300] ^= 1
        assert card.load_firmware(71, bytes(damaged)) != 0
        assert card.load_firmware(71, parts[71][:-4]) != 0
        assert card.load_firmware(500, parts[71]) != 0
        assert card.load_firmware(8, parts[8]) == 0
        assert card.load_firmware(71, parts[71]) != 0  # RLC_G is the last


def test_autoload_without_all_firmware_never_completes() -> None:
    with bench() as card:
        ready(card)
        started = []
        card.chip.autoload_listeners.append(lambda: started.append(True))
        parts = card.parts()
        del parts[69]  # IMU data
        assert card.load_firmware(18, parts.pop(18)) == 0
        assert card.setup_tmr() == 0
        for number, image in parts.items():
            assert card.load_firmware(number, image) == 0
        assert card.command(0x21)[0] == 0
        card.pass_time(10)
        assert started == []


def test_the_trusted_region_is_closed_to_everyone() -> None:
    with bench() as card:
        ready(card)
        assert card.load_firmware(18, card.parts()[18]) == 0
        assert card.setup_tmr() == 0
        assert card.chip.violations == []
        card.vram.write32(TMR + 64, 0x1234)
        card.flush_hdp()
        assert card.vram.read32(TMR + 64) == 0xDEDEDEDE
        assert card.chip.mm.read(0, FRAME_BUFFER + TMR, 4, 6)[0] == b"\xff" * 4
        # What lies just below is open, and one access may not run into it.
        assert card.chip.mm.read(0, FRAME_BUFFER + TMR - 8, 16, 6)[0][8:] == b"\xff" * 8
        assert len(card.chip.violations) >= 3


def test_planned_refusals_and_silence() -> None:
    with bench(faults=FaultPlan(psp_reject={"RS64_MEC"}, psp_status=0x77)) as card:
        ready(card)
        assert card.load_firmware(18, card.parts()[18]) == 0
        assert card.setup_tmr() == 0
        assert card.load_firmware(89, card.parts()[89]) == 0x77
        card.chip.faults.psp_silent = True
        with pytest.raises(AssertionError, match="fence not written"):
            card.command(0x22)


def test_firmware_and_secure_os_outlive_an_attachment_but_not_mode1() -> None:
    with bench() as card:
        card.boot()
        card.transport.close()
        again = Bench(card.chip)
        again.transport.config_write(4, 6, 2)
        assert again.read(again.psp(81)) != 0
        assert again.read(card.hub("mmhub", "L1_TLB")) & 1
        again.write(again.smu(90), 0)
        again.write(again.smu(66), 0x2F)
        again.pass_time()
        again.transport.config_write(4, 6, 2)
        assert again.read(again.psp(81)) == 0
        assert again.read(again.psp(35)) == 0x80000000
        again.transport.close()


def test_a_fault_plan_takes_known_names_only() -> None:
    plan = FaultPlan(psp_reject={"SOS"})
    plan.tlb_no_ack = {"gc"}
    plan.tlb_no_ack.add("mmhub")
    assert copy.deepcopy(plan) == plan and plan.psp_reject == {"SOS"}
    for wrong, match in (
        (lambda: FaultPlan(smu_quiet=True), "unknown fault 'smu_quiet'; did you mean smu_silent"),
        (lambda: setattr(plan, "tlb_dead", True), "unknown fault 'tlb_dead'; .*known: autoload_n"),
        (lambda: FaultPlan(psp_reject={"MEC"}), "unknown kind of firmware 'MEC'; did you mean MES"),
        (lambda: plan.psp_reject.add("sos"), "unknown kind of firmware 'sos'"),
        (lambda: plan.tlb_no_ack.update({"gfx"}), "unknown hub 'gfx'; known: gc, mmhub"),
        (lambda: setattr(plan, "tlb_no_ack", "gc"), "must be a set of names, got 'gc'"),
    ):
        with pytest.raises(BadArgument, match=match):
            wrong()
    assert plan.psp_reject == {"SOS"} and plan.tlb_no_ack == {"gc", "mmhub"}
