"""Packets of a graphics queue: those of a compute queue, and the state around a draw.

Drawing is not modelled: state packets are accepted without effect, and draws are refused. Facts:
Linux 6.12 nvd.h (layouts), gfx_v11_0.c (packets that the kernel emits on its graphics ring).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ugpu.virtual.amd.engines.cp.pm4 import packets
from ugpu.virtual.amd.engines.cp.pm4.decoded import Handler
from ugpu.virtual.amd.engines.cp.pm4.execute import Executor
from ugpu.virtual.amd.engines.cp.pm4.packets import (
    ADDRESS_HI,
    INDIRECT_BUFFER,
    LOW_4,
    MAXIMUM_COUNT,
    BadPacket,
    PacketFormat,
    free,
)
from ugpu.virtual.amd.engines.cp.pm4.surroundings import Surroundings

CLEAR_STATE = 0x12
CONTEXT_CONTROL = 0x28
PFP_SYNC_ME = 0x42
PREAMBLE_CNTL = 0x4A
SET_CONTEXT_REG = 0x69
SWITCH_BUFFER = 0x8B
FRAME_CONTROL = 0x90

CONTEXT_REGISTERS = range(0xA000, 0xA400)

_FORMATS = (
    PacketFormat("CLEAR_STATE", CLEAR_STATE, 1, 1, (free((0, 4)),)),
    PacketFormat("CONTEXT_CONTROL", CONTEXT_CONTROL, 2, 2, (0, 0)),
    PacketFormat("PFP_SYNC_ME", PFP_SYNC_ME, 1, 1, (0,)),
    PacketFormat("PREAMBLE_CNTL", PREAMBLE_CNTL, 1, 1, (free((28, 4)),)),
    PacketFormat(
        "SET_CONTEXT_REG", SET_CONTEXT_REG, 2, MAXIMUM_COUNT, (free((0, 16)),), repeats=True
    ),
    PacketFormat(
        "INDIRECT_BUFFER",
        INDIRECT_BUFFER,
        3,
        3,
        (LOW_4, ADDRESS_HI, free((0, 21), (21, 2), (23, 1), (24, 4), (28, 2), (30, 2))),
    ),
    PacketFormat("SWITCH_BUFFER", SWITCH_BUFFER, 1, 1, (0,)),
    PacketFormat("FRAME_CONTROL", FRAME_CONTROL, 1, 1, (free((0, 1), (28, 4)),)),
)

_DRAWS = {
    0x24: "DRAW_INDIRECT", 0x25: "DRAW_INDEX_INDIRECT", 0x27: "DRAW_INDEX_2",
    0x2C: "DRAW_INDIRECT_MULTI", 0x2D: "DRAW_INDEX_AUTO", 0x35: "DRAW_INDEX_OFFSET_2",
}  # fmt: skip


class GraphicsExecutor(Executor):
    """Run the packets of a graphics queue. ENGINE_SEL may be ME or PFP; the model has only one."""

    formats: ClassVar[Mapping[int, PacketFormat]] = {
        **packets.FORMATS,
        **{entry.opcode: entry for entry in _FORMATS},
    }
    engines = 2
    valid_bit = 0
    inherit_bit = 1 << 22

    def __init__(self, queue: Surroundings) -> None:
        self.context: dict[int, int] = {}  # context registers by offset
        super().__init__(queue)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of compute queues, of state packets, and of draws (refused)."""
        quiet = (CLEAR_STATE, CONTEXT_CONTROL, PFP_SYNC_ME, PREAMBLE_CNTL)
        return {
            **super().handlers(),
            **dict.fromkeys((*quiet, SWITCH_BUFFER, FRAME_CONTROL), self._nop),
            SET_CONTEXT_REG: self._set_context,
        }

    def run(self, words: Sequence[int]) -> int:
        """Execute packets; see Executor.run."""
        try:
            return super().run(words)
        except BadPacket as bad:
            draw = _DRAWS.get(bad.header >> 8 & 0xFF)
            if draw is None:
                raise
            raise BadPacket(f"{draw} is not modelled (no draws)", bad.header) from bad

    def _set_context(self, words: Sequence[int], at: int, count: int) -> int:
        first = words[at]
        if first + count - 1 > len(CONTEXT_REGISTERS):
            raise BadPacket(
                f"SET_CONTEXT_REG of {count - 1} registers at {first:#x} ends outside context "
                "space",
                words[at - 1],
            )
        self.context.update(enumerate(words[at + 1 : at + count], first))
        return 0
