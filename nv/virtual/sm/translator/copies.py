"""Asynchronous copies: cp.async and its groups. They are done at once; waiting finds them done.

Source: PTX ISA 8.x, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

from __future__ import annotations

from nv.virtual.sm.ptx.module import Instruction, Integer, Register
from nv.virtual.sm.translator.handler import Handler
from nv.virtual.sm.translator.kernel import Kernel
from nv.virtual.sm.translator.mbarrier import act
from nv.virtual.sm.translator.memory import address, load_lanes, store_lanes
from nv.virtual.sm.translator.value import Value, number


def _copy(k: Kernel, i: Instruction) -> None:
    modifiers = set(i.modifiers)
    if "async" not in modifiers or modifiers & {"bulk", "reduce"}:
        raise k.unsupported()
    if "mbarrier" in modifiers:
        if "noinc" in modifiers:  # otherwise it counts itself in and arrives: nothing changes
            act(k, "arrive", i.operands[0], number("i64", 1), True)
        return
    if modifiers & {"commit_group", "wait_group", "wait_all"}:
        return
    if len(i.operands) not in (3, 4) or not isinstance(i.operands[2], Integer):
        raise k.bad("an address to write, one to read and a size are wanted")
    size = i.operands[2].value
    if size not in ((16,) if "cg" in modifiers else (4, 8, 16)):
        raise k.bad(f"copies of {size} bytes")
    if "shared" not in modifiers and "shared::cta" not in modifiers:
        raise k.unsupported()
    target = k.varying(address(k, i.operands[0])[0])
    source = k.varying(address(k, i.operands[1])[0])
    mask = k.mask()
    reading = mask
    keep: Value | None = None
    if len(i.operands) == 4:
        last = i.operands[3]
        if isinstance(last, Register) and last.type == "pred":  # true: zeros instead of the source
            ignored = k.mask_bits(k.source(last, "pred"))
            reading = k.value(f"and i32 {mask}, {k.value(f'xor i32 {ignored}, -1')}")
        else:
            keep = k.source(last, "u32")
            reads = k.mask_bits(k.cmp("ne", k.varying(keep), number("i32", 0)))
            reading = k.value(f"and i32 {mask}, {reads}")
    words = load_lanes(k, "global", source, size, reading)
    if reading != mask:
        there = k.from_bits(reading)
        words = [k.choose(there, word, number(word.element, 0)) for word in words]
    if keep is not None:
        words = [_cut(k, word, keep, n * word.width // 8) for n, word in enumerate(words)]
    store_lanes(k, "shared", target, size, mask, words)


def _cut(k: Kernel, word: Value, keep: Value, start: int) -> Value:
    """Zero the bytes of a word from byte `keep` of the copy on."""
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
    """Return the emitters by name."""
    return {"cp": _copy}
