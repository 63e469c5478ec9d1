"""Encode gfx1100 instructions for tests, from the decoder's opcode tables and the field positions.

Source: RDNA3 ISA document, chapter "Microcode formats". Sources are 9-bit codes: `s(n)`, `v(n)`,
`VCC` ..., `integer(n)`, `FLOATS`, `LITERAL`. Every function returns the words of one instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from tests.support.amd.isa import gfx_tables
from ugpu.virtual.amd.isa.targets.table import Row

Encoded = tuple[int, ...]

VCC, NULL, M0, EXEC, SCC, LITERAL = 106, 124, 125, 126, 253, 255
FLOATS = (240, 241, 242, 243, 244, 245, 246, 247, 248)
DPP16, DPP8, DPP8_FI = 250, 233, 234


def v(number: int) -> int:
    """Return the code of a vector register."""
    return 256 + number


def s(number: int) -> int:
    """Return the code of a scalar register."""
    return number


def integer(value: int) -> int:
    """Return the code of an inline constant, -16..64."""
    return 128 + value if value >= 0 else 192 - value


@cache
def _numbers(encoding: str) -> Mapping[str, int]:
    table = gfx_tables.vopd() if encoding == "VOPD" else gfx_tables.table(encoding)
    return {shape.name: number for number, shape in table.items()}


def _legal(encoding: str, name: str, first: int, second: int) -> Encoded:
    """Return the words without operands and modifiers that the instruction does not have."""
    row = _rows(encoding)[name]
    number = (first | second << 32) & ~row.fixed | row.value
    return (number & 0xFFFF_FFFF, number >> 32)


@cache
def _rows(encoding: str) -> Mapping[str, Row]:
    return {row.name: row for row in gfx_tables.table(encoding).values()}


def _tail(sources: Sequence[int], literal: int | None) -> Encoded:
    return (literal or 0,) if LITERAL in sources else ()


def sop1(name: str, dst: int, source: int, literal: int | None = None) -> Encoded:
    """Encode SOP1."""
    opcode = _numbers("SOP1")[name]
    return (0xBE800000 | dst << 16 | opcode << 8 | source, *_tail([source], literal))


def sop2(name: str, dst: int, first: int, second: int, literal: int | None = None) -> Encoded:
    """Encode SOP2."""
    opcode = _numbers("SOP2")[name]
    word = 0x80000000 | opcode << 23 | dst << 16 | second << 8 | first
    return (word, *_tail([first, second], literal))


def sopc(name: str, first: int, second: int, literal: int | None = None) -> Encoded:
    """Encode SOPC."""
    opcode = _numbers("SOPC")[name]
    return (0xBF000000 | opcode << 16 | second << 8 | first, *_tail([first, second], literal))


def sopk(name: str, register: int, immediate: int) -> Encoded:
    """Encode SOPK."""
    return (0xB0000000 | _numbers("SOPK")[name] << 23 | register << 16 | immediate & 0xFFFF,)


def sopp(name: str, immediate: int = 0) -> Encoded:
    """Encode SOPP."""
    return (0xBF800000 | _numbers("SOPP")[name] << 16 | immediate & 0xFFFF,)


def vop1(name: str, dst: int, source: int, literal: int | None = None) -> Encoded:
    """Encode VOP1; dst is a vector register number (bit 7: the upper half), or a scalar one."""
    opcode = _numbers("VOP1")[name]
    return (0x7E000000 | dst << 17 | opcode << 9 | source, *_tail([source], literal))


def vop2(name: str, dst: int, first: int, second: int, literal: int | None = None) -> Encoded:
    """Encode VOP2; second is a vector register number. fmamk and fmaak always have a literal."""
    word = _numbers("VOP2")[name] << 25 | dst << 17 | second << 9 | first
    if "fmamk" in name or "fmaak" in name:
        return (word, literal or 0)
    return (word, *_tail([first], literal))


def vopc(name: str, first: int, second: int, literal: int | None = None) -> Encoded:
    """Encode VOPC; second is a vector register number."""
    word = 0x7C000000 | _numbers("VOPC")[name] << 17 | second << 9 | first
    return (word, *_tail([first], literal))


def vop3(
    name: str,
    dst: int,
    sources: Sequence[int],
    *,
    neg: int = 0,
    absolute: int = 0,
    op_sel: int = 0,
    clamp: bool = False,
    omod: int = 0,
    sdst: int | None = None,
    literal: int | None = None,
) -> Encoded:
    """Encode VOP3, or VOP3SD when there is an sdst. Modifier bits: one a source, from bit 0."""
    word = 0xD4000000 | _numbers("VOP3")[name] << 16 | clamp << 15 | dst
    word |= sdst << 8 if sdst is not None else op_sel << 11 | absolute << 8
    second = omod << 27 | neg << 29
    for number, source in enumerate(sources):
        second |= source << 9 * number
    return (*_legal("VOP3", name, word, second), *_tail(sources, literal))


def vop3p(
    name: str,
    dst: int,
    sources: Sequence[int],
    *,
    op_sel: int = 0,
    op_sel_hi: int = 7,
    neg_lo: int = 0,
    neg_hi: int = 0,
    clamp: bool = False,
    literal: int | None = None,
) -> Encoded:
    """Encode VOP3P."""
    word = 0xCC000000 | _numbers("VOP3P")[name] << 16 | clamp << 15 | dst
    word |= (op_sel_hi >> 2 & 1) << 14 | op_sel << 11 | neg_hi << 8
    second = (op_sel_hi & 3) << 27 | neg_lo << 29
    for number, source in enumerate(sources):
        second |= source << 9 * number
    return (*_legal("VOP3P", name, word, second), *_tail(sources, literal))


def vopd(
    x: tuple[str, int, int, int], y: tuple[str, int, int, int], literal: int | None = None
) -> Encoded:
    """Encode VOPD; each half is name, dst, 9-bit src0, vector register of src1. One dst is even."""
    numbers = _numbers("VOPD")
    assert (x[1] ^ y[1]) & 1, "the destinations must have different parity"
    word = 0xC8000000 | numbers[x[0]] << 22 | numbers[y[0]] << 17 | x[3] << 9 | x[2]
    second = x[1] << 24 | y[1] >> 1 << 17 | y[3] << 9 | y[2]
    halves = (_rows("VOPDX")[x[0]].fixed & 0x1FFFF, _rows("VOPDY")[y[0]].fixed >> 32 & 0x1FFFF)
    word, second = word & ~halves[0], second & ~halves[1]  # of v_dual_mov: it has one source
    constants = any("fmamk" in half[0] or "fmaak" in half[0] for half in (x, y))
    if constants or LITERAL in (x[2], y[2]):
        return (word, second, literal or 0)
    return (word, second)


def dpp16(
    encoded: Encoded,
    register: int,
    control: int,
    *,
    row_mask: int = 15,
    bank_mask: int = 15,
    bound_ctrl: bool = False,
    fetch_inactive: bool = False,
    modifiers: int = 0,
) -> Encoded:
    """Append the DPP16 word to an instruction encoded with src0 = DPP16.

    modifiers: neg and abs of the first, then of the second source, from bit 0.
    """
    word = row_mask << 28 | bank_mask << 24 | modifiers << 20 | bound_ctrl << 19
    return (*encoded, word | fetch_inactive << 18 | control << 8 | register)


def dpp8(encoded: Encoded, register: int, selectors: Sequence[int]) -> Encoded:
    """Append the DPP8 word to an instruction encoded with src0 = DPP8 or DPP8_FI."""
    word = sum(lane << (8 + 3 * number) for number, lane in enumerate(selectors))
    return (*encoded, word | register)


def smem_load(dst: int, base: int, offset: int, dwords: int = 1) -> Encoded:
    """Encode s_load_b32 ... s_load_b512 without an offset register."""
    opcode = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}[dwords]
    return (0xF4000000 | opcode << 18 | dst << 6 | base >> 1, NULL << 25 | offset & 0x1FFFFF)


@cache
def _flat_numbers() -> Mapping[str, int]:
    return {shape.name: number for number, shape in gfx_tables.flat().items()}


def global_access(
    name: str, *, addr: int, saddr: int = NULL, data: int = 0, dst: int = 0, offset: int = 0,
    glc: bool = False,
) -> Encoded:  # fmt: skip
    """Encode GLOBAL; `name` without its prefix, as "load_b32"."""
    word = 0xDC000000 | 2 << 16 | _flat_numbers()[name] << 18 | glc << 14 | offset & 0x1FFF
    return _legal("GLOBAL", name, word, dst << 24 | saddr << 16 | data << 8 | addr)


def scratch_access(
    name: str, *, addr: int | None = None, saddr: int = NULL, data: int = 0, dst: int = 0,
    offset: int = 0,
) -> Encoded:  # fmt: skip
    """Encode SCRATCH; addr: the register of each lane's offset. `name` as in `global_access`."""
    word = 0xDC000000 | 1 << 16 | _flat_numbers()[name] << 18 | offset & 0x1FFF
    vector = 0 if addr is None else 1 << 23 | addr
    return _legal("SCRATCH", name, word, dst << 24 | saddr << 16 | data << 8 | vector)


@cache
def _ds_numbers() -> Mapping[str, int]:
    return {shape.name: number for number, shape in gfx_tables.ds().items()}


def ds(
    name: str, *, addr: int, data: int = 0, data1: int = 0, dst: int = 0, offset: int = 0
) -> Encoded:
    """Encode DS; offset is the 16-bit field (offset1 << 8 | offset0 for pairs)."""
    word = 0xD8000000 | _ds_numbers()[name] << 18 | offset
    return _legal("DS", name, word, dst << 24 | data1 << 16 | data << 8 | addr)
