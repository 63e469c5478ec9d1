"""Registers, structs and constants of AMD chips: text tables generated from the kernel's headers.

    gc = load("gc_11_0_0")              # RegisterMap: gc.CP_STAT.decode(value)

The tables (*.txt) and stubs (*.pyi) are written by `make regen` and never edited by hand; each names its source.
"""

from __future__ import annotations

from pathlib import Path

from hcq.tables import Tables

_tables = Tables(Path(__file__).parent)

load = _tables.load
