"""Types of operands: from AMD's machine-readable ISA, as tinygrad's wheel carries it.

The wheel's `runtime/autogen/amd/<isa>/operands.py` has a format and a size for each operation and
field. Where it has no entry, the widths that LLVM shows decide.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ugpu.tools.instructions.probe import Probe

_FORMATS = {
    "F32": "f32", "F64": "f64", "F16": "f16", "BF16": "bf16", "PK2_F16": "pk_f16",
    "PK2_BF16": "pk_bf16", "PK2_B16": "pk_b16", "PK2_I16": "pk_b16", "PK2_U16": "pk_b16",
    "M64": "mask",
}  # fmt: skip
_SOURCES = ("src0", "src1", "src2")
_CARRY_IN = ("_co_ci_", "v_cndmask_b32", "v_addc_", "v_subb_", "v_subbrev_", "v_add_co_ci")
Operands = Mapping[tuple[str, str], Mapping[str, tuple[Any, int, Any]]]


def load(wheel: Path, isa: str) -> Operands:
    """Return the operands of an unpacked wheel, by encoding and name in lower case.

    Any: members of the wheel's own enumerations.
    """
    sys.path.insert(0, str(wheel))
    try:
        module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.operands")
    finally:
        sys.path.remove(str(wheel))
    found: dict[tuple[str, str], Mapping[str, tuple[Any, int, Any]]] = {}
    for operation, fields in module.OPERANDS.items():
        encoding = type(operation).__name__.removesuffix("Op")
        name = operation.name.lower().removesuffix("_e32").removesuffix("_e64")
        found[encoding, name] = fields
    return found


def signature(probe: Probe, tables: tuple[Operands, ...]) -> tuple[str, list[str]]:
    """Return the types of destination ("" for none) and sources of an ALU operation."""
    if probe.encoding in ("VOPDX", "VOPDY"):
        return _fixed_up(probe, *_half(probe))
    fields = _fields(probe, tables)
    if fields is None:
        dst, sources = _by_width(probe)
    else:
        dst = next(
            (_type(probe, name, fields[name]) for name in ("vdst", "sdst") if name in fields), ""
        )
        sources = []
        for number in range(3):
            for prefix in ("", "v", "s"):
                field = f"{prefix}src{number}"
                if field in fields:
                    sources.append(_type(probe, field, fields[field]))
                    break
    return _fixed_up(probe, dst, sources)


def _fields(
    probe: Probe, tables: tuple[Operands, ...]
) -> Mapping[str, tuple[Any, int, Any]] | None:
    encodings = [probe.encoding]
    if probe.encoding == "VOP3":
        encodings += ["VOP3SD"]
    for table in tables:
        for encoding in encodings:
            fields = table.get((encoding, probe.name))
            if fields is not None:
                return fields
    return None


def _half(probe: Probe) -> tuple[str, list[str]]:
    """Return the types of a half of a pair: 32 bits, of the kind that its name ends in."""
    side = probe.encoding[-1].lower()
    kind = "f32" if probe.name.endswith(("f32", "f16", "bf16")) else "b32"
    source = kind
    if "dot2acc" in probe.name:
        source, kind = "pk_bf16" if probe.name.endswith("bf16") else "pk_f16", "f32"
    two = probe.operands[f"vsrc1{side}"] > 0
    return kind, [source] * (2 if two else 1)


def _type(probe: Probe, field: str, operand: tuple[Any, int, Any]) -> str:
    form, size, _ = operand
    name = _FORMATS.get(form.name.removeprefix("FMT_NUM_"))
    if name is not None:
        return name
    if size < 32:
        whole = probe.encoding.startswith("SOP") or size != 16
        return "b32" if whole else "b16"
    return f"b{size}"


def _by_width(probe: Probe) -> tuple[str, list[str]]:
    def named(count: int) -> str:
        return f"b{32 * count}"

    operands = probe.operands
    dst = next((named(operands[name]) for name in ("vdst", "sdst") if operands.get(name)), "")
    sources = [
        named(operands[field])
        for number in range(3)
        for field in (f"src{number}", f"vsrc{number}", f"ssrc{number}", f"src{number}x")
        if operands.get(field)
    ]
    return dst, sources


def _fixed_up(probe: Probe, dst: str, sources: list[str]) -> tuple[str, list[str]]:
    """Apply what the machine-readable text leaves out, or has for another purpose than ours."""
    name, encoding = probe.name, probe.encoding
    if encoding == "VOPC" or (encoding == "VOP3" and name.startswith("v_cmp")):
        dst = "mask"
    if name.startswith(("v_ldexp_f16", "v_cmp_class_f16", "v_cmpx_class_f16")):
        sources[1] = "b16"
    if name.startswith("v_fma_mix"):
        sources = ["f32"] * 3
    if name.startswith("v_sad_u16"):
        sources = ["b32"] * 3
    if name.startswith("s_sendmsg_rtn"):
        sources = ["message"]
    if encoding == "VOP2" and any(part in name for part in _CARRY_IN):
        sources = [*sources[:2], "mask"]
    if "fmamk" in name:
        sources = [sources[0], "literal", sources[1]]
    if "fmaak" in name:
        sources = [*sources[:2], "literal"]
    if not probe.operands.get("vdst", 1) and encoding == "VOP1":
        dst, sources = "", []
    if encoding == "VOPC":
        dst = "mask"
    return dst, sources
