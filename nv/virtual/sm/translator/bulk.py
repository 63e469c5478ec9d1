"""Copies in bulk (cp.async.bulk) and the proxy fences they need.

Copies that take a tensor map are refused: the map is an opaque object that no document lays out.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Bulk copy", "Async proxy".
"""

from __future__ import annotations

from nv.virtual.sm.ptx.module import Instruction, Integer, Operand
from nv.virtual.sm.runtime import async_layout as flight
from nv.virtual.sm.runtime.resolve import PREFIX, WIDE
from nv.virtual.sm.translator.kernel import Kernel
from nv.virtual.sm.translator.memory import address, resolve

_LOAD_FORM = {"mbarrier::complete_tx::bytes", "global"}
_STORE_FORM = {"bulk_group", "global", "shared::cta"}
_QUIET = {"async", "bulk", "L2::cache_hint"}


def groups_left(k: Kernel, i: Instruction) -> int:
    """Return how many groups may stay in flight."""
    count = i.operands[0] if len(i.operands) == 1 else None
    if not isinstance(count, Integer) or not 0 <= count.value < 1 << 20:
        raise k.bad("a constant number of groups is wanted")
    return count.value


def written(k: Kernel, hosts: str, mask: str, size: int) -> None:
    """Note that lanes write to shared memory through the generic proxy."""
    k.call("void", f"{PREFIX}proxy_written", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
           ("i64", str(size)))  # fmt: skip


def published(k: Kernel) -> None:
    """Note that the warp tells others what it has done."""
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
    elif modifiers - _QUIET - {"shared::cluster", "shared::cta"} == _LOAD_FORM:
        _begin(k, i, flight.LOAD)
    elif modifiers - _QUIET == _STORE_FORM:
        _begin(k, i, flight.STORE)
    else:
        raise k.unsupported()


def _check_size(k: Kernel, size: Operand | None) -> None:
    if isinstance(size, Integer) and size.value % 16:
        raise k.bad(f"{size.value} bytes; a multiple of 16 is wanted")


def _begin(k: Kernel, i: Instruction, kind: int) -> None:
    operands = list(i.operands)
    if "L2::cache_hint" in i.modifiers:
        operands.pop()
    if len(operands) != (4 if kind == flight.LOAD else 3):
        raise k.bad("two addresses, a size and for loads an mbarrier object are wanted")
    _check_size(k, operands[2])
    inside, outside = operands[:2] if kind == flight.LOAD else (operands[1], operands[0])
    mask = k.mask()
    size = k.vec(k.source(operands[2], "u32"))
    there = k.vec(address(k, outside)[0])
    hosts = resolve(k, "shared", address(k, inside)[0], 16, kind == flight.LOAD, mask)
    barriers = "zeroinitializer"
    if kind == flight.LOAD:
        barriers = resolve(k, "shared", address(k, operands[3])[0], 8, True, mask)
    k.call(
        "void", f"{PREFIX}bulk_issue", ("ptr", "%context"), ("i64", str(kind)), (WIDE, there),
        (WIDE, hosts), ("<32 x i32>", size), (WIDE, barriers), ("i32", mask),
    )  # fmt: skip
    k.fault_if_found()
