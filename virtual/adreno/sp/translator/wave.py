"""Movement between the lanes of a wave, translated to LLVM IR: shuffles, quads, broadcasts.

Source: Mesa 25.0.7, src/freedreno/isa/ir3-cat5.xml and ir3-cat6.xml, src/freedreno/ir3/
ir3_compiler_nir.c (a rotation is rdown: a lane reads from one above it).
UNSURE: the value that up and down give to lanes whose source is outside of the wave; their own
value here.
"""

from __future__ import annotations

from ugpu.virtual.adreno.sp.operands import TYPES, Kind, Op, Operand
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader.text import constant, lanes

_MODES = {1: "xor", 2: "up", 3: "down", 6: "rup", 7: "rdown"}


def taken_from(e: Registers, element: str, value: str, numbers: str) -> str:
    """Give each lane the value of the lane with some number, through memory. numbers: less than the
    number of lanes."""
    slot = e.lane_slot(element)
    e.do(f"store {e.vector_of(element)} {value}, ptr {slot}")
    wide = e.convert("zext", "i32", "i64", numbers)
    at = e.value(f"getelementptr {element}, ptr {slot}, {e.vector_of('i64')} {wide}")
    bits = element[1:]
    return e.call(
        e.vector_of(element), f"llvm.masked.gather.v{e.lanes}i{bits}.v{e.lanes}p0",
        (e.vector_of("ptr"), at), (e.vector_of("i1"), "splat (i1 true)"),
        (e.vector_of(element), "poison"),
    )  # fmt: skip


def _source_lanes(e: Registers, mode: str, amount: str) -> str:
    """Return the lane that each lane reads."""
    own = lanes(list(range(e.lanes)))
    most = constant("i32", e.lanes - 1)
    if mode == "xor":
        return e.binary("and", "i32", e.binary("xor", "i32", own, amount), most)
    found = e.binary("sub" if mode.endswith("up") else "add", "i32", own, amount)
    if mode.startswith("r"):
        return e.binary("and", "i32", found, most)
    inside = e.compare("ule", "i32", found, most)
    return e.select(inside, "i32", found, own)


def _shuffle(e: Registers, op: Op, turn: int) -> None:
    mode = _MODES.get(op.raw("MODE"))
    if mode is None:
        raise Unsupported(f"mode {op.raw('MODE')} of shfl")
    half = TYPES[op.raw("TYPE")] in ("f16", "u16", "s16", "u8")
    value = e.bits_of(Operand(Kind.REGISTER, op.raw("SRC1"), half))
    scope = op.scope.inner("SRC2")
    amount = constant("i32", scope.bits) if op.flag("SRC2_IM") else e.word(scope.bits)
    element = "i16" if half else "i32"
    found = taken_from(e, element, value, _source_lanes(e, mode, amount))
    e.store(Operand(Kind.REGISTER, op.raw("DST"), half), 0, found)


def components(op: Op) -> list[int]:
    """Return the components that an instruction of category 5 writes."""
    mask = op.raw("WRMASK")
    return [k for k in range(4) if mask >> k & 1]


def _operands(e: Registers, op: Op) -> tuple[str, str, Operand]:
    if components(op) != [0]:
        raise Unsupported(f"{op.name} of several components")
    half = not op.raw("FULL")
    source = Operand(Kind.REGISTER, op.scope.inner("SRC1").bits, half)
    target = Operand(Kind.REGISTER, op.raw("DST"), bool(op.raw("DST_HALF")))
    if target.half != half:
        raise Unsupported(f"{op.name} that converts")
    return e.bits_of(source), "i16" if half else "i32", target


def _quad(e: Registers, op: Op, turn: int) -> None:
    value, element, target = _operands(e, op)
    turn_of = {"horiz": 1, "vert": 2, "diag": 3}.get(op.name.rsplit(".", 1)[1])
    if turn_of is not None:
        found = e.shuffle(element, value, [lane ^ turn_of for lane in range(e.lanes)])
    else:
        number = e.bits_of(Operand(Kind.REGISTER, op.scope.inner("SRC2").bits, element == "i16"))
        number = e.convert("zext", element, "i32", number)
        number = e.binary("and", "i32", number, constant("i32", 3))
        quads = lanes([lane & ~3 for lane in range(e.lanes)])
        found = taken_from(e, element, value, e.binary("or", "i32", number, quads))
    e.store(target, 0, found)


def _broadcast_active(e: Registers, op: Op, turn: int) -> None:
    """Give the upper half of each cluster the value of the last active lane in its lower half."""
    value, element, target = _operands(e, op)
    half = (2 << op.raw("W")) // 2
    if half >= e.lanes:
        return
    chosen = value
    # Each lane's value becomes that of the nearest active lane at or below it in its half.
    has = e.lane_mask()
    step = 1
    while step < half:
        order = [lane - step if lane % half >= step else lane for lane in range(e.lanes)]
        below, below_has = e.shuffle(element, chosen, order), e.shuffle("i1", has, order)
        chosen = e.select(has, element, chosen, below)
        has = e.binary("or", "i1", has, below_has)
        step *= 2
    order = [lane // half * half - 1 if lane // half % 2 else lane for lane in range(e.lanes)]
    found, known = e.shuffle(element, chosen, order), e.shuffle("i1", has, order)
    upper = (
        "<"
        + ", ".join(f"i1 {'true' if lane // half % 2 else 'false'}" for lane in range(e.lanes))
        + ">"
    )
    known = e.binary("and", "i1", known, upper)
    old = e.bits_of(target)
    e.store(target, 0, e.select(known, element, found, old))


def _lane_number(e: Registers, op: Op, turn: int) -> None:
    e.set_word(
        op.raw("DST"), e.binary("or", "i32", lanes(list(range(e.lanes))), constant("i32", 0))
    )


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {
        "shfl": _shuffle, "brcst.active": _broadcast_active, "getfiberid": _lane_number,
    }  # fmt: skip
    for name in ("brcst", "horiz", "vert", "diag"):
        found[f"quad_shuffle.{name}"] = _quad
    return found
