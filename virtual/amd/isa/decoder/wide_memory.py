"""Decode the memory encodings of 96 bits (gfx12): flat, global, scratch and buffer operations.

Source: RDNA4 ISA document, "Microcode formats": VFLAT, VSCRATCH, VGLOBAL, VBUFFER.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.fields import Words
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.memory import scalar_address, signed, vector
from ugpu.virtual.amd.isa.decoder.operands import Operand, Type

_FORMATS = {0xEC: Format.FLAT, 0xED: Format.SCRATCH, 0xEE: Format.GLOBAL}
_BUFFER = 0b110001
_NULL = 124
_RETURN = 1  # of TH of atomics
_TYPED = 0x80  # opcodes from here on have a format


def decode_wide_memory(words: Words) -> Instruction | None:
    """Decode an operation of 96 bits; None for other encodings."""
    if words.first >> 26 == _BUFFER:
        return _buffer(words)
    encoding = _FORMATS.get(words.first >> 24)
    return None if encoding is None else _flat(words, encoding)


def _flat(words: Words, encoding: Format) -> Instruction:
    first, second, third = words.first, words.next(), words.next()
    opcode = first >> 14 & 0xFF
    row = words.look_up(encoding.value, opcode)
    loaded, stored = row.counts
    if words.lanes == 64 and row.name.startswith("load_tr"):
        loaded //= 2
    hint = second >> 20 & 7
    atomic = row.name.startswith("atomic")
    returns = bool(loaded) and (not atomic or bool(hint & _RETURN))
    saddr = None
    if encoding is not Format.FLAT and first & 0x7F != _NULL:
        width = 2 if encoding is Format.GLOBAL else 1
        saddr = scalar_address(words, first & 0x7F, width)
    addr: Operand | None = None
    if _has_address(row.name) and not (encoding is Format.SCRATCH and not second >> 17 & 1):
        pair = encoding is Format.FLAT or (encoding is Format.GLOBAL and saddr is None)
        addr = vector(words, third & 0xFF, 2 if pair else 1)
    return words.finish(
        encoding,
        row,
        opcode,
        name=f"{encoding.value.lower()}_{row.operation}",
        mnemonic=f"{encoding.value.lower()}_{row.name}",
        addr=addr,
        data=vector(words, second >> 23 & 0xFF, stored),
        dst=vector(words, second & 0xFF, loaded) if returns else None,
        saddr=saddr,
        offset=signed(third >> 8, 24),
        glc=atomic and bool(hint & _RETURN),
        scope=second >> 18 & 3,
        hint=hint,
        wide=True,
        scaled=bool(second >> 16 & 1),
        volatile=bool(first >> 7 & 1),
    )


def _has_address(name: str) -> bool:
    return "addtid" not in name and name not in ("inv", "wb", "wbinv")


def _buffer(words: Words) -> Instruction:
    first, second, third = words.first, words.next(), words.next()
    opcode = first >> 14 & 0xFF
    row = words.look_up("MUBUF", opcode)
    encoding = Format.MTBUF if opcode >= _TYPED else Format.MUBUF
    hint = second >> 20 & 7
    tfe = bool(first >> 22 & 1)
    loads, atomic = "_load_" in row.name, "_atomic_" in row.name
    count = row.counts[0] + int(tfe and row.counts[0] > 0)
    data = vector(words, second & 0xFF, count)
    dst = data if loads else None
    if atomic and hint & _RETURN and data is not None:
        dst = vector(
            words, data.index, row.counts[0] // (2 if "cmpswap" in row.name else 1) + int(tfe)
        )
    srsrc = words.scalar_register(second >> 9 & 0x7F, 4, Type.B128)
    if srsrc is None:
        raise words.unknown("unknown resource registers")
    soffset = words.scalar_register(first & 0x7F, 1, Type.B32)
    if soffset is None:
        raise words.unknown("unknown buffer offset")
    offen, idxen = bool(second >> 30 & 1), bool(second >> 31)
    return words.finish(
        encoding,
        row,
        opcode,
        addr=vector(words, third & 0xFF, int(offen) + int(idxen)),
        data=None if loads else data,
        dst=dst,
        srsrc=srsrc,
        soffset=soffset,
        offset=third >> 8,
        simm16=second >> 23 & 0x7F if encoding is Format.MTBUF else 0,
        glc=atomic and bool(hint & _RETURN),
        offen=offen,
        idxen=idxen,
        tfe=tfe,
        scope=second >> 18 & 3,
        hint=hint,
        wide=True,
        volatile=bool(first >> 7 & 1),
    )
