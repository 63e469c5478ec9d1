"""The boot of register-level NVIDIA cards: the right order works, everything else is refused by
name. The script that boots is gsp_script.py of tests.support, written from nouveau's order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.nvidia.gsp.gsp_script import FRTS, GSP, PAGE, SB, SEC2, SYSTEM_INFO, Script
from ugpu.hcq.transport.base import ResetKind
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import FIRMWARES, CardOptions

MEMORY = 1 << 30
INIT_DONE, SEQUENCER, PRINT = 0x1001, 0x1002, 0x100C
LOCKDOWN = {"535.113.01": 0x101D, "570.144": 0x101C}


def make(version: str = "570.144", chip: str = "ad102", **options: Any) -> Script:
    return Script(build_card(chip, CardOptions(memory=MEMORY, **options)), version)


@pytest.fixture
def script() -> Iterator[Script]:
    made = make()
    yield made
    made.close()
    made.card.close()


def objections(script: Script) -> str:
    return "\n".join(script.card.violations)


@pytest.mark.parametrize("version", FIRMWARES)
@pytest.mark.parametrize("chip", ["ad102", "ga102"])
def test_it_boots_unloads_and_boots_again(chip: str, version: str) -> None:
    script = make(version, chip)
    try:
        for _ in range(2):
            script.sent = script.pointer = script.sequence = 0
            script.events = []
            script.boot()
            assert script.card.wpr.start == script.meta["start"]
            assert script.read(0x111388) >> 7 & 1
            script.unload()
            assert (script.read(0x1FA828), script.card.server) == (0, None)
        assert script.card.violations == [] and script.card.registers.unknown == {}
    finally:
        script.close()
        script.card.close()


@pytest.mark.parametrize("version", FIRMWARES)
def test_a_chatty_card_says_much_before_it_is_done(version: str) -> None:
    script = make(version, notices=20, power_on_reads=50, scrub_reads=30, dma_reads=3)
    try:
        script.boot()
        numbers = [message.function for message in script.events]
        assert numbers.count(LOCKDOWN[version]) == 40 and numbers.count(PRINT) == 20
        assert numbers[-2:] == [SEQUENCER, INIT_DONE] and script.card.violations == []
        assert {command[0] for command in script.commands} == {0, 1, 2, 3, 4}
    finally:
        script.close()
        script.card.close()


def test_a_reset_ends_all_and_the_card_boots_again(script: Script) -> None:
    script.boot()
    script.transport.reset(ResetKind.FUNCTION)
    assert (script.read(0x1FA828), script.read(0x111388) >> 7 & 1) == (0, 0)
    script.sent = script.pointer = script.sequence = 0
    script.events = []
    script.boot()
    assert script.card.violations == []


# Each spoils one thing of the boot; then the booter must refuse, and name it.


def other_family(script: Script) -> None:
    script.family = "ga10x"


def flipped_image(script: Script) -> None:
    script.image.view[0x800] ^= 1


SPOILT: dict[str, tuple[Callable[[Script], object], str]] = {
    "magic": (lambda s: s.meta.update(magic=1), "magic 0x1"),
    "revision": (lambda s: s.meta.update(revision=2), "revision 2"),
    "memory size": (lambda s: s.meta.update(memory=MEMORY * 2), "fbSize must be"),
    "frts": (lambda s: s.meta.update(frts=s.meta["frts"] - 0x20000), "FWSEC made"),
    "heap too small": (lambda s: s.meta.update(heap_size=80 << 20), "gspFwHeapSize must be at"),
    "heap alignment": (lambda s: s.meta.update(heap=s.meta["heap"] + PAGE), "gspFwHeapOffset"),
    "heap into image": (lambda s: s.meta.update(heap_size=s.meta["heap_size"] + (64 << 20)),
                        "runs into gspFwOffset"),
    "start above heap": (lambda s: s.meta.update(start=s.meta["heap"]),
                         "runs into gspFwHeapOffset"),
    "other heap": (lambda s: s.meta.update(other=s.meta["start"]), "runs into gspFwWprStart"),
    "reserved": (lambda s: s.meta.update(reserved=0), "gspFwRsvdStart must be"),
    "end": (lambda s: s.meta.update(end=s.meta["end"] + 0x1000), "gspFwWprEnd"),
    "boot alignment": (lambda s: s.meta.update(boot=s.meta["boot"] - 0x10), "bootBinOffset"),
    "vga": (lambda s: s.meta.update(vga_size=2 << 20), "VGA workspace"),
    "image address": (lambda s: s.meta.update(image=0xDEAD000), "cannot read"),
    "image size": (lambda s: s.meta.update(image_size=0x8000), "signature does not match"),
    "image huge": (lambda s: s.meta.update(image_size=1 << 40), "runs into bootBinOffset"),
    "loader address": (lambda s: s.meta.update(loader=0xDEAD000), "cannot read"),
    "loader size": (lambda s: s.meta.update(loader_size=0x8000), "boot loader"),
    "parts": (lambda s: s.meta.update(code=0), "its parts are at"),
    "signature address": (lambda s: s.meta.update(signature=0xDEAD000), "cannot read"),
    "signature size": (lambda s: s.meta.update(signature_size=0), "0 bytes at"),
    "image content": (flipped_image, "does not match the content"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_the_booter_refuses_what_does_not_fit(script: Script, what: str) -> None:
    spoil, words = SPOILT[what]
    script.power_on()
    script.layout()
    spoil(script)
    script.arguments()
    script.fwsec(FRTS)
    script.to_riscv()
    assert script.booter("booter_load", script.meta_at) != 0
    assert "booter: " in objections(script) and words in objections(script)
    assert not script.card.gsp.active and script.card.server is None


def test_the_booter_refuses_the_signature_of_another_chip(script: Script) -> None:
    script.family = "ga10x"
    script.power_on()
    script.layout()
    script.arguments()
    script.fwsec(FRTS)
    script.to_riscv()
    assert script.booter("booter_load", script.meta_at) != 0
    assert "the GSP's image: the signature does not match" in objections(script)


def test_the_boot_rom_refuses_the_signature_of_another_fuse_version(script: Script) -> None:
    script.power_on()
    script.layout()
    script.arguments()
    script.fwsec(FRTS)
    script.to_riscv()
    meta = script.meta_at
    assert script.booter("booter_load", meta, signature=1) == meta & 0xFFFF_FFFF  # untouched
    assert "signed for fuse version 0, the fuses say 1" in objections(script)


def test_older_fuses_take_the_other_signature() -> None:
    script = make(fuse=0)
    try:
        script.boot()
        assert script.card.violations == []
    finally:
        script.close()
        script.card.close()


FWSEC: dict[str, tuple[list[int], str]] = {
    "version": ([2, 20, 0, 0x100, 2], "frts: version 2"),
    "media": ([1, 20, 0x3FE00, 0x100, 1], "media 1"),
    "size": ([1, 20, 0x3FE00, 0x80, 2], "must have 0x100000 bytes"),
    "alignment": ([1, 20, 0x3FE01, 0x100, 2], "end at a multiple"),
    "past the end": ([1, 20, 0x40000, 0x100, 2], "past the end of memory"),
}


@pytest.mark.parametrize("what", FWSEC)
def test_fwsec_refuses_a_region(script: Script, what: str) -> None:
    script.power_on()
    script.layout()
    script.frts_words, words = FWSEC[what]
    script.fwsec(FRTS)
    assert script.read(0x1438) >> 16 and not script.card.wpr.up
    assert words in objections(script)


def test_fwsec_refuses_what_it_does_not_know_and_a_second_region(script: Script) -> None:
    script.power_on()
    script.layout()
    script.fwsec(0x20)
    assert "init_cmd 0x20" in objections(script)
    script.fwsec(FRTS)
    assert script.read(0x1438) == 0 and script.card.wpr.up
    script.fwsec(FRTS)
    assert "WPR2 is already set" in objections(script)


@pytest.mark.parametrize(
    ("words", "objection"),
    [
        ((0x400, 0x401, 9, 0), "engine mask must be 0x400"),
        ((0x400, 0x400, 3, 0), "signed for engine 0x400, program 0x9"),
        ((0x400, 0x400, 0, 0), "program number must be 1 to 16"),
        ((0x300, 0x400, 9, 0), "there is no signature in its place"),
        ((0xFFFF, 0x400, 9, 0), "past the memory"),
        ((0x400, 0x400, 9, 0x8000), "where no program is loaded"),
    ],
)
def test_the_boot_rom_names_what_is_wrong(
    script: Script, words: tuple[int, int, int, int], objection: str
) -> None:
    script.power_on()
    script.layout()
    script.fwsec(0x20)
    script.card.gpu.violations.clear()
    script.run_fwsec(words, 0x400, 0x800)
    assert objection in objections(script) and not script.card.wpr.up


def test_a_changed_program_does_not_start(script: Script) -> None:
    script.power_on()
    script.layout()
    script.fwsec(0x20)
    script.card.gpu.violations.clear()
    script.fwsec_image[0x180] ^= 1
    script.run_fwsec((0x400, 0x400, 9, 0), 0x400, 0x800)
    assert "does not match the content" in objections(script)


def steps(script: Script, *left_out: str) -> int:
    """Boot without some steps; return the booter's mailbox."""
    script.power_on()
    script.layout()
    script.arguments()
    if "fwsec" not in left_out:
        script.fwsec(FRTS)
    if "riscv" not in left_out:
        script.to_riscv()
    if "mailbox" in left_out:
        script.write(GSP + 0x40, 0)
        script.write(GSP + 0x44, 0)
    return script.booter("booter_load", script.meta_at)


@pytest.mark.parametrize(
    ("step", "objection"),
    [
        ("fwsec", "FWSEC has not made the FRTS region"),
        ("riscv", "not reset into its RISC-V core"),
        ("mailbox", "hold no libos arguments"),
    ],
)
def test_a_step_left_out_is_named(script: Script, step: str, objection: str) -> None:
    assert steps(script, step) != 0
    assert objection in objections(script)


def test_falcon_dma_needs_what_it_needs(script: Script) -> None:
    """Scrubbed memory, a physical context, whole blocks inside."""
    script.power_on()
    memory = script.host(bytes(PAGE))
    script.write(SEC2 + 0x110, memory.segments[0].address >> 8)
    script.write(SEC2 + 0x128, memory.segments[0].address >> 40)
    script.write(SEC2 + 0x118, 0x600)
    assert "scrubbed" in objections(script)
    script.reset(SEC2)
    script.write(SEC2 + 0x118, 0x600)
    assert "context is not physical" in objections(script)
    script.write(SEC2 + 0x600, 5)
    script.write(SEC2 + 0x118, 0x600)
    assert "FBIF_CTL bit 7" in objections(script)
    script.write(SEC2 + 0x624, 0x80)
    for offset, value, words in (
        (0x118, 0x100, "256 bytes"), (0x118, 0x620, "write to memory"),
        (0x114, 0x10000, "not a block"), (0x114, 0x80, "not a block"),
    ):  # fmt: skip
        script.write(SEC2 + offset, value)
        if offset != 0x118:
            script.write(SEC2 + 0x118, 0x600)
        assert words in script.card.violations[-1]


def test_a_write_during_reset_is_named(script: Script) -> None:
    script.write(SEC2 + 0x3C0, 1)
    script.write(SEC2 + 0x40, 5)
    assert "SEC2: write of 0x40 while it is in reset" in objections(script)


# What the GSP itself refuses: then it never reports INIT_DONE.


def begin(script: Script, spoil: Callable[[Script], object]) -> None:
    script.power_on()
    script.layout()
    script.arguments()
    spoil(script)
    script.fwsec(FRTS)
    script.to_riscv()
    assert script.booter("booter_load", script.meta_at) == 0


def poke(script: Script, offset: int, value: int) -> None:
    struct.pack_into("<I", script.shared.view, offset, value)


def rm(script: Script, offset: int, value: int) -> None:
    struct.pack_into("<I", script.rm_arguments.view, offset, value)


def rename(script: Script, index: int, name: str) -> None:
    script.regions[index] = (name, *script.regions[index][1:])


ARGUMENTS: dict[str, tuple[Callable[[Script], object], str]] = {
    "order": (lambda s: s.regions.reverse(), "libos arguments must be"),
    "a log is missing": (lambda s: s.regions.pop(1), "libos arguments must be"),
    "unknown name": (lambda s: rename(s, 1, "LOGXXX"), "libos arguments must be"),
    "small log": (lambda s: s.regions.__setitem__(0, (*s.regions[0][:2], 64)), "LOGINIT has 0x40"),
    "small arguments": (lambda s: s.regions.__setitem__(3, (*s.regions[3][:2], 0x40)),
                        "RMARGS must have 0x48"),
    "entries": (lambda s: rm(s, 8, 128), "pageTableEntryCount must be 129"),
    "offset": (lambda s: rm(s, 0x10, 2 * PAGE), "queues at 0x1000"),
    "resume": (lambda s: rm(s, 0x20, 3), "srInit must be (0, 0), is (3, 0)"),
    "page table": (lambda s: poke(s, 0, 0x123000), "own page"),
    "queue size": (lambda s: poke(s, PAGE + 4, 0x20000), "command queue's size"),
    "message size": (lambda s: poke(s, PAGE + 8, 0x2000), "command queue's msgSize"),
    "message count": (lambda s: poke(s, PAGE + 12, 64), "command queue's msgCount"),
    "flags": (lambda s: poke(s, PAGE + 20, 0), "command queue's flags"),
    "read pointer": (lambda s: poke(s, PAGE + 24, 0x40), "command queue's rxHdrOff"),
    "entries' offset": (lambda s: poke(s, PAGE + 28, 0x80), "command queue's entryOff"),
    "write pointer": (lambda s: poke(s, PAGE + 16, 70), "pointers must be below 63"),
}  # fmt: skip


@pytest.mark.parametrize("what", ARGUMENTS)
def test_the_gsp_refuses_its_arguments(script: Script, what: str) -> None:
    spoil, words = ARGUMENTS[what]
    begin(script, spoil)
    server = script.card.server
    assert server is not None and f"GSP: {server.dead}" in objections(script)
    assert words in objections(script)


RECORDS: dict[str, tuple[dict[str, int], str]] = {
    "checksum": ({"checksum": 1}, "checksum of function 72"),
    "number": ({"number": 5}, "seqNum must be 0, is 5"),
    "header version": ({"version": 1}, "RPC header version 0x1"),
    "signature": ({"signature": 1}, "signature 0x1"),
    "length": ({"length": 0x10}, "elemCount 1 does not fit"),
    "elements": ({"count": 2}, "elemCount 2"),
    "result": ({"result": 0}, "rpc_result must be"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_the_gsp_refuses_a_record(script: Script, what: str) -> None:
    changes, words = RECORDS[what]
    begin(script, lambda s: None)
    script.send(72, bytes(SYSTEM_INFO["570.144"]), **changes)
    assert words in objections(script)


@pytest.mark.parametrize("version", FIRMWARES)
def test_sizes_are_those_of_the_version(version: str) -> None:
    script = make(version)
    try:
        begin(script, lambda s: None)
        other = next(known for known in FIRMWARES if known != version)
        script.send(72, bytes(SYSTEM_INFO[other]))
        assert f"GspSystemInfo must have {SYSTEM_INFO[version]:#x} bytes" in objections(script)
    finally:
        script.close()
        script.card.close()


def test_without_the_sequencer_there_is_no_init_done(script: Script) -> None:
    begin(script, lambda s: None)
    script.send(72, bytes(SYSTEM_INFO["570.144"]))
    script.send(73, script.registry())
    numbers = []
    while (message := script.receive()) is not None:
        numbers.append(message.function)
    assert SEQUENCER in numbers and INIT_DONE not in numbers
    assert script.card.server is not None and not script.card.server.done


def test_a_wrong_sequencer_is_named(script: Script) -> None:
    begin(script, lambda s: None)
    script.send(72, bytes(SYSTEM_INFO["570.144"]))
    script.send(73, script.registry())
    script.write(0x1468, 0x600D)
    assert "REG_MODIFY must leave" in objections(script)


def test_the_messages_may_come_after_the_start(script: Script) -> None:
    """nova-core sends SET_SYSTEM_INFO once the GSP runs, nouveau before."""
    begin(script, lambda s: None)
    script.send(72, bytes(SYSTEM_INFO["570.144"]))
    script.send(73, script.registry())
    script.until(INIT_DONE)
    assert script.card.violations == []
    assert script.card.server is not None
    assert script.card.server.registry == {"RMSecBusResetEnable": 1}


def test_the_logs_have_records(script: Script) -> None:
    """The put index, then arguments, metadata and time; decoded backwards."""
    script.boot()
    for index, arguments in ((0, 2), (2, 1)):
        address = script.regions[index][1]
        raw = script.card.bus_read(address, 8 * 5)
        assert raw is not None
        put, *words = struct.unpack("<5Q", raw)
        assert put == arguments + 2
        time, metadata = words[put - 1], words[put - 2]
        assert metadata >> 32 == 5 and time <= script.card.gpu.time_ns()
    assert script.card.bus_read(script.regions[1][1], 8) == bytes(8)


# The end


def test_the_unload_has_an_order(script: Script) -> None:
    script.boot()
    assert script.booter("booter_unload", 0xFF_0000_00FF) != 0
    assert "booter unload: the GSP runs" in objections(script)
    script.call(47, bytes(8))
    script.reset(GSP)
    assert script.booter("booter_unload", 0xFF_0000_00FF) != 0
    assert "FWSEC has not executed SB" in objections(script)
    script.fwsec(SB)
    assert script.booter("booter_unload", 0) != 0
    assert "mailboxes must be 0xff" in objections(script)
    assert script.booter("booter_unload", 0xFF_0000_00FF) == 0 and not script.card.wpr.up


def test_a_reset_of_a_running_gsp_is_named(script: Script) -> None:
    script.boot()
    script.reset(GSP)
    assert "reset while its firmware ran" in objections(script)


def test_a_program_too_early_is_named() -> None:
    script = make(power_on_reads=1000)
    try:
        script.layout()
        script.fwsec(FRTS)
        assert "before power-on had finished" in objections(script)
    finally:
        script.close()
        script.card.close()
