"""Ask LLVM's disassembler which opcodes an encoding has, and which bits of each are fixed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ugpu.tools.instructions.encodings import Encoding
from ugpu.tools.instructions.llvm import Disassemble

_LITERAL = (0x12345678).to_bytes(4, "little")
_SUFFIX = re.compile(r"_(e32|e64|dpp)$")
# Without a half of a register, LLVM has fallen back to a form for chips without such halves.
_HALF = re.compile(r"v\d+\.[lh]")
_VECTOR = re.compile(r"v(\d+)(?:\.[lh])?$|v\[(\d+):(\d+)\]$")
_SCALAR = re.compile(r"s(\d+)$|s\[(\d+):(\d+)\]$")
# Codes of a 9-bit source, by what they select.
_CODES = {"v": 0x114, "s": 16, "i": 0x81, "l": 0xFF}
DPP16, DPP8 = 250, 233


@dataclass(frozen=True)
class Probe:
    """One instruction as LLVM has it.

    text: of the first base that is legal. fixed, value: bits that must have these values, apart
    from the opcode and from operands that exist. ignored: bits that change nothing. operands:
    registers of each field that the text shows, 0 for a field without one. kinds: what a source
    may be: "v" a vector register,
    "s" a scalar one, "i" an inline constant, "l" a literal. dpp: controls that src0 may have;
    dpp_fixed: bits 23:20 of the word of DPP16 that must be 0.
    """

    encoding: str
    opcode: int
    name: str
    text: str
    fixed: int
    value: int
    operands: Mapping[str, int]
    kinds: Mapping[str, str]
    ignored: int
    dpp: tuple[int, ...]
    dpp_fixed: int


def probe(disassembler: Disassemble, name: str, encoding: Encoding) -> Iterator[Probe]:
    """Yield the instructions of an encoding, by opcode."""
    for opcode in encoding.opcodes:
        prober = _Prober(disassembler, encoding, opcode)
        for change in ({}, *encoding.bases):
            prober.values = {**encoding.base, **change}
            text = prober.text()
            if text:
                yield prober.result(name, text)
                break


class _Prober:
    def __init__(self, disassembler: Disassemble, encoding: Encoding, opcode: int) -> None:
        self._disassemble = disassembler
        self._encoding = encoding
        self._opcode = opcode
        self.values: dict[str, int] = {}

    def text(
        self, flip: int = 0, *, tail: bytes = b"", change: Mapping[str, int] | None = None
    ) -> str:
        """Return the text with other operands and with flipped bits; "" if it is not legal."""
        encoding = self._encoding
        number = encoding.code(self._opcode, {**self.values, **(change or {})}, flip)
        head = number.to_bytes(4 * encoding.words, "little")
        size, text = self._disassemble(head + (tail or _LITERAL))
        extra = len(tail) or 4
        return text if size in (len(head), len(head) + extra) else ""

    def result(self, name: str, text: str) -> Probe:
        """Probe the bits around a legal base."""
        encoding = self._encoding
        there = [field for field in encoding.fields if self._exists(field)]
        own = sum(
            ((1 << encoding.fields[field][1]) - 1) << encoding.fields[field][0] for field in there
        )
        own |= ((1 << encoding.opcode[1]) - 1) << encoding.opcode[0]
        base = encoding.code(self._opcode, self.values)
        fixed = ignored = 0
        for bit in range(32 * encoding.words):
            if own >> bit & 1:
                continue
            flipped = self.text(1 << bit)
            if not flipped or len(_HALF.findall(flipped)) < len(_HALF.findall(text)):
                fixed |= 1 << bit
            elif flipped == text:
                ignored |= 1 << bit
        fixed &= ~encoding.prefix
        dpp = tuple(code for code in (DPP16, DPP8) if self._has_dpp(there, code))
        return Probe(
            name, self._opcode, _mnemonic(name, text), text, fixed, base & fixed,
            {field: self._registers(field) if field in there else 0 for field in encoding.fields},
            {field: self._kinds(field) for field in there if "src" in field},
            ignored, dpp, self._dpp_fixed() if DPP16 in dpp else 0,
        )  # fmt: skip

    def _exists(self, field: str) -> bool:
        """Return whether the text depends on an operand's field."""
        _, width = self._encoding.fields[field]
        texts = {self.text(change={field: value}) for value in _values(field, width)} - {""}
        return len(texts) > 1

    def _registers(self, field: str) -> int:
        """Return the number of registers of an operand: of the one that changes with its field."""
        _, width = self._encoding.fields[field]
        seen: list[tuple[str, ...]] = []
        for value in _values(field, width):
            text = self.text(change={field: value})
            if text:
                seen.append(tuple(text.split(" ", 1)[-1].replace(" ", ",").split(",")))
        for one, other in pairwise(seen):
            for mine, theirs in zip(one, other, strict=False):
                if mine != theirs and (count := _count(mine)):
                    return count
        return 1

    def _kinds(self, field: str) -> str:
        found = ""
        for kind, code in _CODES.items():
            if code >> self._encoding.fields[field][1]:
                continue
            tail = _LITERAL if kind == "l" else b""
            if self.text(tail=tail, change={field: code}):
                found += kind
        return found

    def _dpp_fixed(self) -> int:
        fixed = 0
        for bit in range(20, 24):
            word = 4 | 0xFF << 24 | 0xE4 << 8 | 1 << bit
            if not self.text(tail=word.to_bytes(4, "little"), change={"src0": DPP16}):
                fixed |= 1 << bit
        return fixed

    def _has_dpp(self, there: list[str], code: int) -> bool:
        if "src0" not in there or self._encoding.words > 2:
            return False
        word = 4 | (0xFF << 24 | 0xE4 << 8 if code == DPP16 else 0xFAC688 << 8)
        text = self.text(tail=word.to_bytes(4, "little"), change={"src0": code})
        return "dpp8:" in text or "quad_perm" in text


def _mnemonic(encoding: str, text: str) -> str:
    """Return the name, without the encoding; of a pair, that of its half."""
    half = text.split(" :: ")[1] if encoding == "VOPDY" else text
    return _SUFFIX.sub("", half.split()[0])


def _values(field: str, width: int) -> tuple[int, ...]:
    """Return values of a field that differ where the operand exists."""
    if width == 9:
        return (0x108, 0x110, 0x120, 4, 8, 0x80, 0x81)
    if field in ("sbase", "srsrc") and width < 7:
        return (2, 4, 8)
    return (4, 8, 12, 16, 32, 64) if field != "simm16" else (1, 2)


def _count(text: str) -> int:
    match = _VECTOR.match(text) or _SCALAR.match(text)
    if match is None:
        return 0
    return 1 if match[1] is not None else int(match[3]) - int(match[2]) + 1
