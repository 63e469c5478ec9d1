"""Decode the memory encodings: SMEM, DS, FLAT, GLOBAL, SCRATCH, MUBUF, MTBUF."""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder import opcodes
from ugpu.virtual.amd.isa.decoder.fields import Words
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type

_NULL = 124
_WIDE = {
    1: Type.B32, 2: Type.B64, 3: Type.B96, 4: Type.B128, 8: Type.B256, 16: Type.B512,
}  # fmt: skip


def _vector(words: Words, index: int, width: int) -> Operand | None:
    return words.vector(index, width, _WIDE[width]) if width else None


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def decode_smem(words: Words) -> Instruction:
    """Decode a scalar load or cache operation."""
    first = words.first
    second = words.next()
    opcode = first >> 18 & 0xFF
    shape = words.look_up(opcodes.smem(), opcode)
    if not shape.data:
        return words.finish(Format.SMEM, shape, opcode)
    base = words.scalar_register((first & 0x3F) << 1, shape.base, _WIDE[shape.base])
    if base is None:
        raise words.unknown("unknown base register")
    dst = words.scalar_register(first >> 6 & 0x7F, shape.data, _WIDE[shape.data])
    if dst is None:
        raise words.unknown("unknown scalar destination")
    soffset = words.scalar_register(second >> 25, 1, Type.B32)
    if soffset is None:
        raise words.unknown("unknown offset register")
    return words.finish(
        Format.SMEM,
        shape,
        opcode,
        dst=dst,
        srcs=(base,),
        soffset=None if soffset.kind is Kind.NULL else soffset,
        offset=_signed(second & 0x1FFFFF, 21),
        glc=bool(first >> 14 & 1),
        dlc=bool(first >> 13 & 1),
    )


def decode_ds(words: Words) -> Instruction:
    """Decode an LDS operation."""
    first = words.first
    second = words.next()
    opcode = first >> 18 & 0xFF
    shape = words.look_up(opcodes.ds(), opcode)
    paired = "2addr" in shape.name
    return words.finish(
        Format.DS,
        shape,
        opcode,
        addr=_vector(words, second & 0xFF, shape.address),
        data=_vector(words, second >> 8 & 0xFF, shape.data),
        data1=_vector(words, second >> 16 & 0xFF, shape.data1),
        dst=_vector(words, second >> 24, shape.dst),
        offset=0 if paired else first & 0xFFFF,
        offset0=first & 0xFF if paired else 0,
        offset1=first >> 8 & 0xFF if paired else 0,
        gds=bool(first >> 17 & 1),
    )


def decode_flat(words: Words) -> Instruction:
    """Decode a flat, global or scratch operation."""
    first = words.first
    second = words.next()
    opcode = first >> 18 & 0x7F
    shape = words.look_up(opcodes.flat(), opcode)
    segment = first >> 16 & 3
    if segment == 3 or "fsg"[segment] not in shape.segments:
        raise words.unknown("unknown segment")
    encoding = (Format.FLAT, Format.SCRATCH, Format.GLOBAL)[segment]
    glc = bool(first >> 14 & 1)
    returns = bool(shape.dst) and (glc or not shape.name.startswith("atomic"))
    saddr = None
    if encoding is not Format.FLAT and second >> 16 & 0x7F != _NULL:
        width = 2 if encoding is Format.GLOBAL else 1
        saddr = words.scalar_register(second >> 16 & 0x7F, width, _WIDE[width])
        if saddr is None:
            raise words.unknown("unknown address register")
    if "addtid" in shape.name or (encoding is Format.SCRATCH and not second >> 23 & 1):
        addr = None
    else:
        wide = encoding is Format.FLAT or (encoding is Format.GLOBAL and saddr is None)
        addr = _vector(words, second & 0xFF, 2 if wide else 1)
    return words.finish(
        encoding,
        shape,
        opcode,
        name=f"{encoding.value.lower()}_{shape.name}",
        addr=addr,
        data=_vector(words, second >> 8 & 0xFF, shape.data),
        dst=_vector(words, second >> 24, shape.dst) if returns else None,
        saddr=saddr,
        offset=_signed(first & 0x1FFF, 13),
        glc=glc,
        slc=bool(first >> 15 & 1),
        dlc=bool(first >> 13 & 1),
    )


def decode_buffer(words: Words) -> Instruction:
    """Decode a MUBUF or MTBUF operation. Loads have a dst, stores and atomics have data."""
    first = words.first
    second = words.next()
    encoding = Format.MUBUF if first >> 26 == 0b111000 else Format.MTBUF
    opcode = first >> 18 & 0xFF if encoding is Format.MUBUF else first >> 15 & 0xF
    shape = words.look_up(opcodes.buffer(encoding.value), opcode)
    if shape.name in ("buffer_gl0_inv", "buffer_gl1_inv"):
        return words.finish(encoding, shape, opcode)
    tfe = bool(second >> 21 & 1)
    glc = bool(first >> 14 & 1)
    loads = "_load_" in shape.name
    atomic = "_atomic_" in shape.name
    data = _vector(words, second >> 8 & 0xFF, shape.data)
    dst = data if loads else None
    if atomic and glc and data is not None:
        halves = 2 if "cmpswap" in shape.name else 1
        dst = _vector(words, data.index, data.width // halves)
    srsrc = words.scalar_register((second >> 16 & 0x1F) << 2, 4, Type.B128)
    if srsrc is None:
        raise words.unknown("unknown resource registers")
    offen, idxen = bool(second >> 22 & 1), bool(second >> 23 & 1)
    return words.finish(
        encoding,
        shape,
        opcode,
        addr=_vector(words, second & 0xFF, int(offen) + int(idxen)),
        data=None if loads else data,
        dst=dst,
        srsrc=srsrc,
        soffset=_buffer_offset(words, second >> 24),
        offset=first & 0xFFF,
        simm16=first >> 19 & 0x7F if encoding is Format.MTBUF else 0,
        glc=glc,
        slc=bool(first >> 12 & 1),
        dlc=bool(first >> 13 & 1),
        offen=offen,
        idxen=idxen,
        tfe=tfe,
    )


def _buffer_offset(words: Words, code: int) -> Operand:
    if code < 128:
        found = words.scalar_register(code, 1, Type.B32)
        if found is not None:
            return found
    elif code <= 208:
        number = code - 128 if code <= 192 else 192 - code
        return Operand(Kind.INTEGER, code, 1, Type.B32, number & 0xFFFF_FFFF)
    raise words.unknown("unknown buffer offset")
