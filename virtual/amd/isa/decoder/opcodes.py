"""Read the opcode tables, once, into lookups by encoding and opcode."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ugpu.virtual.amd.isa.decoder import opcodes_memory, opcodes_scalar, opcodes_vector


class Shape(NamedTuple):
    """An opcode's name and the types of its destination and sources ("" for no destination)."""

    name: str
    dst: str
    srcs: tuple[str, ...]


class DsShape(NamedTuple):
    """An LDS opcode: registers of address, destination and data (0 for none)."""

    name: str
    address: int
    dst: int
    data: int
    data1: int


class FlatShape(NamedTuple):
    """A flat, global or scratch opcode: registers of destination and data (0 for none)."""

    name: str
    segments: str
    dst: int
    data: int


class BufferShape(NamedTuple):
    """A buffer opcode: registers of its data."""

    name: str
    data: int


class SmemShape(NamedTuple):
    """A scalar load: registers loaded and registers of its base (0 for none)."""

    name: str
    data: int
    base: int


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def _count(text: str) -> int:
    return 0 if text == "-" else int(text)


def _shapes(table: str) -> dict[int, Shape]:
    return {
        int(row[0]): Shape(row[1], row[2].replace("-", ""), tuple(row[3:]))
        if len(row) > 2
        else Shape(row[1], "", ())
        for row in _rows(table)
    }


@cache
def scalar(encoding: str) -> dict[int, Shape]:
    """Return the opcodes of SOP1, SOP2, SOPC, SOPP or SOPK."""
    tables = {
        "SOP1": opcodes_scalar.SOP1,
        "SOP2": opcodes_scalar.SOP2,
        "SOPC": opcodes_scalar.SOPC,
        "SOPP": opcodes_scalar.SOPP,
        "SOPK": opcodes_scalar.SOPK,
    }
    return _shapes(tables[encoding])


@cache
def vop1() -> dict[int, Shape]:
    """Return the opcodes of VOP1."""
    return _shapes(opcodes_vector.VOP1)


@cache
def vop2() -> dict[int, Shape]:
    """Return the opcodes of VOP2."""
    return _shapes(opcodes_vector.VOP2)


@cache
def vopc() -> dict[int, Shape]:
    """Return the opcodes of VOPC; the destination is "mask"."""
    found = {}
    for base, kind, suffix, *conditions in _rows(opcodes_vector.VOPC):
        for number, condition in enumerate(conditions, int(base)):
            if condition == ".":
                continue
            second = kind if condition != "class" else "b16" if kind == "f16" else "b32"
            name = f"{condition}_{suffix}"
            found[number] = Shape(f"v_cmp_{name}", "mask", (kind, second))
            found[number + 128] = Shape(f"v_cmpx_{name}", "mask", (kind, second))
    return found


@cache
def vinterp() -> dict[int, Shape]:
    """Return the opcodes of VINTERP."""
    return _shapes(opcodes_vector.VINTERP)


@cache
def vop3() -> dict[int, Shape]:
    """Return the opcodes of VOP3 and VOP3SD, including those shared with VOPC, VOP2 and VOP1."""
    return {
        **vopc(),
        **{256 + number: shape for number, shape in vop2().items() if _in_vop3(shape)},
        **{384 + number: shape for number, shape in vop1().items() if _in_vop3(shape)},
        **_shapes(opcodes_vector.VOP3),
    }


def _in_vop3(shape: Shape) -> bool:
    only_short = {
        "v_readfirstlane_b32", "v_swap_b32", "v_permlane64_b32", "v_swaprel_b32",
        "v_dot2acc_f32_f16", "v_pk_fmac_f16",
    }  # fmt: skip
    return shape.name not in only_short and "literal" not in shape.srcs


@cache
def vop3p() -> dict[int, Shape]:
    """Return the opcodes of VOP3P."""
    return _shapes(opcodes_vector.VOP3P)


@cache
def vopd() -> dict[int, Shape]:
    """Return the opcodes of the halves of VOPD."""
    return _shapes(opcodes_vector.VOPD)


@cache
def smem() -> dict[int, SmemShape]:
    """Return the opcodes of SMEM."""
    return {
        int(number): SmemShape(name, _count(data), _count(base))
        for number, name, data, base in _rows(opcodes_memory.SMEM)
    }


@cache
def ds() -> dict[int, DsShape]:
    """Return the opcodes of DS."""
    return {
        int(number): DsShape(name, int(address == "a"), *map(_count, counts))
        for number, name, address, *counts in _rows(opcodes_memory.DS)
    }


@cache
def flat() -> dict[int, FlatShape]:
    """Return the opcodes of FLAT, GLOBAL and SCRATCH, named without their segment."""
    return {
        int(number): FlatShape(name, segments, _count(dst), _count(data))
        for number, name, segments, dst, data in _rows(opcodes_memory.FLAT)
    }


@cache
def buffer(encoding: str) -> dict[int, BufferShape]:
    """Return the opcodes of MUBUF or MTBUF."""
    table = opcodes_memory.MUBUF if encoding == "MUBUF" else opcodes_memory.MTBUF
    return {int(number): BufferShape(name, _count(data)) for number, name, data in _rows(table)}
