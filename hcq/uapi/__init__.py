"""Structures and constants of Linux's user-space interface: tables generated from its headers.

    info = structs("vfio").vfio_device_info.new(argsz=24)
    request = constants("vfio").VFIO_DEVICE_GET_INFO

Written by `make regen`, like am/regs.
"""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.registers.tables import Tables

_tables = Tables(Path(__file__).parent)

structs = _tables.structs
constants = _tables.constants
