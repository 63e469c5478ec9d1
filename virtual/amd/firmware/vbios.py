"""The board's ROM: a video BIOS in ATOM format, data tables only, read through ROM_INDEX/ROM_DATA.

This module generates the image. It contains no code, because the board is already posted when a
driver attaches. Facts: Linux 6.12 atomfirmware.h (layout of the tables), atom.h (fixed offsets in
the image), amdgpu_bios.c (reading it through SMUIO), amdgpu_atombios.c (the scratch register that
shows that the board was posted); PCI Firmware Specification (signature, size, checksum, PCIR
structure). UNSURE: which revisions of gfx_info and vram_info boards of this chip have; a dump of
one would settle it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import structs
from ugpu.virtual.amd.block import Block, Reset

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

SIZE = 8192
_STRINGS, _HEADER, _TABLES = 0x100, 0x200, 0x280
_PCI_DATA = 0x1E0
_TEXT = "113-VIRTUAL-{0}\0{0}\0PCI_EXPRESS\0GDDR6\0\r\nVirtual {1}\0"
_VERSION = b"ATOMBIOSBK-AMD VER022.001.002.000.000001\0"
_TEN_KILOHERTZ = 10_000
_GDDR6 = 0x70
POSTED = 0x200  # ATOM_S7_ASIC_INIT_COMPLETE_MASK, in BIOS_SCRATCH_7
_STEP = "ROM_INDEX_ADDRESS_AUTO_INCREASE"
# Entry indices in atom_master_list_of_data_tables_v2_1.
_DATA_TABLES = 35
_BOARD_INFO, _FIRMWARE_INFO, _SMU_INFO, _GFX_INFO, _INDIRECT_IO = 2, 4, 8, 14, 23
_UMC_INFO, _VRAM_INFO = 24, 28


def _table(major: int, minor: int, layout: str, *values: int) -> bytes:
    content = struct.pack(layout, *values)
    return struct.pack("<HBB", 4 + len(content), major, minor) + content


def _firmware_info(facts: ChipFacts, scratch: int) -> bytes:
    """Build atom_firmware_info_v3_4."""
    return _table(
        3, 4, "<6I4H2B2x2I4B2H3I4H8I",
        0x0016_0001, 50_000, 125_000, 0, 0, scratch,  # clocks at power-on in 10 kHz
        800, 800, 1350, 800, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0,
        0, 0, 1000, 800, 800, 1350, 800,
        0, 0, facts.generation.reserved_vram >> 10, 0, 0, 0, 0, 0,
    )  # fmt: skip


def _gfx_info(chip: Board) -> bytes:
    """Build atom_gfx_info_v3_0, up to the clock; the rest of its 136 bytes is zero."""
    options, channels = chip.options, chip.facts.board.channels
    return _table(
        3, 0, "<8B8I92x",
        11, 11, options.shader_engines, 0, 2 * options.wgps_per_array,
        options.arrays_per_engine, 4, channels,
        0, 0, 0, 0, 0, 0, 0, int(chip.facts.generation.clock_hertz) // _TEN_KILOHERTZ,
    )  # fmt: skip


def _smu_info() -> bytes:
    """Build atom_smu_info_v3_6: the reference clock; the other fields are zero."""
    return _table(3, 6, "<4B4HI220x", 13, 13, 0, 0, 0, 0, 0, 0, 10_000)


def _board_info(facts: ChipFacts) -> bytes:
    """Build atom_smc_dpm_info_table_13_0_0: a BoardTable_t, which this SMU does not read."""
    return _table(5, 0, f"{structs(facts.smu.tables).BoardTable_t.size}x")


def _vram_info(channels: int) -> bytes:
    """Build atom_vram_info_header_v3_0 with one module."""
    head = _table(
        3, 0, "<8H8B9I",
        0, 0, 0, 0, 0, 0, 0, 0, 1, 8, 8, 0, _GDDR6, channels, 4, 0,
        (1 << channels) - 1, 0, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    module = bytes([0, 0, 0, 1]).ljust(68, b"\0")  # vendor 1: Samsung
    whole = head + module + bytes(7 * 68)
    return struct.pack("<H", len(whole)) + whole[2:]


def _umc_info(channels: int) -> bytes:
    """Build atom_umc_info_v4_0, in which drivers find the memory of GFX 12."""
    return _table(
        4, 0, "<20x4BI24x8x4B16x",
        0, 0, _GDDR6, 0, 10_000, channels, 4, 0, 0,
    )  # fmt: skip


def build_vbios(chip: Board) -> bytes:
    """Build the image; its bytes sum to zero."""
    facts = chip.facts
    text = _TEXT.format(facts.title.upper(), facts.title).encode("ascii")
    scratch = chip.space.index("nbio", "BIF_BX0_BIOS_SCRATCH_0")
    image = bytearray(SIZE)
    image[0:3] = bytes([0x55, 0xAA, SIZE // 512])
    struct.pack_into("<H", image, 0x18, _PCI_DATA)
    image[0x2F] = 4  # number of strings before the name
    image[0x30:0x3A] = b" 761295520"
    struct.pack_into("<H", image, 0x48, _HEADER)
    image[0x50:0x5E] = b"01/02/23 03:04"
    struct.pack_into("<H", image, 0x6E, _STRINGS)
    image[_STRINGS : _STRINGS + len(text)] = text
    image[_STRINGS + 0x60 : _STRINGS + 0x60 + len(_VERSION)] = _VERSION
    struct.pack_into(
        "<4s4HB3BHHBBH", image, _PCI_DATA,
        b"PCIR", facts.generation.vendor, facts.pci_ids[0], 0, 24, 0, 0, 0, 3,
        SIZE // 512, 0, 0, 0x80, 0,
    )  # fmt: skip
    commands, data = _HEADER + 0x28, _TABLES
    header = struct.pack("<HBB4s14HI", 40, 2, 2, b"ATOM", *[0] * 11, commands, data, 0, 0)
    image[_HEADER : _HEADER + len(header)] = header
    struct.pack_into("<HBB", image, commands, 4, 2, 1)  # an empty command list
    place = data + 4 + 2 * _DATA_TABLES
    offsets = [0] * _DATA_TABLES
    for number, table in (
        (_FIRMWARE_INFO, _firmware_info(facts, scratch)),
        (_BOARD_INFO, _board_info(facts)),
        (_SMU_INFO, _smu_info()),
        (_GFX_INFO, _gfx_info(chip)),
        (_INDIRECT_IO, _table(1, 1, "<I", 0)),
        (_UMC_INFO, _umc_info(facts.board.channels))
        if facts.versions["GC"] >= (12, 0, 0)
        else (_VRAM_INFO, _vram_info(facts.board.channels)),
    ):
        place += place & 1
        offsets[number] = place
        image[place : place + len(table)] = table
        place += len(table)
    struct.pack_into(f"<HBB{_DATA_TABLES}H", image, data, 4 + 2 * _DATA_TABLES, 2, 1, *offsets)
    image[-1] = -sum(image) & 0xFF
    return bytes(image)


class Rom(Block):
    """SMUIO's window on the ROM. IFWI leaves auto-increment of the index enabled.

    SMUIO 14 has no bit for it, and the kernel reads the ROM as if it were enabled.
    """

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "smuio")
        self.image = build_vbios(chip)
        self._choice = _STEP in chip.space.register("smuio", "ROM_CNTL").fields
        self.on_read("ROM_DATA", self._read)

    def reset(self, scope: Reset) -> None:
        """Enter the state that IFWI leaves."""
        if self._choice:
            self.set("ROM_CNTL", **{_STEP: 1})

    def _read(self) -> int:
        place = self.get("ROM_INDEX") & ~3
        if not self._choice or self.fields("ROM_CNTL")[_STEP]:
            self.set("ROM_INDEX", place + 4 & 0x1FF_FFFF)
        if place >= len(self.image):
            return 0xFFFF_FFFF  # erased flash
        return int.from_bytes(self.image[place : place + 4], "little")
