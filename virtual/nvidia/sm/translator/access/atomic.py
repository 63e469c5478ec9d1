"""Atomic operations and fences.

All memory here is coherent and all atomics are sequentially consistent, so scopes and memory orders
need no further code.
Source: PTX ISA 8.x, "Parallel Synchronization and Communication Instructions": atom, red, membar,
fence.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Instruction, Vector
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access.bulk import fenced, written
from ugpu.virtual.nvidia.sm.translator.access.memory import SHARED_SPACES, address, resolve
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.moves import space_of
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader.atomics import OPERATIONS
from ugpu.virtual.shader.memory import Access

_NAMES = ("exch", "cas", "add", "inc", "dec", "min", "max", "and", "or", "xor")
_QUIET = frozenset((
    "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "global", "shared",
    "shared::cta", "shared::cluster", "noftz", "sem", "volatile", "async", "mmio",
))  # fmt: skip


def _operation(k: Kernel, i: Instruction, kind: str) -> str:
    """Return the operation's name among OPERATIONS."""
    found = [m for m in i.modifiers if m in _NAMES]
    vectors = {"v2", "v4", "v8"}
    strange = set(i.modifiers) - {kind} - _QUIET - set(_NAMES) - vectors
    strange = {m for m in strange if not m.startswith("L2")}
    if len(found) != 1 or strange:
        raise k.unsupported()
    name = found[0]
    if name in ("min", "max"):
        if kind in ("f16", "bf16", "f16x2", "bf16x2") and vectors & set(i.modifiers):
            return f"{name}_{kind}"
        if kind[0] not in "us":
            raise k.unsupported()
        return f"{name}_{kind[0]}"
    if name == "add" and kind in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2"):
        return f"add_{kind}"
    if kind[0] not in "bus":
        raise k.unsupported()
    return name


def _kind(k: Kernel, i: Instruction) -> str:
    """Return the type, which may be followed by the operation and .noftz."""
    found = [m for m in i.modifiers if m in SIZES]
    if len(found) != 1:
        raise k.unsupported()
    return found[0]


def access_of(i: Instruction) -> Access:
    """Return the kind of access of an atomic operation, which a fault reports; the default scope
    is .gpu."""
    return Access.ATOMIC if "sys" in i.modifiers else Access.ATOMIC_LOCAL


def _atomic(returns: bool) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = _kind(k, i)
        operation = _operation(k, i, kind)
        size = SIZES[kind]
        bits = 8 * size
        if operation not in OPERATIONS.get(bits, ()):
            raise k.unsupported()
        operands = i.operands[1:] if returns else i.operands
        if "L2::cache_hint" in i.modifiers:
            operands = operands[:-1]  # the cache policy
        wanted = 3 if operation == "cas" else 2
        if len(operands) != wanted:
            raise k.bad(f"expected {wanted + returns} operands")
        where, known = address(k, operands[0])
        space = space_of(i.modifiers)
        if not space and known == "shared":
            space = known
        data = operands[1].items if isinstance(operands[1], Vector) else operands[1:2]
        mask, access = k.mask(), access_of(i)
        results = []
        for n, operand in enumerate(data):
            at = k.varying(k.op("add", where, number("i64", n * size)) if n else where)
            total = size * len(data) if n == 0 else size  # the whole vector is aligned
            hosts = resolve(k, space, at, total, access, mask)
            if k.proxies and space in SHARED_SPACES:
                written(k, hosts, mask, total)
            value = _bits(k, k.source(operand, kind))
            other: Value = number(f"i{bits}", 0)
            if operation == "cas":
                other = _bits(k, k.source(operands[2], kind))
            vector = f"<32 x i{bits}>"
            text = k.call(
                vector, f"{PREFIX}atomic_{bits}", ("ptr", "%context"), (WIDE, hosts),
                ("i32", mask), ("i32", str(OPERATIONS[bits].index(operation))),
                (vector, k.vec(value)), (vector, k.vec(other)),
            )  # fmt: skip
            results.append(Value(text, f"i{bits}", False))
        if not returns:
            return
        target = i.operands[0]
        targets = target.items if isinstance(target, Vector) else (target,)
        if len(targets) != len(results):
            raise k.bad("expected as many results as values")
        for operand, result in zip(targets, results, strict=True):
            k.write(operand, result)

    return emit


def _bits(k: Kernel, value: Value) -> Value:
    return k.bits_of(value)


def _fence(k: Kernel, i: Instruction) -> None:
    """Emit the host's fence between threads; within a warp, order is kept anyway."""
    if "mbarrier_init" in i.modifiers or {"proxy", "async"} <= set(i.modifiers) or any(
        modifier.startswith("async::") for modifier in i.modifiers
    ):  # fmt: skip
        fenced(k)
    k.do("fence seq_cst")


def _nothing(k: Kernel, i: Instruction) -> None:
    """Do nothing: the instruction only affects timing."""


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "atom": _atomic(True), "red": _atomic(False), "membar": _fence, "fence": _fence,
        "nanosleep": _nothing, "pmevent": _nothing, "griddepcontrol": _nothing,
        "setmaxnreg": _nothing,
    }  # fmt: skip
