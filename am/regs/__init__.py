"""Registers, structures and constants of AMD chips: text tables generated from kernel headers.

    gc = load("gc_11_0_0")                          gc.CP_STAT.decode(value).CP_BUSY
    gc = block("gc_11_0_0", bases, bus)             gc.CP_STAT.read()
    mqd = structs("v11_structs").v11_compute_mqd.new()
    opcode = constants("nvd").PACKET3_DISPATCH_DIRECT

The tables (*.txt) and stubs (*.pyi) are written by `make regen` and never edited by hand; each
names its source on top, and MANIFEST.txt holds the digests of all.
"""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.registers.tables import Tables

_tables = Tables(Path(__file__).parent)

load = _tables.load
block = _tables.block
structs = _tables.structs
constants = _tables.constants
