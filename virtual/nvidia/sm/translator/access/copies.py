"""Asynchronous copies of lanes: cp.async, its groups and its arrivals at mbarrier objects.

The source is read, and the destination is resolved, at once, with all faults. The data arrives when
the program waits for it (`runtime.flights`).
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Non-bulk copy".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Integer, Operand, Register
from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX, WIDE
from ugpu.virtual.nvidia.sm.translator.access import bulk
from ugpu.virtual.nvidia.sm.translator.access.mbarrier import act
from ugpu.virtual.nvidia.sm.translator.access.memory import address, column, load_lanes, resolve
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number


def _copy(k: Kernel, i: Instruction) -> None:
    modifiers = set(i.modifiers)
    if "async" not in modifiers:
        raise k.unsupported()
    if "bulk" in modifiers:
        bulk.emit(k, i)
    elif "mbarrier" in modifiers:
        _arrive(k, i, "noinc" in modifiers)
    elif "commit_group" in modifiers:
        k.call("void", f"{PREFIX}copy_commit", ("ptr", "%context"), ("i32", k.mask()))
    elif "wait_group" in modifiers:
        _wait(k, str(bulk.groups_left(k, i)), "0")
    elif "wait_all" in modifiers:
        _wait(k, "0", "-1")
    else:
        _issue(k, i)


def _wait(k: Kernel, left: str, everything: str) -> None:
    k.call("void", f"{PREFIX}copy_wait", ("ptr", "%context"), ("i32", k.mask()), ("i32", left),
           ("i32", everything))  # fmt: skip
    k.fault_if_found()


def _arrive(k: Kernel, i: Instruction, counted: bool) -> None:
    """Arrive once earlier copies have. counted: the object expects it already; else it is added."""
    if not counted:
        act(k, "join", i.operands[0], number("i64", 0), "shared")
    mask = k.mask()
    where = k.varying(address(k, i.operands[0])[0])
    hosts = resolve(k, "shared" if _shared(i) else "", where, 8, True, mask)
    _begin(k, hosts, mask, 0)


def _shared(i: Instruction) -> bool:
    return bool({"shared", "shared::cta"} & set(i.modifiers))


def _begin(k: Kernel, hosts: str, mask: str, size: int) -> None:
    k.call("void", f"{PREFIX}copy_issue", ("ptr", "%context"), (WIDE, hosts), ("i32", mask),
           ("i32", str(size)))  # fmt: skip


def _issue(k: Kernel, i: Instruction) -> None:
    operands = list(i.operands)
    if "L2::cache_hint" in i.modifiers:
        operands.pop()
    if len(operands) not in (3, 4) or not isinstance(operands[2], Integer):
        raise k.bad("expected an address to write, one to read and a size")
    size = operands[2].value
    if size not in ((16,) if "cg" in i.modifiers else (4, 8, 16)):
        raise k.bad(f"copies of {size} bytes are not valid")
    if not _shared(i) or "global" not in i.modifiers:
        raise k.unsupported()
    target = k.varying(address(k, operands[0])[0])
    source = k.varying(address(k, operands[1])[0])
    mask = k.mask()
    words = _read(k, source, size, mask, operands[3] if len(operands) == 4 else None)
    hosts = resolve(k, "shared", target, size, True, mask)
    if k.proxies:
        bulk.written(k, hosts, mask, size)
    for n, word in enumerate(words):
        data = k.vec(k.resize(k.varying(word), "i64", False))
        k.do(f"store {WIDE} {data}, ptr {column(k, n)}, align 64")
    _begin(k, hosts, mask, size)


def _read(
    k: Kernel, source: Value, size: int, mask: str, last: Operand | None
) -> list[Value]:  # fmt: skip
    """Return the data. last: how many bytes to read, or a predicate that disables reading."""
    reading, keep = mask, None
    if isinstance(last, Register) and last.type == "pred":
        ignored = k.mask_bits(k.source(last, "pred"))
        reading = k.value(f"and i32 {mask}, {k.value(f'xor i32 {ignored}, -1')}")
    elif last is not None:
        keep = k.source(last, "u32")
        reads = k.mask_bits(k.cmp("ne", k.varying(keep), number("i32", 0)))
        reading = k.value(f"and i32 {mask}, {reads}")
    words = load_lanes(k, "global", source, size, reading)
    if reading != mask:
        there = k.from_bits(reading)
        words = [k.choose(there, word, number(word.element, 0)) for word in words]
    if keep is not None:
        words = [_cut(k, word, keep, n * word.width // 8) for n, word in enumerate(words)]
    return words


def _cut(k: Kernel, word: Value, keep: Value, start: int) -> Value:
    """Zero the bytes of a word from byte `keep` of the copy onwards."""
    size = word.width // 8
    left = k.call_op("usub.sat", keep, number("i32", start))
    count = k.call_op("umin", left, number("i32", size))
    whole = k.cmp("eq", count, number("i32", size))
    bits = k.resize(k.op("shl", count, number("i32", 3)), word.element, False)
    safe = k.choose(whole, number(word.element, 0), bits)
    one = number(word.element, 1)
    mask = k.op("sub", k.op("shl", one, safe), one)
    return k.choose(whole, word, k.op("and", word, mask))


def handlers() -> dict[str, Handler]:
    """Return the emitters by name. `translate.handler_of` uses those that end in _async."""
    return {"cp": _copy, "st.async": bulk.words, "red.async": bulk.words}
