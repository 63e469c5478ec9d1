"""Targets that support each matrix instruction.

An assembler refuses instructions that a target lacks. Programs for the virtual multiprocessors do
not pass through one.
Source: PTX ISA 9.1, "Target ISA Notes" of wmma, mma, mma.sp and atom.
"""

from __future__ import annotations

import re

from ugpu.hcq.errors import BadCodeObject
from ugpu.virtual.nvidia.sm.ptx.module import Instruction

_TARGET = re.compile(r"sm_(\d+)([af]?)")
_FAMILY = 120  # with the instructions for f6, f4 and scales; its targets are sm_120a, sm_121f ...
_SMALL = frozenset(("e3m2", "e2m3", "e2m1"))


def check(target: str, code: list[Instruction]) -> None:
    """Raise BadCodeObject for the first instruction that a module's target does not support."""
    found = _TARGET.fullmatch(target)
    if found is None:
        return
    version, letter = int(found[1]), found[2]
    for i in code:
        if i.name not in ("wmma", "mma", "atom"):
            continue
        modifiers = frozenset(i.modifiers)
        wanted, letters = _least(i.name, modifiers)
        if letters and (version // 10 * 10 != _FAMILY or letter not in letters or not letter):
            names = " or ".join(f"sm_{wanted}{one}" for one in letters)
            raise _refusal(i, f"{names} (or one of its family)", target)
        if version < wanted:
            raise _refusal(i, f"sm_{wanted} or higher", target)


def _refusal(i: Instruction, wanted: str, target: str) -> BadCodeObject:
    return BadCodeObject(
        f"PTX line {i.line}: {i.opcode} expected .target {wanted}, got {target}", line=i.line,
        target=target,
    )  # fmt: skip


def _least(name: str, modifiers: frozenset[str]) -> tuple[int, str]:
    """Return the lowest version, and the target letters if only targets with these support it."""
    if name == "atom":
        return (90 if "b128" in modifiers else 0), ""
    if name == "wmma":
        if modifiers & {"f64", "bf16", "tf32", "m16n16k8"} or {"and", "popc"} <= modifiers:
            return 80, ""
        if modifiers & {"s4", "u4", "b1"}:
            return 75, ""
        return (72 if modifiers & {"s8", "u8"} else 70), ""
    if modifiers & {"kind::mxf4", "kind::mxf4nvf4"}:
        return 120, "a"
    if "block_scale" in modifiers or modifiers & _SMALL or "kind::f8f6f4" in modifiers:
        return 120, "af"
    sparse = not modifiers.isdisjoint(("sp", "sp::ordered_metadata"))
    if modifiers & {"e4m3", "e5m2"}:
        newer = "f16" in modifiers or "m16n8k16" in modifiers
        return (120 if newer else 89), ""
    if "f64" in modifiers:
        return (80 if "m8n8k4" in modifiers else 90), ""
    if sparse or modifiers & {"bf16", "tf32", "m16n8k16", "m16n8k32", "m16n8k64", "m16n8k128",
                              "m16n8k256"} or {"and", "popc"} <= modifiers:  # fmt: skip
        return 80, ""
    return (70 if "m8n8k4" in modifiers else 75), ""


def runs_on(target: str, chip: str) -> bool:
    """Return whether code for a target runs on a chip, given by its own target: sm_90 or sm_90a."""
    wanted, has = _TARGET.fullmatch(target), _TARGET.fullmatch(chip)
    if wanted is None or has is None:
        return False
    if wanted[2] == "a":
        return wanted[1] == has[1]
    if wanted[2] == "f" and int(wanted[1]) // 10 != int(has[1]) // 10:
        return False
    return int(wanted[1]) <= int(has[1])
