"""Instructions of a whole warp: shuffles, votes, matches and reductions.

`flow.Flow.gather` has already waited for the lanes of a mask that were elsewhere.
Source: PTX ISA 8.x, "Data Movement and Conversion Instructions": shfl.sync; "Parallel
Synchronization and Communication Instructions": vote.sync, match.sync, activemask, redux.sync,
elect.sync, bar.warp.sync.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Pair
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.handler import Handler, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader.text import lanes

_VECTOR = "<32 x i32>"


def pick(k: Kernel, value: Value, lane: Value) -> Value:
    """Return, for each lane, the value of the lane that `lane` selects (0..31)."""
    slot = k.at("%context", layout.IO)
    k.do(f"store {_VECTOR} {k.vec(value)}, ptr {slot}, align 64")
    index = k.vec(k.cast("zext", lane, "i64"))
    pointers = k.value(f"getelementptr i32, ptr {slot}, <32 x i64> {index}")
    text = k.call(
        _VECTOR, "llvm.masked.gather.v32i32.v32p0", ("<32 x ptr>", pointers),
        ("<32 x i1>", "splat (i1 true)"), (_VECTOR, "poison"),
    )  # fmt: skip
    return Value(text, "i32", False)


def _running(k: Kernel) -> Value:
    """Return the lanes that execute the instruction, as i32."""
    mask = k.mask()
    return number("i32", 0xFFFFFFFF) if mask == "-1" else Value(mask, "i32", True)


def _shuffle(k: Kernel, i: Instruction) -> None:
    mode = next((m for m in i.modifiers if m in ("up", "down", "bfly", "idx")), "")
    if not mode or type_of(k, i) != "b32":
        raise k.unsupported()
    sync = "sync" in i.modifiers
    if len(i.operands) != (5 if sync else 4):
        raise k.bad("the wrong number of operands")
    a, b, c = (k.source(operand, "b32") for operand in i.operands[1:4])
    if b.bits is None or c.bits is None:
        value, good = _shuffled(k, mode, a, b, c)
    else:
        places, inside = _places(mode, b.bits & 31, c.bits)
        text = k.value(f"shufflevector {_VECTOR} {k.vec(a)}, {_VECTOR} poison, {_VECTOR}"
                       f" {lanes(places)}")  # fmt: skip
        value, good = Value(text, "i32", False), k.each(inside, "i1")
    target = i.operands[0]
    if isinstance(target, Pair):
        k.write(target.first, value)
        k.write(target.second, good)
    else:
        k.write(target, value)


def _places(mode: str, count: int, bounds: int) -> tuple[list[int], list[int]]:
    """Return, for each lane, whose value it gets, and whether that lane is within bounds; count and
    bounds (the operands b and c) are known."""
    clamp, segment = bounds & 31, bounds >> 8 & 31
    places, inside = [], []
    for lane in range(32):
        least = lane & segment
        most = least | clamp & ~segment
        place = {
            "up": lane - count, "down": lane + count, "bfly": lane ^ count,
            "idx": least | count & ~segment,
        }[mode]  # fmt: skip
        good = place >= most if mode == "up" else place <= most
        places.append((place if good else lane) & 31)
        inside.append(int(good))
    return places, inside


def _shuffled(k: Kernel, mode: str, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Return what each lane gets, and whether from a lane within bounds."""
    lane = k.each(list(range(32)))
    count = k.op("and", b, number("i32", 31))
    clamp = k.op("and", c, number("i32", 31))
    segment = k.op("and", k.op("lshr", c, number("i32", 8)), number("i32", 31))
    inverse = k.op("xor", segment, number("i32", 31))
    most = k.op("or", k.op("and", lane, segment), k.op("and", clamp, inverse))
    if mode == "up":
        place = k.op("sub", lane, count)
        good = k.cmp("sge", place, most)
    elif mode == "down":
        place = k.op("add", lane, count)
        good = k.cmp("sle", place, most)
    elif mode == "bfly":
        place = k.op("xor", lane, count)
        good = k.cmp("sle", place, most)
    else:
        least = k.op("and", lane, segment)
        place = k.op("or", least, k.op("and", count, inverse))
        good = k.cmp("sle", place, most)
    source = k.op("and", k.choose(good, place, lane), number("i32", 31))
    return pick(k, k.varying(a), k.varying(source)), good


def _members(k: Kernel, i: Instruction) -> Value:
    """Return, as i32, the running lanes that are in the mask operand."""
    running = _running(k)
    if "sync" not in i.modifiers:
        return running
    return k.op("and", running, k.source(i.operands[-1], "b32"))


def _vote(k: Kernel, i: Instruction) -> None:
    mode = next((m for m in i.modifiers if m in ("all", "any", "uni", "ballot")), "")
    if not mode:
        raise k.unsupported()
    members = _members(k, i)
    condition = k.source(i.operands[1], "pred")
    set_bits = Value(k.mask_bits(condition), "i32", True)
    if condition.bits is not None:
        set_bits = number("i32", -condition.bits)
    yes = k.op("and", set_bits, members)
    if mode == "ballot":
        k.write(i.operands[0], yes)
        return
    some, every = k.cmp("ne", yes, number("i32", 0)), k.cmp("eq", yes, members)
    if mode == "any":
        k.write(i.operands[0], some)
    elif mode == "all":
        k.write(i.operands[0], every)
    else:
        k.write(i.operands[0], k.op("or", every, k.negate(some)))


def _active_mask(k: Kernel, i: Instruction) -> None:
    k.write(i.operands[0], _running(k))


def _match(k: Kernel, i: Instruction) -> None:
    """match.any: return the lanes with the same value; match.all: the mask if all are equal."""
    kind = type_of(k, i)
    if kind not in ("b32", "b64") or "sync" not in i.modifiers:
        raise k.unsupported()
    members = _members(k, i)
    value = k.varying(k.source(i.operands[1], kind))
    if "all" in i.modifiers:
        first = _first_of(k, value, members)
        same = Value(k.mask_bits(k.cmp("eq", value, first)), "i32", True)
        missing = k.op("and", k.op("xor", same, number("i32", -1)), members)
        every = k.cmp("eq", missing, number("i32", 0))
        target = i.operands[0]
        mask = k.choose(every, members, number("i32", 0))
        if isinstance(target, Pair):
            k.write(target.first, mask)
            k.write(target.second, every)
        else:
            k.write(target, mask)
        return
    if "any" not in i.modifiers:
        raise k.unsupported()
    result: Value = number("i32", 0)
    for lane in range(32):
        other = Value(
            k.value(f"extractelement {k.type_of(value)} {value.text}, i32 {lane}"),
            value.element, True,
        )  # fmt: skip
        same = k.cmp("eq", value, other)
        result = k.op("or", result, k.choose(same, number("i32", 1 << lane), number("i32", 0)))
    k.write(i.operands[0], k.op("and", result, members))


def _first_of(k: Kernel, value: Value, members: Value) -> Value:
    lane = k.call("i32", "llvm.cttz.i32", ("i32", members.text), ("i1", "false"))
    lane = k.value(f"and i32 {lane}, 31")
    text = k.value(f"extractelement {k.type_of(value)} {value.text}, i32 {lane}")
    return Value(text, value.element, True)


def _reduce(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    operation = next((m for m in i.modifiers if m in (
        "add", "min", "max", "and", "or", "xor")), "")  # fmt: skip
    if kind == "f32" and operation in ("min", "max"):
        _reduce_floats(k, i, operation)
        return
    if kind not in ("u32", "s32", "b32") or not operation:
        raise k.unsupported()
    members = _members(k, i)
    value = k.varying(k.source(i.operands[1], "b32"))
    signed = kind == "s32"
    name, neutral = operation, 0
    if operation in ("min", "max"):
        name = ("s" if signed else "u") + operation
        limits = {"umin": 0xFFFFFFFF, "umax": 0, "smin": 0x7FFFFFFF, "smax": 0x80000000}
        neutral = limits[name]
    elif operation == "and":
        neutral = 0xFFFFFFFF
    mask = k.from_bits(members.text) if members.bits is None else number("i1", 1)
    if members.bits is not None and members.bits != 0xFFFFFFFF:
        mask = k.from_bits(members.text)
    chosen = k.varying(k.choose(mask, value, number("i32", neutral)))
    text = k.call("i32", f"llvm.vector.reduce.{name}.v32i32", (_VECTOR, chosen.text))
    k.write(i.operands[0], Value(text, "i32", True))


def _reduce_floats(k: Kernel, i: Instruction, operation: str) -> None:
    members = _members(k, i)
    value = k.varying(k.source(i.operands[1], "f32"))
    if "abs" in i.modifiers:
        value = k.call_op("fabs", value)
    mask = k.from_bits(members.text)
    nan = number("float", 0x7FFFFFFF)
    chosen = k.varying(k.choose(mask, value, nan))
    width = 32
    text, kind = chosen.text, "float"
    while width > 1:
        width //= 2
        low = ", ".join(f"i32 {n}" for n in range(width))
        high = ", ".join(f"i32 {n + width}" for n in range(width))
        whole = f"<{2 * width} x {kind}>"
        part = f"<{width} x {kind}>"
        a = k.value(f"shufflevector {whole} {text}, {whole} poison, <{width} x i32> <{low}>")
        b = k.value(f"shufflevector {whole} {text}, {whole} poison, <{width} x i32> <{high}>")
        text = k.call(part, f"llvm.{operation}imumnum.v{width}f32", (part, a), (part, b))
    one = Value(k.value(f"extractelement <1 x float> {text}, i32 0"), "float", True)
    none = k.cmp("uno", one, one)
    if "NaN" in i.modifiers:
        lost = k.op("and", Value(k.mask_bits(k.cmp("uno", value, value)), "i32", True), members)
        none = k.op("or", none, k.cmp("ne", lost, number("i32", 0)))
    k.write(i.operands[0], k.choose(none, nan, one))


def _elect(k: Kernel, i: Instruction) -> None:
    """Choose the lowest lane of the mask."""
    target = i.operands[0]
    members = _members(k, i)
    lane = Value(k.call("i32", "llvm.cttz.i32", ("i32", members.text), ("i1", "false")), "i32",
                 True)  # fmt: skip
    chosen = k.cmp("eq", k.each(list(range(32))), lane)
    if isinstance(target, Pair):
        k.write(target.first, lane)
        k.write(target.second, chosen)
    else:
        k.write(target, lane)


def _barrier_result(k: Kernel, i: Instruction) -> None:
    """Return the result of bar.red, after the barrier: a number of lanes, or whether it is 0."""
    found = Value(k.state(layout.STATE_REDUCED, "i32"), "i32", True)
    if "popc" in i.modifiers:
        k.write(i.operands[0], found)
    else:
        wanted = "eq" if "and" in i.modifiers else "ne"
        k.write(i.operands[0], k.cmp(wanted, found, number("i32", 0)))


def _warp_barrier(k: Kernel, i: Instruction) -> None:
    """bar.warp.sync: no-op, because the lanes have already been gathered."""
    if i.name not in ("bar", "barrier") or "warp" not in i.modifiers:
        raise k.unsupported()


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "shfl": _shuffle, "vote": _vote, "activemask": _active_mask, "match": _match,
        "redux": _reduce, "elect": _elect, "bar": _warp_barrier, "barrier": _warp_barrier,
        "bar.result": _barrier_result,
    }  # fmt: skip
