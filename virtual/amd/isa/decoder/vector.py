"""Decode the vector ALU encodings: VOP1, VOP2, VOPC, VOP3, VOP3SD, VOP3P, VOPD; DPP forms too."""

from __future__ import annotations

from dataclasses import replace

from ugpu.virtual.amd.isa.decoder.fields import Words, literal_bits, scalar_source, sized
from ugpu.virtual.amd.isa.decoder.formats import Dpp8, Dpp16, Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type
from ugpu.virtual.amd.isa.targets.table import Row
from ugpu.virtual.amd.isa.targets.target import Memory

_DPP16, _DPP8, _DPP8_FI = 250, 233, 234
_SCALAR_DESTINATIONS = ("v_readfirstlane_b32", "v_readlane_b32", "v_s_")  # beginnings of names
# Sources of the halves of a pair, in their words.
_FIELDS_X, _FIELDS_Y = 0x1FFFF, 0x1FFFF << 32
_OP_SEL_HI_2, _OP_SEL_HI = 1 << 14, 3 << 27  # in the first and in the second word
_CARRIES = {
    "v_add_co_ci_u32", "v_sub_co_ci_u32", "v_subrev_co_ci_u32", "v_add_co_u32", "v_sub_co_u32",
    "v_subrev_co_u32", "v_div_scale_f32", "v_div_scale_f64", "v_mad_u64_u32", "v_mad_i64_i32",
    "v_mad_co_u64_u32", "v_mad_co_i64_i32",
}  # fmt: skip
# VOP3P opcodes where op_sel_hi selects f16 (1) or f32 (0) per source, and neg_hi |source|.
_MIXED = ("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16")


def _width(kind: Type) -> int:
    return max(1, kind.bits // 32)


def _mask(words: Words, kind: Kind) -> Operand:
    """Return all lanes of VCC or EXEC."""
    return Operand(kind, 0, _width(words.mask), words.mask)


def _vector(words: Words, index: int, kind: Type, halves: bool) -> Operand:
    """Return a vector register; halves: bit 7 of a 16-bit operand selects the upper half."""
    if halves and kind.bits == 16:
        return Operand(Kind.VGPR, index & 0x7F, 1, kind, high=bool(index >> 7))
    return words.vector(index, _width(kind), kind)


def _source(words: Words, code: int, kind: Type, halves: bool, name: str) -> Operand:
    if code >= 256:
        return _vector(words, code - 256, kind, halves)
    return scalar_source(words, code, kind, signed=name.endswith("i64"), vector=True)


def _modified(operand: Operand, absolute: int, neg: int) -> Operand:
    if absolute or neg:
        return replace(operand, absolute=bool(absolute), neg=bool(neg))
    return operand


def _dpp_control(words: Words, code: int, row: Row) -> tuple[Dpp16 | Dpp8, int]:
    """Read the DPP word; return the control and the word (source register and modifiers)."""
    if (_DPP16 if code == _DPP16 else _DPP8) not in row.dpp:
        raise words.unknown("the instruction has no DPP form")
    word = words.next()
    if code == _DPP16:
        if word & row.plain:
            raise words.unknown("the instruction has no modifiers of its sources")
        control = word >> 8 & 0x1FF
        valid = (
            control < 0x100
            or control in (0x140, 0x141)
            or (control >> 4 in (0x10, 0x11, 0x12) and control & 0xF)
            or control >> 4 in (0x15, 0x16)
        )
        if not valid:
            raise words.unknown("unknown DPP control")
        return Dpp16(
            control=control,
            row_mask=word >> 28,
            bank_mask=word >> 24 & 0xF,
            bound_ctrl=bool(word >> 19 & 1),
            fetch_inactive=bool(word >> 18 & 1),
        ), word
    selectors = tuple(word >> (8 + 3 * lane) & 7 for lane in range(8))
    return Dpp8(selectors, code == _DPP8_FI), word & 0xFF


def _short_sources(
    words: Words, shape: Row, second: int | None
) -> tuple[list[Operand], Dpp16 | Dpp8 | None]:
    """Decode src0 (9 bits) and, if any, the second source (a vector register) of a short form."""
    code = words.first & 0x1FF
    kinds = [sized(kind) for kind in shape.srcs if kind not in ("literal", "mask")]
    dpp: Dpp16 | Dpp8 | None = None
    if code in (_DPP16, _DPP8, _DPP8_FI):
        dpp, word = _dpp_control(words, code, shape)
        sources = [_vector(words, word & 0xFF, kinds[0], halves=True)]
        if isinstance(dpp, Dpp16) and sources[0].type is not Type.B16:
            sources[0] = _modified(sources[0], word >> 21 & 1, word >> 20 & 1)
        modifiers = word >> 22 if isinstance(dpp, Dpp16) else 0
    else:
        words.check_source(shape, 0, code)
        sources = [_source(words, code, kinds[0], True, shape.name)]
        modifiers = 0
    if second is not None:
        operand = _vector(words, second, kinds[1], halves=True)
        if operand.type is not Type.B16:  # modifiers of 16-bit integers have no effect
            operand = _modified(operand, modifiers >> 1 & 1, modifiers & 1)
        sources.append(operand)
    return sources, dpp


def decode_vop1(words: Words) -> Instruction:
    """Decode a one-source operation."""
    opcode = words.first >> 9 & 0xFF
    shape = words.look_up("VOP1", opcode)
    if not shape.dst:
        return words.finish(Format.VOP1, shape, opcode)
    sources, dpp = _short_sources(words, shape, None)
    field = words.first >> 17 & 0xFF
    kind = sized(shape.dst)
    if shape.name.startswith(_SCALAR_DESTINATIONS):
        dst = words.scalar_destination(field, kind)
    else:
        dst = _vector(words, field, kind, halves=True)
    return words.finish(Format.VOP1, shape, opcode, dst=dst, srcs=tuple(sources), dpp=dpp)


def decode_vop2(words: Words) -> Instruction:
    """Decode a two-source operation, with its literal for fmamk and fmaak."""
    opcode = words.first >> 25 & 0x3F
    shape = words.look_up("VOP2", opcode)
    kind = sized(shape.dst)
    sources, dpp = _short_sources(words, shape, words.first >> 9 & 0xFF)
    if "literal" in shape.srcs:
        constant = Operand(
            Kind.LITERAL, 255, 1, kind, literal_bits(words.literal(), kind, signed=False)
        )
        sources.insert(shape.srcs.index("literal"), constant)
    if "mask" in shape.srcs:
        sources.append(_mask(words, Kind.VCC))
    return words.finish(
        Format.VOP2,
        shape,
        opcode,
        dst=_vector(words, words.first >> 17 & 0xFF, kind, halves=True),
        sdst=_mask(words, Kind.VCC) if shape.name in _CARRIES else None,
        srcs=tuple(sources),
        dpp=dpp,
    )


def decode_vopc(words: Words) -> Instruction:
    """Decode a comparison."""
    opcode = words.first >> 17 & 0xFF
    shape = words.look_up("VOPC", opcode)
    sources, dpp = _short_sources(words, shape, words.first >> 9 & 0xFF)
    sdst = _mask(words, Kind.EXEC if shape.name.startswith("v_cmpx") else Kind.VCC)
    return words.finish(Format.VOPC, shape, opcode, sdst=sdst, srcs=tuple(sources), dpp=dpp)


def _long_sources(
    words: Words, shape: Row, second: int
) -> tuple[list[Operand], Dpp16 | Dpp8 | None]:
    """Decode up to three 9-bit sources of the 64-bit encodings, without their modifiers."""
    codes = [second >> (9 * number) & 0x1FF for number in range(len(shape.srcs))]
    dpp: Dpp16 | Dpp8 | None = None
    register = 0
    if codes and codes[0] in (_DPP16, _DPP8, _DPP8_FI):
        dpp, word = _dpp_control(words, codes[0], shape)
        register = word & 0xFF
    sources = []
    for number, (code, name) in enumerate(zip(codes, shape.srcs, strict=True)):
        kind = words.mask if name == "mask" else sized(name)
        if number or dpp is None:
            words.check_source(shape, number, code)
        if number == 0 and dpp is not None:
            sources.append(words.vector(register, 1, kind))
        elif name == "mask":
            if code >= 256:
                raise words.unknown("a mask must not be a vector register")
            sources.append(scalar_source(words, code, kind))
        else:
            sources.append(_source(words, code, kind, False, shape.name))
    return sources, dpp


def decode_vop3(words: Words) -> Instruction:
    """Decode the 64-bit encoding of one to three sources, VOP3SD included."""
    second = words.next()
    opcode = words.first >> 16 & 0x3FF
    shape = words.look_up("VOP3", opcode)
    first = words.first & ~shape.ignored
    second &= ~(shape.ignored >> 32)
    sources, dpp = _long_sources(words, shape, second)
    carries = shape.name in _CARRIES
    absolute = 0 if carries else first >> 8 & 7
    selected = 0 if carries else first >> 11 & 0xF
    neg = second >> 29
    for number, operand in enumerate(sources):
        if operand.type.bits == 16 and selected >> number & 1:
            operand = replace(operand, high=True)
        sources[number] = _modified(operand, absolute >> number & 1, neg >> number & 1)
    dst, sdst = _long_destinations(words, shape, selected)
    return words.finish(
        Format.VOP3SD if carries else Format.VOP3,
        shape,
        opcode,
        dst=dst,
        sdst=sdst,
        srcs=tuple(sources),
        omod=second >> 27 & 3,
        clamp=bool(first >> 15 & 1),
        op_sel=tuple(selected >> bit & 1 for bit in range(4)),
        dpp=dpp,
    )


def _long_destinations(
    words: Words, shape: Row, selected: int
) -> tuple[Operand | None, Operand | None]:
    field = words.first & 0xFF
    if shape.name.startswith("v_cmpx"):
        return None, _mask(words, Kind.EXEC)
    if shape.dst == "mask":
        return None, words.scalar_destination(field, words.mask)
    if not shape.dst:
        return None, None
    kind = sized(shape.dst)
    if shape.name.startswith(_SCALAR_DESTINATIONS):
        return words.scalar_destination(field, kind), None
    dst = words.vector(field, _width(kind), kind)
    if kind.bits == 16 and selected & 8:
        dst = replace(dst, high=True)
    if shape.name in _CARRIES:
        return dst, words.scalar_destination(words.first >> 8 & 0x7F, words.mask)
    return dst, None


def decode_vop3p(words: Words) -> Instruction:
    """Decode a packed, mixed, dot or matrix operation."""
    second = words.next()
    opcode = words.first >> 16 & 0x7F
    shape = words.look_up("VOP3P", opcode)
    first = words.first & ~shape.ignored | shape.ignored & _OP_SEL_HI_2
    second = second & ~(shape.ignored >> 32) | shape.ignored >> 32 & _OP_SEL_HI
    if words.lanes == 64 and shape.name.startswith("v_wmma_"):  # as many sums in more lanes
        shape = replace(shape, dst="b128", srcs=(*shape.srcs[:2], "b128"))
    selected = first >> 11 & 7
    selected_hi = second >> 27 & 3 | (first >> 14 & 1) << 2
    neg_lo, neg_hi = second >> 29, first >> 8 & 7
    mixed = shape.name in _MIXED
    if mixed:
        kinds = tuple("f16" if selected_hi >> number & 1 else "f32" for number in range(3))
        sources, dpp = _long_sources(words, replace(shape, srcs=kinds), second)
        for number, operand in enumerate(sources):
            if operand.type is Type.F16 and selected >> number & 1:
                operand = replace(operand, high=True)
            sources[number] = _modified(operand, neg_hi >> number & 1, neg_lo >> number & 1)
    else:
        sources, dpp = _long_sources(words, shape, second)
    if dpp is not None and any(operand.is_constant for operand in sources):
        raise words.unknown("an operation of permuted lanes must not have constants")
    kind = sized(shape.dst)
    dst = words.vector(first & 0xFF, _width(kind), kind)
    if shape.name == "v_fma_mixhi_f16":
        dst = replace(dst, high=True)
    count = range(len(sources))
    return words.finish(
        Format.VOP3P,
        shape,
        opcode,
        dst=dst,
        srcs=tuple(sources),
        clamp=bool(first >> 15 & 1),
        op_sel=tuple(selected >> number & 1 for number in count),
        op_sel_hi=tuple(selected_hi >> number & 1 for number in count),
        neg_lo=tuple(neg_lo >> number & 1 for number in count),
        neg_hi=tuple(neg_hi >> number & 1 for number in count),
        dpp=dpp,
    )


def decode_vinterp(words: Words) -> Instruction:
    """Decode the interpolation of a pixel's attributes. All sources are vector registers."""
    second = words.next()
    opcode = words.first >> 16 & (0x1F if words.target.memory is Memory.GFX12 else 0x7F)
    shape = words.look_up("VINTERP", opcode)
    first = words.first & ~shape.ignored
    selected = first >> 11 & 0xF
    sources = []
    for number, name in enumerate(shape.srcs):
        code = second >> 9 * number & 0x1FF
        words.check_source(shape, number, code)
        operand = words.vector(code & 0xFF, 1, sized(name))
        if operand.type is Type.F16 and selected >> number & 1:
            operand = replace(operand, high=True)
        sources.append(_modified(operand, 0, second >> (29 + number) & 1))
    dst = words.vector(first & 0xFF, 1, sized(shape.dst))
    if dst.type is Type.F16 and selected & 8:
        dst = replace(dst, high=True)
    return words.finish(
        Format.VINTERP,
        shape,
        opcode,
        dst=dst,
        srcs=tuple(sources),
        clamp=bool(first >> 15 & 1),
        op_sel=tuple(selected >> bit & 1 for bit in range(4)),
        simm16=first >> 8 & 7,
    )


def decode_vopd(words: Words) -> Instruction:
    """Decode a pair of operations that execute together."""
    first = words.first
    second = words.next()
    opcode_x, opcode_y = first >> 22 & 0xF, first >> 17 & 0x1F
    if words.lanes == 64:
        raise words.unknown("waves of 64 lanes have no pairs of operations")
    dst_x = second >> 24
    dst_y = (second >> 17 & 0x7F) << 1 | (dst_x & 1 ^ 1)
    row_x, row_y = words.look_up("VOPDX", opcode_x), words.look_up("VOPDY", opcode_y)
    words.check(row_x.fixed & _FIELDS_X, 0)
    words.check(row_y.fixed & _FIELDS_Y, 0)
    # The sources of both first: they may read the literal that the halves share.
    sources_x = _half_sources(words, row_x, first & 0x1FF, first >> 9 & 0xFF)
    sources_y = _half_sources(words, row_y, second & 0x1FF, second >> 9 & 0xFF)
    x = _half(words, row_x, dst_x, sources_x)
    y = _half(words, row_y, dst_y, sources_y)
    return words.made(Format.VOPD, f"{x.name}::{y.name}", "", opcode_x, x=x, y=y)


def _half_sources(words: Words, shape: Row, src0: int, src1: int) -> tuple[Operand, ...]:
    sources: list[Operand] = []
    for name in shape.srcs:
        if name == "literal":
            sources.append(Operand(Kind.LITERAL, 255, 1, Type.F32, words.literal()))
        elif not sources:
            sources.append(_source(words, src0, sized(name), False, shape.name))
        else:
            sources.append(words.vector(src1, 1, sized(name)))
    if shape.name == "v_dual_cndmask_b32":
        sources.append(_mask(words, Kind.VCC))
    return tuple(sources)


def _half(words: Words, shape: Row, dst: int, sources: tuple[Operand, ...]) -> Instruction:
    target = words.vector(dst, 1, sized(shape.dst))
    return words.made(Format.VOPD, shape.operation, shape.name, 0, dst=target, srcs=sources)
