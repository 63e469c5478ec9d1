"""Registers of asynchronous products, stored in the warp's state so that other warps reach them.

`wgmma.wait_group` of the last warp of a warp group computes for all four, so accumulators and
fragments of A are places in memory, not values. Each list of registers in an instruction is a table
with notes: the last product that uses it, and whether the program has accessed it since the last
`wgmma.fence`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Register, Vector
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.translator.control.graph import Graph

_BYTES = 128  # of a register of 32 lanes


@dataclass
class Held:
    """places: of registers, by name. tables: lists of registers. of: the tables of a register."""

    places: dict[str, int] = field(default_factory=dict)
    tables: dict[tuple[str, ...], int] = field(default_factory=dict)
    of: dict[str, list[int]] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Offset in a warp's state of the last product that the warp has waited for, u64."""
        return layout.STATE_PRODUCTS

    @property
    def notes(self) -> int:
        """Offset in a warp's state of the tables' notes."""
        return layout.STATE_SLOTS + _BYTES * len(self.places)

    @property
    def end(self) -> int:
        """Offset in a warp's state of the end of the held registers and notes."""
        if not self.places:
            return layout.STATE_SLOTS
        return -(-(self.notes + flight.TABLE_SIZE * len(self.tables)) // 64) * 64

    def place(self, name: str) -> int:
        """Return a register's offset in a warp's state."""
        return layout.STATE_SLOTS + _BYTES * self.places[name]


def names_of(i: Instruction, operand: int) -> tuple[str, ...]:
    """Return the registers of an operand in braces. Raises BadCodeObject for other operands."""
    found = i.operands[operand] if operand < len(i.operands) else None
    if not isinstance(found, Vector):
        return ()
    names = []
    for item in found.items:
        if not isinstance(item, Register) or item.type not in ("f32", "b32", "u32", "s32", "f16x2",
                                                               "bf16x2"):  # fmt: skip
            raise bad(i.line, f"{i.opcode}: expected registers of 32 bits")
        names.append(item.name)
    if len(set(names)) != len(names):
        raise bad(i.line, f"{i.opcode}: a register is named twice")
    return tuple(names)


def held_by(graph: Graph) -> Held:
    """Find the registers used by all products of a kernel."""
    held = Held()
    for block in graph.blocks:
        for i in block.code:
            if i.name != "wgmma" or "mma_async" not in i.modifiers:
                continue
            for operand in (0, 1):
                names = names_of(i, operand)
                if not names or names in held.tables:
                    continue
                held.tables[names] = len(held.tables)
                for name in names:
                    held.places.setdefault(name, len(held.places))
                    held.of.setdefault(name, []).append(held.tables[names])
    return held
