"""Accesses of 128 bits as a whole: ld, st, atom.exch and atom.cas of .b128.

Each lane's access is atomic among all worker threads. Lanes go one after another.
Source: PTX ISA 9.1, ld, st, atom: the type .b128.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.runtime import atomics
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access.atomic import access_of
from ugpu.virtual.nvidia.sm.translator.access.bulk import written
from ugpu.virtual.nvidia.sm.translator.access.memory import (
    SHARED_SPACES,
    address,
    column,
    resolve,
    space_at,
)
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader.memory import Access

_BYTES = 16


def _load(k: Kernel, i: Instruction) -> None:
    if len(i.operands) < 2:
        raise k.bad("expected two operands")
    where, known = address(k, i.operands[1])
    k.write(i.operands[0], _access(k, space_at(k, i, known), where, "load", ()))


def _store(k: Kernel, i: Instruction) -> None:
    if len(i.operands) < 2:
        raise k.bad("expected two operands")
    where, known = address(k, i.operands[0])
    space = space_at(k, i, known)
    if space in ("const", "param"):
        raise k.bad(f"memory of .{space} cannot be written")
    _access(k, space, where, "store", (k.source(i.operands[1], "b128"),), Access.WRITE)


def _exchange(k: Kernel, i: Instruction) -> None:
    operation = next((m for m in i.modifiers if m in ("exch", "cas")), "")
    if not operation:
        raise k.unsupported()
    given = i.operands[2:4] if operation == "cas" else i.operands[2:3]
    if len(given) != (2 if operation == "cas" else 1):
        raise k.bad("the wrong number of operands")
    where, known = address(k, i.operands[1])
    words = [k.source(operand, "b128") for operand in given]
    space, kind = space_at(k, i, known), access_of(i)
    k.write(i.operands[0], _access(k, space, where, operation, words, kind))


def _access(
    k: Kernel, space: str, where: Value, operation: str, given: Sequence[Value],
    access: Access = Access.READ,
) -> Value:  # fmt: skip
    """Apply one of `atomics.WIDE_OPERATIONS` in each lane; return the previous values."""
    mask = k.mask()
    hosts = resolve(k, space, k.varying(where), _BYTES, access, mask)
    if access.writes and k.proxies and space in SHARED_SPACES:
        written(k, hosts, mask, _BYTES)
    for n, value in enumerate(given):
        for half in range(2):
            moved = k.op("lshr", value, number("i128", 64)) if half else value
            word = k.cast("trunc", moved, "i64")
            k.do(f"store {WIDE} {k.vec(word)}, ptr {column(k, 1 + 2 * n + half)}, align 64")
    which = atomics.WIDE_OPERATIONS.index(operation)
    k.call("void", f"{PREFIX}atomic_128", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
           ("i32", str(which)))  # fmt: skip
    halves = [
        Value(k.value(f"load {WIDE}, ptr {column(k, 1 + half)}, align 64"), "i64", False)
        for half in range(2)
    ]
    low, high = (k.cast("zext", half, "i128") for half in halves)
    return k.op("or", low, k.op("shl", high, number("i128", 64)))


def handlers() -> dict[str, Handler]:
    """Return the emitters, by name with the suffix `.wide`."""
    return {"ld.wide": _load, "ldu.wide": _load, "st.wide": _store, "atom.wide": _exchange}
