"""The committed AMD tables against facts written down by hand, so that a wrong table is caught.

Each expectation was read off the named header of Linux 6.12, drivers/gpu/drm/amd/include/asic_reg.
"""

from __future__ import annotations

import pytest

from ugpu.am.regs import load
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.fields import Register, RegisterBlock

BLOCKS = {
    "athub_3_0_0": (112, 551),
    "athub_4_1_0": (126, 595),
    "gc_11_0_0": (5494, 16971),
    "gc_11_0_0_indirect": (350, 795),
    "gc_11_0_3": (5669, 18379),
    "gc_12_0_0": (5160, 16543),
    "gc_12_0_0_indirect": (330, 829),
    "hdp_6_0_0": (89, 264),
    "hdp_7_0_0": (94, 306),
    "mmhub_3_0_0": (709, 3340),
    "mmhub_3_0_2": (673, 3245),
    "mmhub_4_1_0": (639, 3103),
    "mp_13_0_0": (209, 217),
    "mp_14_0_2": (214, 221),
    "nbif_6_3_1": (4772, 13811),
    "nbio_4_3_0": (5293, 16135),
    "osssys_6_0_0": (118, 416),
    "osssys_7_0_0": (124, 438),
    "smuio_13_0_6": (231, 450),
    "smuio_14_0_2": (230, 382),
    "thm_13_0_2": (157, 555),
    "thm_14_0_2": (98, 405),
}

# (table, register, offset, segment, some fields as (name, lsb, width))
KNOWN = [
    (
        "gc_11_0_0",
        "CP_HQD_PQ_CONTROL",
        0x1FBA,
        0,
        [("QUEUE_SIZE", 0, 6), ("RPTR_BLOCK_SIZE", 8, 6), ("UNORD_DISPATCH", 28, 1)],
    ),
    (
        "gc_11_0_0",
        "GCVM_INVALIDATE_ENG17_REQ",
        0x16BC,
        0,
        [("PER_VMID_INVALIDATE_REQ", 0, 16), ("FLUSH_TYPE", 16, 3), ("INVALIDATE_L2_PTES", 19, 1)],
    ),
    ("gc_11_0_0", "SDMA0_QUEUE0_RB_CNTL", 0x80, 0, [("RB_ENABLE", 0, 1), ("RB_SIZE", 1, 5)]),
    ("gc_11_0_0", "SDMA1_QUEUE0_RB_CNTL", 0x680, 0, [("RB_ENABLE", 0, 1)]),
    ("gc_11_0_0", "GRBM_GFX_CNTL", 0x0900, 1, [("PIPEID", 0, 2), ("MEID", 2, 2), ("VMID", 4, 4)]),
    ("gc_11_0_0", "CP_STAT", 0xF40, 0, [("CP_BUSY", 31, 1)]),
    ("gc_11_0_0", "RLC_RLCS_BOOTLOAD_STATUS", 0x4E82, 1, [("BOOTLOAD_COMPLETE", 31, 1)]),
    ("mmhub_3_0_0", "MMVM_INVALIDATE_ENG17_REQ", 0x774, 0, [("FLUSH_TYPE", 16, 3)]),
    # Two blocks whose other versions have their registers elsewhere.
    ("gc_11_0_3", "GCVM_CONTEXT0_CNTL", 0x1698, 0, [("ENABLE_CONTEXT", 0, 1)]),
    ("gc_11_0_0", "GCVM_CONTEXT0_CNTL", 0x1688, 0, [("ENABLE_CONTEXT", 0, 1)]),
    ("mmhub_3_0_2", "MMMC_VM_FB_LOCATION_BASE", 0x86C, 0, [("FB_BASE", 0, 24)]),
    ("mmhub_3_0_0", "MMMC_VM_FB_LOCATION_BASE", 0x8EC, 0, [("FB_BASE", 0, 24)]),
    ("mp_13_0_0", "MP0_SMN_C2PMSG_81", 0x91, 0, [("CONTENT", 0, 32)]),
    ("mp_13_0_0", "MP1_SMN_C2PMSG_90", 0x29A, 0, [("CONTENT", 0, 32)]),
    ("athub_3_0_0", "ATHUB_MISC_CNTL", 0x75, 0, [("CG_ENABLE", 6, 1), ("CG_MEM_LS_ENABLE", 7, 1)]),
    ("osssys_6_0_0", "IH_RB_CNTL", 0x80, 0, [("RB_ENABLE", 0, 1), ("RB_SIZE", 1, 5)]),
    # What moved in GFX 12: fields of a context, the pointers of the interrupt ring, the SMU's
    # mailboxes into another segment, and the ones of the PSP into another name.
    (
        "gc_12_0_0",
        "GCVM_CONTEXT0_CNTL",
        0x1624,
        0,
        [("PAGE_TABLE_DEPTH", 1, 2), ("PAGE_TABLE_BLOCK_SIZE", 4, 4)],
    ),
    ("gc_12_0_0", "GCMC_VM_MX_L1_TLB_CNTL", 0x161B, 0, [("MTYPE", 11, 2)]),
    ("gc_12_0_0", "COMPUTE_TMPRING_SIZE", 0x1BB8, 0, [("WAVESIZE", 12, 18)]),
    ("gc_12_0_0", "RLC_RLCS_BOOTLOAD_STATUS", 0x4E7C, 1, [("BOOTLOAD_COMPLETE", 31, 1)]),
    ("gc_12_0_0", "SDMA0_MCU_CNTL", 0x588E, 1, [("HALT", 0, 1), ("RESET", 1, 1)]),
    ("mmhub_4_1_0", "MMVM_INVALIDATE_ENG17_REQ", 0x598, 0, [("FLUSH_TYPE", 16, 3)]),
    ("mp_14_0_2", "MPASP_SMN_C2PMSG_81", 0x91, 0, [("CONTENT", 0, 32)]),
    ("mp_14_0_2", "MP1_SMN_C2PMSG_90", 0x9A, 1, [("CONTENT", 0, 32)]),
    ("nbif_6_3_1", "GDC_S2A0_S2A_DOORBELL_ENTRY_2_CTRL", 0x1CD, 2, []),
    ("osssys_7_0_0", "IH_RB_RPTR", 0x81, 0, [("OFFSET", 2, 16)]),
    ("osssys_7_0_0", "IH_RB_BASE", 0x83, 0, []),
]


@pytest.mark.parametrize(("table", "name", "offset", "segment", "fields"), KNOWN)
def test_hand_written_facts(
    table: str, name: str, offset: int, segment: int, fields: list[tuple[str, int, int]]
) -> None:
    register = load(table)[name]
    assert (register.offset, register.segment) == (offset, segment)
    for field, lsb, width in fields:
        assert (register.fields[field].lsb, register.fields[field].width) == (lsb, width)


@pytest.mark.parametrize(("table", "counts"), BLOCKS.items())
def test_nothing_is_lost(table: str, counts: tuple[int, int]) -> None:
    registers = [load(table)[name] for name in load(table)]
    assert (len(registers), sum(len(register.fields) for register in registers)) == counts
    assert [register.name for register in registers] == list(load(table))


@pytest.mark.parametrize("table", BLOCKS)
def test_every_field_lies_in_its_register(table: str) -> None:
    def bad(register: Register) -> bool:
        return any(f.width < 1 or f.lsb + f.width > 32 for f in register.fields.values())

    assert [name for name in load(table) if bad(load(table)[name])] == []


def test_the_absolute_index_of_the_psp_mailbox() -> None:
    """MP0's first segment is at dword 0x16000 on Navi31."""

    class Silent:
        def read32(self, index: int) -> int:
            return 0

        current32 = read32

        def write32(self, index: int, value: int) -> None:
            del index, value

    block = RegisterBlock(load("mp_13_0_0"), (0x16000,), Silent())
    assert block.MP0_SMN_C2PMSG_81.index == 0x16091


def test_vendor_errors_are_resolved_in_favour_of_the_mask() -> None:
    order = load("gc_11_0_0").GL1C_UTCL0_CNTL1.fields["FORCE_IN_ORDER"]
    assert (order.lsb, order.width) == (25, 2)
    assert load("gc_11_0_0").GFX_IMU_FUSESTRAP.segment == 1


def test_a_table_is_read_once_and_an_unknown_one_is_named() -> None:
    assert load("gc_11_0_0") is load("gc_11_0_0")
    with pytest.raises(BadArgument, match="mmhub_3_0_0"):
        load("gc_99")
