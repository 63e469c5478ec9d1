"""Registers, packets and interfaces of Adreno GPUs: text tables, generated.

    load("a6xx"), load("a7xx")      registers, in dwords: those that compute uses
    load("a6xx_packets")            words of packets and descriptors: CP_EXEC_CS_1, A6XX_TEX_CONST_0
    constants("a6xx")               opcodes, events, formats; REGISTER__FIELD__SHR: a field's low
                                    bits that its value leaves out
    constants("msm_kgsl"), structs("msm_kgsl")      KGSL; msm DRM is hcq.uapi's "msm_drm"

tables/ is written by `make regen` (tools/clang2py/adreno) from Mesa's files and never edited;
ir3.txt, the instruction set, by tools.clang2py.isaspec.
"""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.registers.tables import Tables

_tables = Tables(Path(__file__).parent / "tables")

load = _tables.load
structs = _tables.structs
constants = _tables.constants
