"""Decode gfx1100 machine code, one instruction at a time."""

from __future__ import annotations

from am.virtual.isa.formats import Instruction, UnknownInstruction


def decode(code: bytes, offset: int = 0) -> Instruction:
    """Decode the instruction at byte `offset` (a multiple of 4); `pc` is that offset.

    Raises UnknownInstruction for anything that is not a known instruction, truncated ones included.
    """
    raise UnknownInstruction(offset, (), "no instruction tables yet")
