"""What virtual GFX 12 cards do otherwise than GFX 11, and refuse: each rule by hand, no driver."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.amd.am_navi31 import opened
from ugpu.am.chips import facts_of
from ugpu.am.regs import load
from ugpu.virtual.amd.chip import FRAME_BUFFER_BASE, Chip
from ugpu.virtual.amd.engines.cp.dispatch import BadDispatch, Launcher, ShRegisters
from ugpu.virtual.amd.engines.sdma.packets import BadSdmaPacket, SdmaExecutor
from ugpu.virtual.amd.firmware.discovery import build_discovery
from ugpu.virtual.amd.firmware.images import sign
from ugpu.virtual.amd.generations.gfx12.blocks import Sdma7, Waves12
from ugpu.virtual.amd.generations.gfx12.copies import PACKETS
from ugpu.virtual.amd.generations.record import generation_of
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.shader import Ending, Outcome

NAVI48 = facts_of("navi48")
VRAM = 256 << 20
TMR = VRAM - NAVI48.generation.reserved_vram
ROOT, PDB1, PDB0, PTB, PAGE = 0x60_0000, 0x60_1000, 0x60_2000, 0x60_3000, 0x70_0000
V, X, R, W, P = 1, 0x10, 0x20, 0x40, 1 << 63
UC, RESERVED_TYPE, GFX11_PDE_AS_PTE = 3 << 54, 1 << 54, 1 << 54
VA, VMID, CLIENT = 0x1234_5000_0000, 3, 8


def built(**options: Any) -> Chip:
    chip = build_chip(
        NAVI48, ChipOptions(**({"vram": VRAM, "noise": 0, "manual_time": True} | options))
    )
    chip.scheduler.advance(1.0)
    return chip


@pytest.fixture
def chip() -> Iterator[Chip]:
    chip = built()
    yield chip
    chip.close()


def write(chip: Chip, block: str, name: str, value: int) -> None:
    with chip.lock:
        chip.space.write(chip.space.index(block, name), value)


def read(chip: Chip, block: str, name: str) -> int:
    with chip.lock:
        return chip.space.read(chip.space.index(block, name))


# ---- page tables ------------------------------------------------------------------------------


def paged(chip: Chip, control: int = 0xFF_FC00 | 3 << 1 | 1) -> None:
    """Set a context of MMHUB to tables that map VA, by four levels."""
    write(chip, "mmhub", "MMMC_VM_MX_L1_TLB_CNTL", 0x1859)
    for name, value in (
        (f"MMVM_CONTEXT{VMID}_PAGE_TABLE_BASE_ADDR_LO32", ROOT | V),
        (f"MMVM_CONTEXT{VMID}_PAGE_TABLE_END_ADDR_LO32", 0xFFFF_FFFF),
        (f"MMVM_CONTEXT{VMID}_PAGE_TABLE_END_ADDR_HI32", 0xF),
        (f"MMVM_CONTEXT{VMID}_CNTL", control),
    ):
        write(chip, "mmhub", name, value)
    for table, slot, value in (
        (ROOT, VA >> 39, PDB1 | V),
        (PDB1, VA >> 30, PDB0 | V),
        (PDB0, VA >> 21, PTB | V),
        (PTB, VA >> 12, PAGE | V | R | W | P),
    ):
        entry(chip, table, slot, value)
    chip.vram.write(PAGE, b"page of gfx12...")


def entry(chip: Chip, table: int, slot: int, value: int) -> None:
    chip.vram.write(table + 8 * (slot & 511), struct.pack("<Q", value))


def fetch(chip: Chip) -> bytes | None:
    data, fault = chip.mm.read(VMID, VA, 16, CLIENT)
    return None if fault else data


@pytest.mark.parametrize("extra", [0, UC, 3 << 52, 1 << 57, 1 << 58])
def test_a_leaf_says_that_it_is_one(chip: Chip, extra: int) -> None:
    paged(chip)
    entry(chip, PTB, VA >> 12, PAGE | V | R | P | extra)
    assert fetch(chip) == b"page of gfx12..."


@pytest.mark.parametrize(
    "value",
    [
        PAGE | V | R,  # as GFX 11 has it: no P
        PAGE | V | R | P | RESERVED_TYPE,
        PAGE | V | R | P | 3 << 48,  # GFX 11's MTYPE UC, bits of the address here
        PAGE | R | P,
    ],
)
def test_a_leaf_in_another_format_is_refused(chip: Chip, value: int) -> None:
    paged(chip)
    entry(chip, PTB, VA >> 12, value)
    assert fetch(chip) is None


@pytest.mark.parametrize(("mark", "works"), [(P, True), (GFX11_PDE_AS_PTE, False)])
def test_two_megabytes_are_mapped_by_a_directory(chip: Chip, mark: int, works: bool) -> None:
    paged(chip)
    entry(chip, PDB0, VA >> 21, PAGE & -(2 << 20) | V | R | mark)
    chip.vram.write(PAGE & -(2 << 20), b"large page......")
    assert fetch(chip) == (b"large page......" if works else None)


def test_the_control_of_gfx11_gives_other_tables(chip: Chip) -> None:
    """Its PAGE_TABLE_BLOCK_SIZE is a bit lower: a driver with the old places is found out."""
    paged(chip, control=3 << 1 | 1 | 9 << 3)  # block size 9 in bits 6:3
    assert fetch(chip) is None


def test_a_fault_has_two_words(chip: Chip) -> None:
    paged(chip)
    entry(chip, PTB, VA >> 12, 0)
    assert fetch(chip) is None
    status = chip.mm.fields("MMVM_L2_PROTECTION_FAULT_STATUS_LO32")
    assert (status.VMID, status.CID) == (VMID, CLIENT)
    assert read(chip, "mmhub", "MMVM_L2_PROTECTION_FAULT_ADDR_LO32") == VA >> 12 & 0xFFFF_FFFF
    write(chip, "mmhub", "MMVM_L2_PROTECTION_FAULT_CNTL", 1)
    assert read(chip, "mmhub", "MMVM_L2_PROTECTION_FAULT_STATUS_LO32") == 0


# ---- the trusted memory region, firmware ------------------------------------------------------


def test_ifwi_has_made_the_region(chip: Chip) -> None:
    assert chip.tmr == (TMR, TMR + chip.options.tmr_size)
    chip.hdp.write(TMR + 4096, b"overwritten.....")
    assert "CPU write to" in chip.violations[0]
    end = VRAM - NAVI48.generation.discovery_offset  # stays readable
    assert chip.hdp.read(end, 4) == struct.pack("<I", 0x28211407)


def command(chip: Chip, number: int, *words: int) -> int:
    content = struct.pack("<7I", 1024, 1, number, 0, 0, 0, 0) + struct.pack(
        f"<{len(words)}I", *words
    )
    response = chip.psp.commands.execute(content.ljust(1024, b"\0"))
    return int.from_bytes(response[:4], "little")


def given(chip: Chip, number: int, kind: str) -> int:
    """Let the secure OS load an image: number 0x20 is the TOC, others are types of firmware."""
    write(chip, "mmhub", "MMMC_VM_MX_L1_TLB_CNTL", 0x1859)
    write(chip, "mmhub", "MMMC_VM_SYSTEM_APERTURE_LOW_ADDR", FRAME_BUFFER_BASE >> 18)
    write(chip, "mmhub", "MMMC_VM_SYSTEM_APERTURE_HIGH_ADDR", FRAME_BUFFER_BASE + VRAM - 1 >> 18)
    image = sign(kind, b"body of " + kind.encode(), 1)
    chip.vram.write(PAGE, image)
    address = FRAME_BUFFER_BASE + PAGE
    words = address & 0xFFFF_FFFF, address >> 32, len(image)
    return command(chip, number, *words) if number == 0x20 else command(chip, 6, *words, number)


def test_setup_tmr_is_not_needed_and_changes_nothing(chip: Chip) -> None:
    assert given(chip, 0x20, "TOC") == 0
    before = chip.tmr
    low, high = FRAME_BUFFER_BASE & 0xFFFF_FFFF, FRAME_BUFFER_BASE >> 32
    assert command(chip, 5, low, high, chip.options.tmr_size, 0, 0, 0) == 0
    assert chip.tmr == before and "SETUP_TMR" in chip.notes[-1]
    assert command(chip, 7) == 0 and chip.tmr == before  # DESTROY_TMR


@pytest.mark.parametrize("without", ["", "RS64_PFP", "RS64_ME_STACK", "SDMA_TH0", "RLC_DRAM"])
def test_rlc_waits_for_each_image(chip: Chip, without: str) -> None:
    interface = chip.generation.firmware
    assert command(chip, 0x21) != 0  # no TOC yet
    assert given(chip, 0x20, "TOC") == 0
    for number, kind in sorted(interface.types.items(), key=lambda pair: pair[1] == "RLC_G"):
        if kind in interface.needed and kind != without:
            assert given(chip, number, kind) == 0, kind
    assert command(chip, 0x21) == 0
    chip.scheduler.advance(1.0)
    status = read(chip, "gc", "RLC_RLCS_BOOTLOAD_STATUS")
    assert status >> 31 == (not without)
    assert status == (0x8000_0032 if not without else 0)  # INIT_DONE 1, IRAM 4 and 5


def test_the_loader_has_steps_of_its_own(chip: Chip) -> None:
    steps = {step.command: step for step in chip.generation.firmware.loader}
    assert steps[0x1000_0000].kinds == ("SPL",) and steps[0xF0000].optional
    write(chip, "mp", "MPASP_SMN_C2PMSG_36", (FRAME_BUFFER_BASE + 0x10_0000) >> 20)
    write(chip, "mp", "MPASP_SMN_C2PMSG_35", 0x20000)  # the secure OS first: out of order
    chip.scheduler.advance(1.0)
    assert read(chip, "mp", "MPASP_SMN_C2PMSG_35") & 0xFF


# ---- registers, discovery ---------------------------------------------------------------------


def test_the_mailboxes_of_mp1_have_one_place_by_both_headers(chip: Chip) -> None:
    """Linux: segment 1 + 0x82; tinygrad, with the header of MP 11: segment 0 + 0x282."""
    bases = NAVI48.generation.typical_bases["MP1"]
    assert chip.space.index("mp1", "MP1_SMN_C2PMSG_66") == bases[1] + 0x82 == bases[0] + 0x282


@pytest.mark.parametrize("header", [1, 2])
def test_discovery_has_either_header(header: int) -> None:
    options = ChipOptions(vram=VRAM, discovery_header=header).on(NAVI48)
    image = build_discovery(NAVI48, options, generation_of(NAVI48.generation).neighbours)
    signature, major, _, checksum, size = struct.unpack_from("<IHHHH", image)
    assert (signature, major, size) == (0x28211407, header, len(image))
    assert checksum == sum(image[0x0A:]) & 0xFFFF
    first = 0x0C if header == 1 else 0x10
    if header == 2:
        assert struct.unpack_from("<H", image, 0x0C) == (6,)
    start, table_sum, length = struct.unpack_from("<HHH", image, first)
    assert image[start : start + 4] == b"IPDS"
    assert table_sum == sum(image[start : start + length]) & 0xFFFF


def test_registers_beyond_the_bar_are_reached_by_the_window(chip: Chip) -> None:
    assert chip.config.bar_size(5) == 512 << 10
    flags = 0x03B0_0000 | 0x0301_0024  # MP1_FIRMWARE_FLAGS
    assert flags > 512 << 10
    write(chip, "nbio", "BIF_BX_PF0_RSMU_INDEX", flags)
    assert read(chip, "nbio", "BIF_BX_PF0_RSMU_DATA") == 0
    chip.smu.start()
    assert read(chip, "nbio", "BIF_BX_PF0_RSMU_DATA") == 1


def test_the_ring_of_interrupts_has_pointers_where_gfx11_has_bases(chip: Chip) -> None:
    """A driver with GFX 11's numbers writes the ring's base into the read pointer."""
    base = NAVI48.generation.typical_bases["OSSSYS"][0]
    assert chip.space.index("osssys", "IH_RB_RPTR") == base + 0x81
    with chip.lock:
        chip.space.write(base + 0x81, (FRAME_BUFFER_BASE + 0x10_0000) >> 8)
    assert "IH_RB_RPTR" in chip.violations[0]


def test_a_card_behind_usb_has_small_bars() -> None:
    chip = built(platform=False, vram=1 << 30)
    assert (chip.config.bar_size(0), chip.config.bar_size(5)) == (256 << 20, 512 << 10)
    chip.close()


# ---- copy engines -----------------------------------------------------------------------------


class Memory:
    """What the packets act on."""

    vmid, privileged, indirect_enabled = 0, True, True

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        self.done.append(("copy", source, destination, size))

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        self.done.append(("fill", destination, pattern, size))

    def write_register(self, index: int, value: int) -> None:
        self.done.append(("register", index, value))


def executed(*words: int) -> list[tuple[Any, ...]]:
    memory: Any = Memory()
    executor = SdmaExecutor(memory, PACKETS)
    assert executor.run(words) == len(words)
    return list(memory.done)


def test_a_copy_may_have_a_word_for_compression() -> None:
    copy = (0xFFF, 0, 0x1000, 1, 0x2000, 2)
    done = [("copy", 0x1_0000_1000, 0x2_0000_2000, 0x1000)]
    assert executed(1, *copy) == done
    assert executed(1 | 1 << 19, *copy, 0) == done
    with pytest.raises(BadSdmaPacket, match="compression"):
        executed(1 | 1 << 19, *copy, 7)


def test_registers_are_written_by_byte_address() -> None:
    assert executed(14, 4 * 0x1234, 5) == [("register", 0x1234, 5)]
    with pytest.raises(BadSdmaPacket, match="reserved"):
        executed(14 | 0xF << 28, 4 * 0x1234, 5)  # GFX 11's mask of bytes
    with pytest.raises(BadSdmaPacket, match="reserved"):
        executed(14, 0x1235, 5)


def test_a_fill_may_compress() -> None:
    assert executed(11 | 1 << 16 | 2 << 30, 0x1000, 0, 7, 0xFFF) == [
        ("fill", 0x1000, struct.pack("<I", 7), 0x1000)
    ]


def test_an_engine_runs_out_of_halt_and_reset(chip: Chip) -> None:
    with chip.lock:
        chip.autoload()
    chip.scheduler.advance(1.0)
    engine = chip.sdma[0]
    assert isinstance(engine, Sdma7)
    for value, runs in ((1, False), (2, False), (0, True)):
        write(chip, "gc", "SDMA0_MCU_CNTL", value)
        assert engine.running() is runs


# ---- waves ------------------------------------------------------------------------------------


def test_a_halted_wave_stands_in_state_priv() -> None:
    values = Waves12().standing(Outcome(Ending.ILLEGAL_INSTRUCTION, pc=0x1_2345_6780))
    assert values == {0x102: 1 << 16 | 1 << 23, 0x104: 1 << 14, 0x111: 1 << 6,
                      0x140: 0x2345_6780, 0x141: 1}  # fmt: skip


def test_the_mec_has_two_pipes(chip: Chip) -> None:
    with chip.lock:
        chip.autoload()
    chip.scheduler.advance(1.0)
    write(chip, "gc", "GRBM_GFX_CNTL", 2 | 1 << 2)  # pipe 2 of ME 1
    write(chip, "gc", "CP_HQD_ACTIVE", 1)
    assert "where no compute queue is" in chip.violations[-1]


def test_dynamic_vector_registers_are_refused_by_name() -> None:
    """The bit is GFX 11's for the trap handler: a descriptor made for it never starts here."""
    for table, refused in (("gc_12_0_0", True), ("gc_11_0_0", False)):
        registers = ShRegisters.of(load(table))
        sh = registers.power_on()
        for name, value in (("X", 32), ("Y", 1), ("Z", 1)):
            sh[registers.at(f"COMPUTE_NUM_THREAD_{name}")] = value
        sh[registers.at("COMPUTE_PGM_RSRC2")] = 1 << 6
        launcher = Launcher(registers, 1536)
        start = partial(launcher.build, sh, (1, 1, 1), 1 | 1 << 2 | 1 << 15, 0, 0)
        if refused:
            with pytest.raises(BadDispatch, match="DYNAMIC_VGPR"):
                start()
        else:
            assert start() is not None


def test_other_eight_bit_floats_are_refused(chip: Chip) -> None:
    with chip.lock:
        chip.autoload()
    write(chip, "gc", "SH_MEM_CONFIG", 0xC00C)
    assert chip.violations == []
    write(chip, "gc", "SH_MEM_CONFIG", 0xC00C | 1 << 8)
    assert "F8_MODE" in chip.violations[0]


def test_the_board_states_where_its_discovery_table_is() -> None:
    chip = built(discovery_place=1 << 20)
    low, high, size = (read(chip, "nbio", f"BIF_BX0_DRIVER_SCRATCH_{n}") for n in range(3))
    assert low | high << 32 == VRAM - (1 << 20)
    assert chip.hdp.read(low, 4) == struct.pack("<I", 0x28211407) and 512 < size < 0x2800
    usual = VRAM - NAVI48.generation.discovery_offset
    assert chip.hdp.read(usual, 4) != struct.pack("<I", 0x28211407)
    chip.close()


def test_a_driver_finds_a_table_elsewhere() -> None:
    chip = build_chip(NAVI48, ChipOptions(vram=1 << 30, discovery_place=1 << 20))
    with opened(chip) as device:
        assert "gfx1201" in str(device.target)
    assert chip.violations == []
    chip.close()
