"""The opcode tables of gfx11 by encoding, as the makers of cases and encodings use them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ugpu.virtual.amd.isa.targets.table import Row
from ugpu.virtual.amd.isa.targets.target import target

Shape = Row
GFX11 = target("gfx11")


class DsShape(NamedTuple):
    """An LDS opcode: registers of address, destination and data (0 for none)."""

    name: str
    address: int
    dst: int
    data: int
    data1: int


class FlatShape(NamedTuple):
    """A flat, global or scratch opcode, with the letters of its segments."""

    name: str
    segments: str
    dst: int
    data: int


def table(encoding: str) -> Mapping[int, Row]:
    """Return the opcodes of an encoding."""
    return GFX11.table(encoding)


@cache
def vopd() -> dict[int, Row]:
    """Return the opcodes of the halves of a pair."""
    return {**GFX11.table("VOPDX"), **GFX11.table("VOPDY")}


@cache
def ds() -> dict[int, DsShape]:
    """Return the opcodes of DS."""
    return {number: DsShape(row.name, *row.counts) for number, row in GFX11.table("DS").items()}


@cache
def flat() -> dict[int, FlatShape]:
    """Return the opcodes of FLAT, GLOBAL and SCRATCH, named without their segment."""
    found: dict[int, FlatShape] = {}
    for letter, encoding in (("f", "FLAT"), ("s", "SCRATCH"), ("g", "GLOBAL")):
        for number, row in GFX11.table(encoding).items():
            before = found[number].segments if number in found else ""
            found[number] = FlatShape(row.name, before + letter, *row.counts)
    return found
