"""Conversions of 8-bit floats as LLVM text: integer operations, exact on processors that flush
denormal numbers too (compiler.float8 describes the formats and the numbers out of range)."""

from __future__ import annotations

import struct

from ugpu.compiler.codegen.lines import Lines, element_type
from ugpu.compiler.dtype import DType, bool_, float32, uint8, uint32
from ugpu.compiler.float8 import FORMATS, INFINITE, Float8

QUIET = 0x7FC0_0000


def _bits(number: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits


class _Words:
    """Operations on vectors of 32-bit words."""

    def __init__(self, lines: Lines, lanes: int) -> None:
        self.lines, self.lanes = lines, lanes
        self.word, self.single = element_type(uint32, lanes), element_type(float32, lanes)
        self.byte, self.test = element_type(uint8, lanes), element_type(bool_, lanes)

    def fixed(self, number: int) -> str:
        number &= 0xFFFF_FFFF
        return str(number) if self.lanes == 1 else f"splat (i32 {number})"

    def do(self, op: str, left: str, right: int | str) -> str:
        text = self.fixed(right) if isinstance(right, int) else right
        return self.lines.new(f"{op} {self.word} {left}, {text}")

    def where(self, test: str, yes: int | str, no: str) -> str:
        text = self.fixed(yes) if isinstance(yes, int) else yes
        return self.lines.new(f"select {self.test} {test}, {self.word} {text}, {self.word} {no}")

    def as_single(self, word: str) -> str:
        return self.lines.new(f"bitcast {self.word} {word} to {self.single}")

    def as_word(self, single: str) -> str:
        return self.lines.new(f"bitcast {self.single} {single} to {self.word}")

    def with_number(self, op: str, single: str, number: float) -> str:
        double = struct.unpack("<Q", struct.pack("<d", number))[0]
        text = f"0x{double:016X}"
        if self.lanes > 1:
            text = f"splat (float {text})"
        return self.lines.new(f"{op} {self.single} {single}, {text}")


def from_float8(lines: Lines, text: str, dtype: DType, lanes: int) -> str:
    """Return the float32 of a code."""
    form, w = FORMATS[dtype.name], _Words(lines, lanes)
    code = lines.new(f"zext {w.byte} {text} to {w.word}")
    size = w.do("and", code, 0x7F)
    sign = w.do("shl", w.do("and", code, 0x80), 24)
    normal = w.do("add", w.do("shl", size, form.shift), form.rebias)
    count = lines.new(f"uitofp {w.word} {size} to {w.single}")
    tiny = w.as_word(w.with_number("fmul", count, form.step))
    bits = w.where(w.do("icmp ult", size, 1 << form.mantissa), tiny, normal)
    return w.as_single(_special(w, form, code, size, w.do("or", bits, sign), sign))


def _special(w: _Words, form: Float8, code: str, size: str, bits: str, sign: str) -> str:
    if form.unsigned:
        return w.where(w.do("icmp eq", code, form.nan), QUIET, bits)
    if form.infinite is None:
        return w.where(w.do("icmp eq", size, form.nan), QUIET, bits)
    infinite = w.do("or", sign, INFINITE)
    bits = w.where(w.do("icmp eq", size, form.infinite), infinite, bits)
    return w.where(w.do("icmp ugt", size, form.infinite), QUIET, bits)


def to_float8(lines: Lines, text: str, dtype: DType, lanes: int) -> str:
    """Return the code of a float32, rounded to nearest, ties to even."""
    form, w = FORMATS[dtype.name], _Words(lines, lanes)
    bits = w.as_word(text)
    size = w.do("and", bits, 0x7FFF_FFFF)
    odd = w.do("and", w.do("lshr", size, form.shift), 1)
    normal = w.do("lshr", w.do("add", w.do("add", size, odd), form.half), form.shift)
    rounded = w.as_word(w.with_number("fadd", w.as_single(size), form.magic))
    small = w.do("sub", rounded, _bits(form.magic))
    code = w.where(w.do("icmp ult", size, form.normal), small, normal)
    code = w.where(w.do("icmp ugt", code, form.largest), form.overflow, code)
    code = w.where(w.do("icmp ugt", size, INFINITE), form.nan, code)
    signed = w.do("or", code, w.do("and", w.do("lshr", bits, 24), 0x80))
    if form.unsigned:
        signed = w.where(w.do("icmp eq", code, 0), 0, signed)
    return lines.new(f"trunc {w.word} {signed} to {w.byte}")
