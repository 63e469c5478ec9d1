"""Movement of data between lanes: DPP, permlane, readlane and writelane, translated to LLVM IR.

Source: RDNA3 ISA document, "Data parallel processing" and the chapters of VOP1 and VOP3 opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Dpp8, Dpp16, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.text import constant, lanes

_ROW = 16


def dpp16_sources(control: int, lanes: int) -> list[int | None]:
    """Return the lane that each lane reads; None beyond the end of the row."""
    found: list[int | None] = []
    amount = control & 0xF
    for lane in range(lanes):
        row, inside = lane & ~0xF, lane & 0xF
        source: int
        if control < 0x100:
            source = inside & ~3 | control >> 2 * (inside & 3) & 3
        elif control >> 4 == 0x10:  # row_shl: from the lanes above
            source = inside + amount
        elif control >> 4 == 0x11:  # row_shr: from the lanes below
            source = inside - amount
        elif control >> 4 == 0x12:  # row_ror
            source = (inside - amount) % _ROW
        elif control == 0x140:
            source = 15 - inside
        elif control == 0x141:
            source = inside ^ 7
        elif control >> 4 == 0x15:
            source = amount
        elif control >> 4 == 0x16:
            source = inside ^ amount
        else:
            raise Unsupported(f"DPP control {control:#x}")
        found.append(row + source if 0 <= source < _ROW else None)
    return found


def dpp8_sources(selectors: tuple[int, ...], lanes: int) -> list[int | None]:
    """Return the lane that each lane reads within its group of eight."""
    return [lane & ~7 | selectors[lane & 7] for lane in range(lanes)]


def _bits(flags: list[bool]) -> str:
    return "<" + ", ".join(f"i1 {'true' if flag else 'false'}" for flag in flags) + ">"


def apply_dpp(e: Registers, i: Instruction) -> None:
    """Permute the current instruction's first source, and set which lanes may be written.

    A lane whose source is outside its row, or disabled without fetch_inactive, reads zero if
    bound_ctrl is set; otherwise it is not written.
    """
    control = i.dpp
    assert control is not None
    operand = i.srcs[0]
    if operand.kind is not Kind.VGPR or operand.width != 1:
        raise Unsupported("DPP requires a single vector register")
    if isinstance(control, Dpp8):
        sources, zero_invalid = dpp8_sources(control.selectors, e.lanes), True
        written = [True] * e.lanes
    else:
        assert isinstance(control, Dpp16)
        sources, zero_invalid = dpp16_sources(control.control, e.lanes), control.bound_ctrl
        written = [
            bool(control.row_mask >> lane // 16 & 1 and control.bank_mask >> lane % 16 // 4 & 1)
            for lane in range(e.lanes)
        ]
    order = [lane if source is None else source for lane, source in enumerate(sources)]
    inside = [source is not None for source in sources]
    value = e.shuffle("i32", e.vector_register(operand.index), order)
    valid: str | None = None if all(inside) else _bits(inside)
    exec_mask = e.exec_mask()
    if exec_mask is not None and not control.fetch_inactive:
        enabled = e.shuffle("i1", exec_mask, order)
        valid = enabled if valid is None else e.binary("and", "i1", enabled, valid)
    mask: str | None = None if all(written) else _bits(written)
    if valid is not None:
        if zero_invalid:
            value = e.select(valid, "i32", value, constant("i32", 0))
        else:
            mask = valid if mask is None else e.binary("and", "i1", valid, mask)
    e.override = (operand, value)
    e.extra_mask = mask


def first_lane(e: Registers) -> str:
    """Return the number of the first enabled lane as i32; 0 if no lane is enabled."""
    if e.full:
        return "0"
    count = e.call(e.bits, f"llvm.cttz.{e.bits}", (e.bits, e.exec()), ("i1", "false"))
    if e.wide:
        count = e.value(f"trunc {e.bits} {count} to i32")
    return e.value(f"and i32 {count}, {e.lanes - 1}")


def _read_first_lane(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    if i.srcs[0].is_vector:
        vector = e.vector_register(i.srcs[0].index)
        e.set_scalar(i.dst, e.lane("i32", vector, first_lane(e)))
    else:
        e.set_scalar(i.dst, e.scalar(i.srcs[0]))


def _lane(e: Registers, value: str) -> str:
    most = e.lanes - 1
    return str(int(value) & most) if value.isdigit() else e.value(f"and i32 {value}, {most}")


def _read_lane(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    lane = _lane(e, e.scalar(i.srcs[1]))
    vector = e.vector_register(i.srcs[0].index)
    e.set_scalar(i.dst, e.lane("i32", vector, lane))


def _write_lane(e: Registers, i: Instruction) -> None:
    """Write one lane, whether enabled or not."""
    assert i.dst is not None
    value, lane = e.scalar(i.srcs[0]), _lane(e, e.scalar(i.srcs[1]))
    old = e.vector_register(i.dst.index)
    new = e.value(f"insertelement {e.vector} {old}, i32 {value}, i32 {lane}")
    e.store_vector(i.dst.index, new)


def gather_lanes(e: Registers, vector: str, indices: str) -> str:
    """Permute lanes by a vector of lane numbers, using memory."""
    slot = e.scratch_vector()
    e.do(f"store {e.vector} {vector}, ptr {slot}")
    wide = e.convert("zext", "i32", "i64", indices)
    pointers = e.value(f"getelementptr i32, ptr {slot}, {e.vector_of('i64')} {wide}")
    return e.call(
        e.vector, f"llvm.masked.gather.v{e.lanes}i32.v{e.lanes}p0", (e.vector_of("ptr"), pointers),
        (e.vector_of("i1"), "splat (i1 true)"), (e.vector, "poison"),
    )  # fmt: skip


def enabled_at(e: Registers, lane: str) -> str:
    """Return, for each lane, whether EXEC enables the lane whose number is in `lane`."""
    number = e.convert("zext", "i32", e.bits, lane)
    bits = e.binary("lshr", e.bits, e.broadcast(e.bits, e.exec()), number)
    return e.convert("trunc", e.bits, "i1", bits)


def _permute_row(exchange: bool) -> Handler:
    """Read any lane of the own row of 16 (v_permlane16) or of the pair's other row (v_permlanex16).

    The selectors are sixteen 4-bit numbers in two scalars, or, of gfx12's _var instructions, the
    lowest bits of a vector register. op_sel bit 0: disabled lanes may be
    read; bit 1: a lane whose source is disabled reads zero, otherwise it keeps its old value.
    """

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        if i.srcs[1].is_vector:
            selector = e.source(i.srcs[1])
        else:
            low, high = e.scalar(i.srcs[1]), e.scalar(i.srcs[2])
            both = e.broadcast("i64", e.pair(low, high))
            amounts = lanes([4 * (lane & 15) for lane in range(e.lanes)], "i64")
            selector = e.convert("trunc", "i64", "i32", e.binary("lshr", "i64", both, amounts))
        selector = e.binary("and", "i32", selector, constant("i32", 15))
        rows = [lane & ~15 ^ (16 if exchange else 0) for lane in range(e.lanes)]
        lane = e.binary("or", "i32", selector, lanes(rows))
        value = gather_lanes(e, e.source(i.srcs[0]), lane)
        fetch_inactive = bool(i.op_sel and i.op_sel[0])
        bound_ctrl = bool(i.op_sel and i.op_sel[1])
        if not e.full and not fetch_inactive:
            enabled = enabled_at(e, lane)
            other = constant("i32", 0) if bound_ctrl else e.vector_register(i.dst.index)
            value = e.select(enabled, "i32", value, other)
        e.set_vector(i.dst, "i32", value)

    return emit


def _swap_halves(e: Registers, i: Instruction) -> None:
    """Exchange the halves of a wave of 64, reading disabled lanes too; no effect in one of 32."""
    if e.wide and i.dst is not None:
        order = [lane ^ 32 for lane in range(e.lanes)]
        e.set_vector(i.dst, "i32", e.shuffle("i32", e.source(i.srcs[0]), order))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "v_permlane64_b32": _swap_halves,
        "v_readfirstlane_b32": _read_first_lane,
        "v_readlane_b32": _read_lane,
        "v_writelane_b32": _write_lane,
        "v_permlane16_b32": _permute_row(False),
        "v_permlanex16_b32": _permute_row(True),
        "v_permlane16_var_b32": _permute_row(False),
        "v_permlanex16_var_b32": _permute_row(True),
    }
