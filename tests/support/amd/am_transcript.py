"""Transcripts of a boot: a driver's accesses by register name, one a line, without what varies.

Polls show once however often they were read; host addresses, which differ from run to run, show as
such; device memory shows as places and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.regs import load
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access

# Registers that take addresses of host memory.
_HOST = re.compile(r"PROTECTION_FAULT_DEFAULT_ADDR|BX0_INTERRUPT_CNTL2")
_FLUSH = 0x7F000  # the HDP flush register, where the driver maps it


class Names:
    """Register names by absolute dword index, at the typical bases."""

    def __init__(self, facts: ChipFacts = NAVI31) -> None:
        self.names: dict[int, str] = {}
        for block, table in facts.register_tables.items():
            registers = load(table)
            bases = facts.generation.typical_bases[block]
            for name in registers:
                register = registers[name]
                if register.segment < len(bases):
                    self.names.setdefault(bases[register.segment] + register.offset, name)

    def name(self, index: int) -> str:
        return self.names.get(index, f"[{index:#x}]")


def transcript(accesses: Iterable[Access], names: Names) -> list[str]:
    """Lines for accesses; see the module's docstring."""
    lines: list[str] = []
    indirect = 0
    for access in accesses:
        line = None
        if access.window == CONFIG:
            line = f"{_verb(access)} config {access.offset:#x}{_value(access)}"
        elif access.window == NAVI31.generation.register_bar:
            index = access.offset // 4
            if index == 0x14:  # RSMU index: names the register of the next data access
                indirect = access.value // 4 if access.is_write and access.value else indirect
                continue
            if access.offset == _FLUSH:
                line = "HDP flush"
            else:
                name = names.name(indirect if index == 0x15 else index)
                shown = " = host address" if _HOST.search(name) else _value(access)
                line = f"{_verb(access)} {name}{shown}"
        elif access.window == NAVI31.generation.vram_bar and access.is_write:
            line = f"W vram {access.offset:#x} {access.width} bytes"
        elif access.window == NAVI31.generation.doorbell_bar:
            line = f"W doorbell {access.offset:#x}{_value(access)}"
        if line is not None:
            _append(lines, line)
    return lines


def _verb(access: Access) -> str:
    return "W" if access.is_write else "R"


def _value(access: Access) -> str:
    return f" = {access.value:#x}" if access.is_write else ""


def _append(lines: list[str], line: str) -> None:
    """Add a line, unless it repeats a poll: a read like the last one, or like the last two."""
    if line.startswith("R "):
        if lines[-1:] == [line]:
            return
        if line.endswith("_SMN_C2PMSG_35") and lines[-1:] == [line.replace("_35", "_81")]:
            return  # a look for refusals while the secure OS starts
        if len(lines) >= 3 and lines[-2] == line and lines[-3] == lines[-1]:
            lines.pop()
            return
    lines.append(line)
