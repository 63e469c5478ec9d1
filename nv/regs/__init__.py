"""Registers that the boot of NVIDIA's GPUs uses, by name: BAR 0, a falcon, and FSP's mailbox.

    nv = block("bar0", 0, bus)           nv.NV_PMC_BOOT_0.read().IMPLEMENTATION
    gsp = block("falcon", 0x110000, bus)  gsp.MAILBOX0.write(0)

The tables here are written by hand, as NVIDIA publishes these registers in many headers, each for
one chip: `NAME byte-offset [FIELD:lsb:width ...]`, sources in each table. Names are those of
open-gpu-kernel-modules, src/common/inc/swref/published, without the unit's prefix in `falcon`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.fields import Bus, RegisterBlock, RegisterMap
from ugpu.hcq.registers.malformed import lines_of

_FOLDER = Path(__file__).parent


@cache
def load(name: str) -> RegisterMap:
    """Return a table's registers; BadArgument lists the tables."""
    path = _FOLDER / f"{name}.txt"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in _FOLDER.glob("*.txt")))
        raise BadArgument(f"table of registers must be one of {known}, got {name!r}")
    rows = []
    for line in lines_of(path.read_text(encoding="ascii")):
        register, place, *fields = line.split()
        rows.append(" ".join([register, f"{int(place, 16) // 4:#x}", "0", *fields]))
    return RegisterMap("\n".join(sorted(rows)), name)


def block(name: str, base: int, bus: Bus) -> RegisterBlock:
    """Return a table's registers at a byte address of BAR 0."""
    return RegisterBlock(load(name), (base // 4,), bus)
