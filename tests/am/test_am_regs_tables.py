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
    "gc_11_0_0": (5494, 16971),
    "gc_11_0_0_indirect": (350, 795),
    "gc_11_0_3": (5669, 18379),
    "hdp_6_0_0": (89, 264),
    "mmhub_3_0_0": (709, 3340),
    "mmhub_3_0_2": (673, 3245),
    "mp_13_0_0": (209, 217),
    "nbio_4_3_0": (5293, 16135),
    "osssys_6_0_0": (118, 416),
    "smuio_13_0_6": (231, 450),
    "thm_13_0_2": (157, 555),
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
