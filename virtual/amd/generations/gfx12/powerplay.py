"""The power-play table of SMU 14: this board's limits in one block.

Facts: Linux 6.12 smu_v14_0_2_pptable.h (the driver's part, packed, before PPTable_t, which starts
at a multiple of 32 bytes), smu14_driver_if_v14_0.h. Only fields that a driver reads are filled.
"""

from __future__ import annotations

import struct

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import structs
from ugpu.virtual.amd.firmware.clocks import FABRIC, GFX, MEMORY, SOC, Clocks
from ugpu.virtual.amd.firmware.smu import Smu

_CORE = 45  # bytes before the reserved ones
_RESERVED = 143
_OVERDRIVE = 4 + 2 * 32 + 2 * 2 * 64 * 4 + 32 * 2
_HEAD = _CORE + _RESERVED + _OVERDRIVE
_FORMAT, _TABLE_REVISION = 3, 3
_FAN_OFFSET = -12  # degrees, applied while a fan does not turn; our choice
_INTERNAL_SENSOR = 28  # as of the boards before


def combo_table(facts: ChipFacts) -> bytes:
    """Build the whole block."""
    power_limit = facts.board.power_limit
    layout = structs(facts.smu.tables)
    table = layout.PPTable_t.new()
    custom, sku = table.CustomSkuTable, table.SkuTable
    custom.SocketPowerLimitAc[0] = power_limit
    custom.SocketPowerLimitDc[0] = power_limit
    custom.FanAbnormalTempLimitOffset = _FAN_OFFSET
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
    places = layout.PPTable_t.fields
    head = struct.pack(
        "<HBBBB8HIIHIBHHHH", _HEAD + len(body), _FORMAT, 0, _TABLE_REVISION, 0,
        _HEAD, len(body), 0, layout.PFE_Settings_t.size,
        places["BoardTable"].offset, layout.BoardTable_t.size,
        places["CustomSkuTable"].offset, layout.CustomSkuTable_t.size,
        0, 0, 0, 0, _INTERNAL_SENSOR, 0, 0, 0, facts.board.shutdown_celsius,
    )  # fmt: skip
    return head.ljust(_HEAD, b"\0") + body


class Smu14(Smu):
    """The system management unit with its own table of limits."""

    combo_table = staticmethod(combo_table)
