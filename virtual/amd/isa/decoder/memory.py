"""Decode the memory encodings of 64 bits: SMEM, DS, FLAT, GLOBAL, SCRATCH, MUBUF, MTBUF."""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.fields import Words, scalar_source
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand, Type
from ugpu.virtual.amd.isa.targets.target import Memory

_NULL = 124
_NO_TRIPLE = (3, Kind.TTMP)  # LLVM has no three trap handler temporaries as an operand
_WIDE = {
    1: Type.B32, 2: Type.B64, 3: Type.B96, 4: Type.B128, 5: Type.B160,
    8: Type.B256, 16: Type.B512, 32: Type.B1024,
}  # fmt: skip


def vector(words: Words, index: int, width: int) -> Operand | None:
    """Return vector registers; None for 0 of them."""
    return words.vector(index, width, _WIDE[width]) if width else None


def signed(value: int, bits: int) -> int:
    """Sign-extend a field."""
    return value - (1 << bits) if value >> (bits - 1) else value


def scalar_address(words: Words, code: int, width: int) -> Operand:
    """Return the scalar registers of an address."""
    saddr = words.scalar_register(code, width, _WIDE[width])
    if saddr is None or (saddr.kind is Kind.EXEC and (width > 1 or saddr.index)):
        raise words.unknown("unknown address register")
    return saddr


def decode_smem(words: Words) -> Instruction:
    """Decode a scalar load, prefetch or cache operation."""
    first = words.first
    second = words.next()
    wide = words.target.memory is Memory.GFX12
    opcode = first >> 13 & 0x3F if wide else first >> 18 & 0xFF
    row = words.look_up("SMEM", opcode)
    data, base_width = row.counts
    if not base_width and not data:
        return words.finish(Format.SMEM, row, opcode)
    base = None
    if base_width:
        base = words.scalar_register((first & 0x3F) << 1, base_width, _WIDE[base_width])
        if base is None:
            raise words.unknown("unknown base register")
    if row.name.startswith(("s_atc_probe", "s_prefetch", "s_buffer_prefetch")):
        data = 0  # the field is an immediate
        if wide and first >> 11 & 3:
            raise words.unknown("the immediate must be below 32")
    dst = words.scalar_register(first >> 6 & 0x7F, data, _WIDE[data]) if data else None
    if data and (dst is None or dst.kind in (Kind.EXEC, Kind.M0) or (data, dst.kind) == _NO_TRIPLE):
        raise words.unknown("unknown scalar destination")
    soffset = words.scalar_register(second >> 25, 1, Type.B32)
    if soffset is None:
        raise words.unknown("unknown offset register")
    return words.finish(
        Format.SMEM,
        row,
        opcode,
        dst=dst,
        srcs=() if base is None else (base,),
        soffset=None if soffset.kind is Kind.NULL else soffset,
        offset=signed(second & 0xFFFFFF, 24) if wide else signed(second & 0x1FFFFF, 21),
        simm16=0 if data else first >> 6 & 0x7F,
        glc=not wide and bool(first >> 14 & 1),
        dlc=not wide and bool(first >> 13 & 1),
        scope=first >> 21 & 3 if wide else 0,
        hint=first >> 23 & 3 if wide else 0,
        wide=wide,
        volatile=wide and bool(first >> 20 & 1),
        scaled=wide and bool(second >> 24 & 1),
    )


def decode_ds(words: Words) -> Instruction:
    """Decode an LDS operation."""
    first = words.first
    second = words.next()
    opcode = first >> 18 & 0xFF
    shape = words.look_up("DS", opcode)
    address, loaded, stored, stored1 = shape.counts
    paired = "2addr" in shape.name
    return words.finish(
        Format.DS,
        shape,
        opcode,
        addr=vector(words, second & 0xFF, address),
        data=vector(words, second >> 8 & 0xFF, stored),
        data1=vector(words, second >> 16 & 0xFF, stored1),
        dst=vector(words, second >> 24, loaded),
        offset=0 if paired else first & 0xFFFF,
        offset0=first & 0xFF if paired else 0,
        offset1=first >> 8 & 0xFF if paired else 0,
        gds=bool(first >> 17 & 1),
    )


def decode_memory(words: Words) -> Instruction | None:
    """Decode a flat, global, scratch or buffer operation of 64 bits; None for other encodings."""
    top = words.first >> 26
    if top == 0b110111:
        return decode_flat(words)
    return decode_buffer(words) if top in (0b111000, 0b111010) else None


def decode_flat(words: Words) -> Instruction:
    """Decode a flat, global or scratch operation."""
    first = words.first
    second = words.next()
    opcode = first >> 18 & 0x7F
    segment = first >> 16 & 3
    if segment == 3:
        raise words.unknown("unknown segment")
    encoding = (Format.FLAT, Format.SCRATCH, Format.GLOBAL)[segment]
    shape = words.look_up(encoding.value, opcode)
    loaded, stored = shape.counts
    glc = bool(first >> 14 & 1)
    returns = bool(loaded) and (glc or not shape.name.startswith("atomic"))
    saddr = None
    if encoding is not Format.FLAT and second >> 16 & 0x7F != _NULL:
        width = 2 if encoding is Format.GLOBAL else 1
        saddr = scalar_address(words, second >> 16 & 0x7F, width)
    if "addtid" in shape.name or (encoding is Format.SCRATCH and not second >> 23 & 1):
        addr = None
    else:
        wide = encoding is Format.FLAT or (encoding is Format.GLOBAL and saddr is None)
        addr = vector(words, second & 0xFF, 2 if wide else 1)
    return words.finish(
        encoding,
        shape,
        opcode,
        name=f"{encoding.value.lower()}_{shape.operation}",
        mnemonic=f"{encoding.value.lower()}_{shape.name}",
        addr=addr,
        data=vector(words, second >> 8 & 0xFF, stored),
        dst=vector(words, second >> 24, loaded) if returns else None,
        saddr=saddr,
        offset=signed(first & 0x1FFF, 13),
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
    shape = words.look_up(encoding.value, opcode)
    if shape.name in ("buffer_gl0_inv", "buffer_gl1_inv"):
        return words.finish(encoding, shape, opcode)
    tfe = bool(second >> 21 & 1)
    glc = bool(first >> 14 & 1)
    loads = "_load_" in shape.name
    atomic = "_atomic_" in shape.name
    count = shape.counts[0] + int(tfe and shape.counts[0] > 0)
    data = vector(words, second >> 8 & 0xFF, count)
    dst = data if loads else None
    if atomic and glc and data is not None:
        halves = 2 if "cmpswap" in shape.name else 1
        dst = vector(words, data.index, shape.counts[0] // halves + int(tfe))
    srsrc = words.scalar_register((second >> 16 & 0x1F) << 2, 4, Type.B128)
    if srsrc is None:
        raise words.unknown("unknown resource registers")
    offen, idxen = bool(second >> 22 & 1), bool(second >> 23 & 1)
    return words.finish(
        encoding,
        shape,
        opcode,
        addr=vector(words, second & 0xFF, int(offen) + int(idxen)),
        data=None if loads else data,
        dst=dst,
        srsrc=srsrc,
        soffset=scalar_source(words, second >> 24, Type.B32),
        offset=first & 0xFFF,
        simm16=first >> 19 & 0x7F if encoding is Format.MTBUF else 0,
        glc=glc,
        slc=bool(first >> 12 & 1),
        dlc=bool(first >> 13 & 1),
        offen=offen,
        idxen=idxen,
        tfe=tfe,
    )
