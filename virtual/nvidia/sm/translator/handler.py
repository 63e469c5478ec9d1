"""Code shared by all instruction files: the type of a handler, and readers of modifiers."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Instruction
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value

Handler = Callable[[Kernel, Instruction], None]
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
FLOAT_TYPES = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2"))


def type_of(k: Kernel, i: Instruction) -> str:
    """Return the last modifier, which must be a type."""
    kind = i.modifiers[-1] if i.modifiers else ""
    if kind not in SIZES and kind != "pred":
        raise k.unsupported()
    return kind


def is_signed(kind: str) -> bool:
    """Return whether a type is a signed integer."""
    return kind.startswith("s")


def only(k: Kernel, i: Instruction, *allowed: str) -> set[str]:
    """Return the modifiers before the type; raise for those not in `allowed`."""
    found = set(i.modifiers[:-1])
    strange = found - set(allowed)
    if strange:
        raise k.unsupported("." + ".".join(sorted(strange)))
    return found


def sources(k: Kernel, i: Instruction, kind: str, count: int) -> list[Value]:
    """Read the operands after the result."""
    if len(i.operands) != count + 1:
        raise k.bad(f"expected {count + 1} operands, got {len(i.operands)}")
    return [k.source(operand, kind) for operand in i.operands[1:]]
