"""Bulk copies (cp.async.bulk), the proxy fences they require, and stores to other groups.

Copies with a tensor map are refused: its format is not documented.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Bulk copy", "Async proxy".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Instruction, Integer, Operand, Vector
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout as flight
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access.memory import address, column, join, resolve
from ugpu.virtual.nvidia.sm.translator.handler import type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader.atomics import OPERATIONS

_SIGNAL = "mbarrier::complete_tx::bytes"
# Modifiers of bulk copies: destination and source, and how completion is signalled.
_FORMS = {
    frozenset(("shared::cluster", "global", _SIGNAL)): flight.LOAD,
    frozenset(("shared::cta", "global", _SIGNAL)): flight.LOAD,
    frozenset(("shared::cluster", "shared::cta", _SIGNAL)): flight.MOVE,
    frozenset(("global", "shared::cta", "bulk_group")): flight.STORE,
}
_QUIET = {"async", "bulk", "L2::cache_hint", "multicast::cluster"}
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def groups_left(k: Kernel, i: Instruction) -> int:
    """Return how many groups may stay in flight."""
    count = i.operands[0] if len(i.operands) == 1 else None
    if not isinstance(count, Integer) or not 0 <= count.value < 1 << 20:
        raise k.bad("expected a constant number of groups")
    return count.value


def written(k: Kernel, hosts: str, mask: str, size: int) -> None:
    """Record that lanes write to shared memory through the generic proxy."""
    k.call("void", f"{PREFIX}proxy_written", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
           ("i64", str(size)))  # fmt: skip


def published(k: Kernel) -> None:
    """Record that the warp makes its writes known to others."""
    if k.proxies:
        k.call("void", f"{PREFIX}proxy_published", ("ptr", "%context"))


def fenced(k: Kernel) -> None:
    """Order both proxies."""
    if k.proxies:
        k.call("void", f"{PREFIX}proxy_fenced", ("ptr", "%context"))


def emit(k: Kernel, i: Instruction) -> None:
    """Emit one instruction of the family."""
    modifiers = set(i.modifiers)
    if "tensor" in modifiers:
        raise k.unsupported("tensor maps have no documented layout")
    if "commit_group" in modifiers:
        k.call("void", f"{PREFIX}bulk_commit", ("ptr", "%context"), ("i32", k.mask()))
    elif "wait_group" in modifiers:
        k.call("void", f"{PREFIX}bulk_wait", ("ptr", "%context"), ("i32", k.mask()),
               ("i32", str(groups_left(k, i))))  # fmt: skip
        k.fault_if_found()
    elif "prefetch" in modifiers:
        _check_size(k, i.operands[1] if len(i.operands) > 1 else None)
    else:
        how = 0
        if "reduce" in modifiers:
            how = reduction(k, i)
            modifiers -= {"reduce", "noftz", i.modifiers[-1], *_REDUCTIONS}
        kind = _FORMS.get(frozenset(modifiers - _QUIET))
        if kind is None or (how and kind == flight.LOAD):
            raise k.unsupported()
        if "multicast::cluster" in modifiers and kind != flight.LOAD:
            raise k.unsupported()
        _begin(k, i, kind, how)


def reduction(k: Kernel, i: Instruction) -> int:
    """Return how an instruction combines elements, as `async_layout.combined` does."""
    kind = type_of(k, i)
    named = [m for m in i.modifiers if m in _REDUCTIONS]
    size = SIZES[kind]
    if len(named) != 1:
        raise k.unsupported()
    operation = named[0]
    if kind in ("f16", "bf16", "f32", "f64"):
        operation = f"{operation}_{kind}"
    elif operation in ("min", "max"):
        operation = f"{operation}_{kind[0]}"
    if operation not in OPERATIONS.get(8 * size, ()):
        raise k.unsupported()
    return flight.combined(OPERATIONS[8 * size].index(operation), size)


def _check_size(k: Kernel, size: Operand | None) -> None:
    if isinstance(size, Integer) and size.value % 16:
        raise k.bad(f"{size.value} bytes; expected a multiple of 16")


def _begin(k: Kernel, i: Instruction, kind: int, how: int) -> None:
    operands = list(i.operands)
    if "L2::cache_hint" in i.modifiers:
        operands.pop()
    targets = None
    if "multicast::cluster" in i.modifiers:
        targets = operands.pop()
    if len(operands) != (3 if kind == flight.STORE else 4):
        raise k.bad("expected two addresses, a size and for loads an mbarrier object")
    _check_size(k, operands[2])
    mask = k.mask()
    size = k.vec(k.source(operands[2], "u32"))
    barriers = "zeroinitializer"
    if kind == flight.STORE:
        others = k.vec(address(k, operands[0])[0])
        hosts = resolve(k, "shared", address(k, operands[1])[0], 16, False, mask)
    else:
        space = "shared::cluster" if "shared::cluster" in i.modifiers else "shared"
        hosts = resolve(k, space, address(k, operands[0])[0], 16, True, mask)
        barriers = resolve(k, space, address(k, operands[3])[0], 8, True, mask)
        where = address(k, operands[1])[0]
        others = k.vec(where)
        if kind == flight.MOVE:
            others = resolve(k, "shared", where, 16, False, mask)
    ranks = "zeroinitializer"
    if targets is not None:
        ranks = k.vec(k.resize(k.source(targets, "u16"), "i32", False))
        none = k.mask_bits(k.cmp("eq", Value(ranks, "i32", False), number("i32", 0)))
        k.fault_if(k.value(f"and i32 {none}, {mask}"), layout.BAD_RANK)
    k.mark()
    k.call(
        "void", f"{PREFIX}bulk_issue", ("ptr", "%context"), ("i64", str(kind)), (WIDE, others),
        (WIDE, hosts), ("<32 x i32>", size), (WIDE, barriers), ("<32 x i32>", ranks),
        ("i32", mask), ("i64", str(how)),
    )  # fmt: skip
    k.fault_if_found()


def words(k: Kernel, i: Instruction) -> None:
    """st.async and red.async: a store or operation in another group that signals its mbarrier."""
    modifiers = set(i.modifiers[:-1])
    reduces = i.name == "red"
    quiet = {"async", "weak", "relaxed", "cluster", "shared::cluster", _SIGNAL, "v2", "v4"}
    if modifiers - quiet - ({*_REDUCTIONS} if reduces else set()) or _SIGNAL not in modifiers:
        raise k.unsupported()
    if len(i.operands) != 3:
        raise k.bad("expected two addresses and a value")
    kind = type_of(k, i)
    data = i.operands[1]
    items = data.items if isinstance(data, Vector) else (data,)
    unit = SIZES[kind]
    size = unit * len(items)
    if unit not in (4, 8) or size > 16:
        raise k.bad(f"invalid size: {size} bytes")
    space = "shared::cluster" if "shared::cluster" in modifiers else ""
    mask = k.mask()
    hosts = resolve(k, space, address(k, i.operands[0])[0], size, True, mask)
    barriers = resolve(k, space, address(k, i.operands[2])[0], 8, True, mask)
    values = [k.source(item, f"b{8 * unit}") for item in items]
    for n, word in enumerate(join(k, values, unit)):
        stored = k.vec(k.resize(k.varying(word), "i64", False))
        k.do(f"store {WIDE} {stored}, ptr {column(k, n)}, align 64")
    how = reduction(k, i) if reduces else 0
    k.call(
        "void", f"{PREFIX}words_issue", ("ptr", "%context"), (WIDE, hosts), (WIDE, barriers),
        ("i32", mask), ("i64", str(size)), ("i64", str(how)),
    )  # fmt: skip
    k.fault_if_found()
