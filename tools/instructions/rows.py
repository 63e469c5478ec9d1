"""Rows of a table, from probes and types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ugpu.tools.instructions.probe import Probe
from ugpu.tools.instructions.types import Operands, signature

_ALL, _SCALAR = "vsil", "sil"
_BOTH = (250, 233)
MEMORY = ("SMEM", "DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "MTBUF")
# Encodings whose operations may have lanes permuted by default.
MODIFIED = ("VOP3", "VOP3P", "VINTERP")
PERMUTED = ("VOP1", "VOP2", "VOPC", "VOP3")


def section(encoding: str, probes: Sequence[Probe], tables: tuple[Operands, ...]) -> Iterator[str]:
    """Yield the lines of an encoding: its name and its commonest fixed bits, then a row each.

    Ignored bits are given where they are those of modifiers.
    """
    common = Counter((probe.fixed, probe.value) for probe in probes).most_common(1)[0][0]
    yield f"[{encoding}] fixed={common[0]:#x}/{common[1]:#x}"
    for probe in probes:
        columns = _memory(probe) if encoding in MEMORY else _types(probe, tables)
        row = [str(probe.opcode), _name(probe), *columns, *_attributes(probe, common)]
        yield " ".join(row)


def _name(probe: Probe) -> str:
    segment = f"{probe.encoding.lower()}_"
    return probe.name.removeprefix(segment) if probe.encoding in MEMORY[2:5] else probe.name


def _types(probe: Probe, tables: tuple[Operands, ...]) -> list[str]:
    if probe.encoding in ("SOPP", "SOPK"):
        return []
    dst, sources = signature(probe, tables)
    return [dst or "-", *sources]


def _memory(probe: Probe) -> list[str]:
    operands = probe.operands

    def count(field: str) -> str:
        return str(operands[field]) if operands.get(field) else "-"

    if probe.encoding == "SMEM":
        return [count("sdata"), count("sbase")]
    if probe.encoding == "DS":
        return ["a" if operands["addr"] else "-", count("vdst"), count("data0"), count("data1")]
    if probe.encoding in ("MUBUF", "MTBUF"):
        return [count("vdata")]
    data = operands["data"]
    if "atomic" in probe.name and not operands["vdst"]:
        halves = 2 if "cmpswap" in probe.name else 1
        return [str(data // halves) if data else "-", count("data")]
    return [count("vdst"), count("data")]


def _attributes(probe: Probe, common: tuple[int, int]) -> Iterator[str]:
    if (probe.fixed, probe.value) != common:
        yield f"fixed={probe.fixed:#x}/{probe.value:#x}"
    if probe.ignored and probe.encoding in MODIFIED:
        yield f"ignored={probe.ignored:#x}"
    kinds = {
        field[field.index("src") + 3]: found
        for field, found in probe.kinds.items()
        if found != (_SCALAR if probe.encoding.startswith("SOP") else _ALL)
        and field.startswith(("src", "ssrc"))
        and field[-1] != ("x" if probe.encoding == "VOPDY" else "y")
    }
    if kinds:
        yield "kinds=" + ",".join(f"{number}:{found or '-'}" for number, found in kinds.items())
    if probe.encoding in PERMUTED and probe.dpp != _BOTH:
        yield f"dpp={','.join(map(str, probe.dpp)) or '-'}"
    elif probe.encoding not in PERMUTED and probe.dpp:
        yield f"dpp={','.join(map(str, probe.dpp))}"
    if probe.dpp_fixed:
        yield f"plain={probe.dpp_fixed:#x}"
