"""The power-play table, which the SMU's firmware provides: this board's limits in one block.

Facts: Linux 6.12 smu_v13_0_0_pptable.h and smu_v14_0_2_pptable.h (the driver's part, packed, before
PPTable_t), smu13_driver_if_v13_0_0.h, smu14_driver_if_v14_0.h. Only fields that a driver of this
chip reads are filled. The board's electrical tuning, which only the SMU reads, is zero.
"""

from __future__ import annotations

import struct

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import constants, structs
from ugpu.virtual.amd.firmware.clocks import FABRIC, GFX, MEMORY, SOC, Clocks

_CORE = 31  # bytes before the reserved words
_RESERVED = 45 * 4
_OVERDRIVE = 12 + 32 + 64 * 4 + 64 * 4 + 32 * 2
_HEAD = _CORE + _RESERVED + _OVERDRIVE + 1
_FORMAT, _TABLE_REVISION, _ASIC_FORMAT = 15, 2, 0x80
_FORMAT_14, _TABLE_REVISION_14, _HEAD_14 = 23, 3, 1344
_FAN_OFFSET = -12  # degrees, applied while a fan does not turn; our choice
# UNSURE: by how many percent boards let the limit be lowered; our choice
_FLOOR_PERCENT, _FLOOR_PERCENT_14 = 10, 30
_FLOOR_AT = _CORE + _RESERVED + 12 + 32 + 64 * 4 + 4 * 4  # SMU_13_0_0_ODSETTING_POWERPERCENTAGE
_INTERNAL_SENSOR = 28  # SMU_13_0_0_PP_THERMALCONTROLLER_NAVI21


def combo_table(facts: ChipFacts) -> bytes:
    """Build the whole block."""
    power_limit = facts.board.power_limit
    table = structs(facts.smu.tables).PPTable_t.new()
    sku, later = table.SkuTable, facts.versions["MP1"] >= (14, 0, 0)
    limits = table.CustomSkuTable if later else sku
    limits.SocketPowerLimitAc[0] = power_limit
    limits.SocketPowerLimitDc[0] = power_limit
    sku.MsgLimits.Power[0][0] = sku.MsgLimits.Power[0][1] = power_limit
    ids = constants(facts.smu.tables)
    sku.OverDriveLimitsBasicMax.FeatureCtrlMask = 1 << ids.PP_OD_FEATURE_PPT_BIT
    if later:
        sku.OverDriveLimitsBasicMin.Ppt = -_FLOOR_PERCENT_14
    limits.FanAbnormalTempLimitOffset = _FAN_OFFSET
    clocks = Clocks(facts.board)
    for field, clock in (
        (sku.FreqTableSocclk, SOC),
        (sku.FreqTableUclk, MEMORY),
        (sku.FreqTableFclk, FABRIC),
    ):
        count = (clocks.level(clock, 0xFF) or 0) & 0xFF
        for at in range(count):
            field[at] = (clocks.level(clock, at) or 0) & 0xFFFF
    for at, end in enumerate((0, -1)):
        sku.FreqTableGfx[at] = clocks.end(GFX, end) or 0
    body = bytes(table)
    return (_head_14 if later else _head_13)(facts, len(body)) + body


def _head_13(facts: ChipFacts, size: int) -> bytes:
    """Build the driver's part for a PPTable_t of `size` bytes."""
    head = struct.pack(
        "<HBBBBHIIHIBHHHH", _HEAD + size, _FORMAT, 0, _TABLE_REVISION, 0, _HEAD, 0, 0,
        _ASIC_FORMAT, 0, _INTERNAL_SENSOR, 0, 0, 0, facts.board.shutdown_celsius,
    )  # fmt: skip
    whole = bytearray(head.ljust(_HEAD, b"\0"))
    whole[_FLOOR_AT : _FLOOR_AT + 4] = _FLOOR_PERCENT.to_bytes(4, "little")
    return bytes(whole)


def _head_14(facts: ChipFacts, size: int) -> bytes:
    """Build the driver's part, which also states where the parts of PPTable_t are."""
    layouts = structs(facts.smu.tables)
    whole = layouts.PPTable_t
    parts = [
        number
        for part in ("SkuTable", "BoardTable", "CustomSkuTable")
        for number in (_HEAD_14 + whole.offset_of(part), layouts[f"{part}_t"].size)
    ]
    head = struct.pack(
        "<HBBBBHH6HIIHIBHHHH",
        _HEAD_14 + size, _FORMAT_14, 0, _TABLE_REVISION_14, 0, _HEAD_14, size, *parts,
        0, 0, 0, 0, 0, 0, 0, 0, facts.board.shutdown_celsius,
    )  # fmt: skip
    return head.ljust(_HEAD_14, b"\0")


def overdrive_table(facts: ChipFacts) -> bytes:
    """Build the table of the user's overdrive settings: none, and none are supported (no feature
    bits)."""
    return bytes(structs(facts.smu.tables).OverDriveTableExternal_t.new())
