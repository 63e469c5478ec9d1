"""Targets: an instruction set each, as the decoder and the disassembler read it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ugpu.virtual.amd.isa.targets.table import Table, load


class Memory(enum.Enum):
    """Layouts of the memory encodings."""

    GFX11 = "64 bits, with glc, slc and dlc"
    GFX12 = "96 bits, with scope and temporal hint"


@dataclass(frozen=True, eq=False)
class Target:
    """One instruction set. tables: by encoding. memory: None where only the tables exist.

    Two targets of one name are the same object, see `target`.
    """

    name: str
    tables: Mapping[str, Table]
    memory: Memory | None

    def __repr__(self) -> str:
        return f"Target({self.name!r})"

    def table(self, encoding: str) -> Table:
        """Return the opcodes of an encoding; empty if the target lacks it."""
        return self.tables.get(encoding, {})


_MEMORY = {"gfx11": Memory.GFX11, "gfx12": Memory.GFX12}
NAMES = ("gfx11", "gfx12", "gfx942", "gfx950", "gfx1030")


@cache
def target(name: str) -> Target:
    """Return a target by name; KeyError for an unknown one."""
    if name not in NAMES:
        raise KeyError(name)
    return Target(name, load(name), _MEMORY.get(name))
