"""Decode machine code, one instruction at a time.

Source: RDNA3 and RDNA4 ISA documents, chapter "Microcode formats".
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.fields import Words, scalar_source, sized
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction, UnknownInstruction
from ugpu.virtual.amd.isa.decoder.memory import decode_ds, decode_memory, decode_smem
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type
from ugpu.virtual.amd.isa.decoder.vector import (
    decode_vinterp,
    decode_vop1,
    decode_vop2,
    decode_vop3,
    decode_vop3p,
    decode_vopc,
    decode_vopd,
)
from ugpu.virtual.amd.isa.decoder.wide_memory import decode_wide_memory
from ugpu.virtual.amd.isa.targets.target import Memory, Target
from ugpu.virtual.amd.isa.targets.target import target as find_target

GFX11 = find_target("gfx11")
LONGEST = 16  # bytes; no instruction is longer


def decode(code: bytes, offset: int = 0, lanes: int = 32, target: Target = GFX11) -> Instruction:
    """Decode the instruction at byte `offset` (a multiple of 4); `pc` is that offset.

    lanes: lanes of the wave, 32 or 64. In a wave of 64, lane masks are pairs of scalar registers,
    sums of matrices use half as many vector registers, and pairs of operations (VOPD) do not exist.

    Raises UnknownInstruction for anything that is not a known instruction of the target, including
    truncated ones. LLVM's disassembler accepts the same words, but for image, export and LDS
    parameter instructions, which are unknown here.
    """
    words = Words(code, offset, lanes, target)
    first = words.first
    if first >> 31 == 0:
        return _decode_short_vector(words)
    if first >> 30 == 0b10:
        return _decode_scalar(words)
    top = first >> 26
    if top == 0b110101:
        return decode_vop3(words)
    if top == 0b110010:
        return decode_vopd(words)
    if first >> 24 == 0xCC:
        return decode_vop3p(words)
    if first >> 24 == 0xCD:
        return decode_vinterp(words)
    if top == 0b110110:
        return decode_ds(words)
    if top == 0b111101:
        return decode_smem(words)
    memory = decode_memory(words) if target.memory is Memory.GFX11 else decode_wide_memory(words)
    if memory is not None:
        return memory
    raise words.unknown("no compute encoding")


def decode_all(
    code: bytes,
    offset: int = 0,
    end: int | None = None,
    lanes: int = 32,
    target: Target = GFX11,
) -> list[Instruction]:
    """Decode all instructions from `offset` to `end` (default: the end of the code)."""
    found = []
    while offset < (len(code) if end is None else end):
        found.append(decode(code, offset, lanes, target))
        offset += found[-1].size
    return found


def _decode_short_vector(words: Words) -> Instruction:
    opcode = words.first >> 25 & 0x3F
    if opcode == 0x3F:
        return decode_vop1(words)
    if opcode == 0x3E:
        return decode_vopc(words)
    return decode_vop2(words)


def _decode_scalar(words: Words) -> Instruction:
    first = words.first
    if first >> 28 == 0b1011:
        if first >> 23 == 0b101111101:
            return _decode_sop1(words)
        if first >> 23 == 0b101111110:
            return _decode_sopc(words)
        if first >> 23 == 0b101111111:
            return _decode_sopp(words)
        return _decode_sopk(words)
    return _decode_sop2(words)


def _decode_sop2(words: Words) -> Instruction:
    first, opcode = words.first, words.first >> 23 & 0x7F
    row = words.look_up("SOP2", opcode)
    codes = [first & 0xFF, first >> 8 & 0xFF]
    sources = []
    for name in row.srcs:
        if name == "literal":
            sources.append(Operand(Kind.LITERAL, 255, 1, Type.F32, words.literal()))
        else:
            sources.append(scalar_source(words, codes.pop(0), sized(name)))
    dst = words.scalar_destination(first >> 16 & 0x7F, sized(row.dst)) if row.dst else None
    return words.finish(Format.SOP2, row, opcode, dst=dst, srcs=tuple(sources))


def _decode_sop1(words: Words) -> Instruction:
    opcode = words.first >> 8 & 0xFF
    shape = words.look_up("SOP1", opcode)
    dst = None
    if shape.dst:
        dst = words.scalar_destination(words.first >> 16 & 0x7F, sized(shape.dst))
    srcs: tuple[Operand, ...] = ()
    simm16 = 0
    if shape.srcs == ("message",):
        simm16 = words.first & 0xFF
    elif shape.srcs:
        words.check_source(shape, 0, words.first & 0xFF)
        srcs = (scalar_source(words, words.first & 0xFF, sized(shape.srcs[0])),)
    return words.finish(Format.SOP1, shape, opcode, dst=dst, srcs=srcs, simm16=simm16)


def _decode_sopc(words: Words) -> Instruction:
    opcode = words.first >> 16 & 0x7F
    shape = words.look_up("SOPC", opcode)
    srcs = (
        scalar_source(words, words.first & 0xFF, sized(shape.srcs[0])),
        scalar_source(words, words.first >> 8 & 0xFF, sized(shape.srcs[1])),
    )
    return words.finish(Format.SOPC, shape, opcode, srcs=srcs)


def _branch_target(words: Words) -> int:
    simm16 = words.first & 0xFFFF
    return words.pc + 4 + 4 * (simm16 - (simm16 >> 15 << 16))


def _decode_sopp(words: Words) -> Instruction:
    opcode = words.first >> 16 & 0x7F
    shape = words.look_up("SOPP", opcode)
    branches = shape.name == "s_branch" or shape.name.startswith("s_cbranch")
    return words.finish(
        Format.SOPP,
        shape,
        opcode,
        simm16=words.first & 0xFFFF,
        branch_target=_branch_target(words) if branches else None,
    )


def _decode_sopk(words: Words) -> Instruction:
    opcode = words.first >> 23 & 0x1F
    shape = words.look_up("SOPK", opcode)
    simm16 = words.first & 0xFFFF
    register = words.first >> 16 & 0x7F
    if shape.name == "s_version":
        return words.finish(Format.SOPK, shape, opcode, simm16=simm16)
    if shape.name == "s_setreg_imm32_b32":
        value = Operand(Kind.LITERAL, 255, 1, Type.B32, words.literal())
        return words.finish(Format.SOPK, shape, opcode, simm16=simm16, srcs=(value,))
    if shape.name == "s_call_b64":
        return words.finish(
            Format.SOPK,
            shape,
            opcode,
            simm16=simm16,
            dst=words.scalar_destination(register, Type.B64),
            branch_target=_branch_target(words),
        )
    operand = words.scalar_destination(register, Type.B32)
    reads = shape.name.startswith(
        ("s_cmpk", "s_addk", "s_mulk", "s_waitcnt", "s_setreg", "s_cmovk")
    )
    writes = shape.name.startswith(("s_movk", "s_cmovk", "s_addk", "s_mulk", "s_getreg"))
    subvector = shape.name.startswith("s_subvector")
    return words.finish(
        Format.SOPK,
        shape,
        opcode,
        simm16=simm16,
        dst=operand if writes or subvector else None,
        srcs=(operand,) if reads or subvector else (),
        branch_target=_branch_target(words) if subvector else None,
    )


__all__ = ["LONGEST", "UnknownInstruction", "decode", "decode_all"]
