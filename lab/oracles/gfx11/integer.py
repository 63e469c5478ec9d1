"""Integer vector operations for the oracle: what each does to 32 lanes of bits.

Source: RDNA3 ISA document, chapter "Vector ALU operations". Sources are uint16, uint32 or uint64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from lab.oracles.gfx11.state import LANES, Lanes

Operation = Callable[..., Lanes]


def wide(values: Lanes) -> Lanes:
    """Widen to int64 without sign."""
    return values.astype(np.int64)


def signed(values: Lanes, bits: int = 32) -> Lanes:
    """Widen the low bits to int64 with sign."""
    shift = np.int64(64 - bits)
    found: Lanes = (values.astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift
    return found


def u32(values: Lanes) -> Lanes:
    """Keep the low 32 bits."""
    found: Lanes = (values.astype(np.int64) & 0xFFFF_FFFF).astype(np.uint32)
    return found


def u16(values: Lanes) -> Lanes:
    """Keep the low 16 bits."""
    found: Lanes = (values.astype(np.int64) & 0xFFFF).astype(np.uint16)
    return found


def _each(operation: Callable[..., int]) -> Operation:
    """Make a lane operation of a function on Python integers; the result is 32 bits."""

    def apply(*sources: Lanes) -> Lanes:
        values = [operation(*map(int, lane)) & 0xFFFF_FFFF for lane in zip(*sources, strict=True)]
        return np.array(values, np.uint32)

    return apply


def _each64(operation: Callable[..., int]) -> Operation:
    def apply(*sources: Lanes) -> Lanes:
        mask = 0xFFFF_FFFF_FFFF_FFFF
        values = [operation(*map(int, lane)) & mask for lane in zip(*sources, strict=True)]
        return np.array(values, np.uint64)

    return apply


def _sign(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _bytes(value: int) -> list[int]:
    return [value >> shift & 0xFF for shift in (0, 8, 16, 24)]


def _bit_field(value: int, offset: int, width: int, sign: bool) -> int:
    width &= 31
    if not width:
        return 0
    field = (_sign(value, 32) if sign else value) >> (offset & 31) & (1 << width) - 1
    return _sign(field, width) if sign else field


def _leading_signs(value: int) -> int:
    differing = value ^ (0xFFFF_FFFF if value >> 31 else 0)
    return 32 - differing.bit_length() if differing else -1


def _permute_bytes(first: int, second: int, selectors: int) -> int:
    data = _bytes(second) + _bytes(first)

    def one(selector: int) -> int:
        if selector >= 13:
            return 0xFF
        if selector == 12:
            return 0
        if selector >= 8:
            return 0xFF * (data[2 * (selector - 8) + 1] >> 7)
        return data[selector]

    return sum(one(selector) << 8 * place for place, selector in enumerate(_bytes(selectors)))


def _sad_u8(first: int, second: int, total: int, masked: bool = False) -> int:
    pairs = zip(_bytes(first), _bytes(second), strict=True)
    return total + sum(abs(a - b) for a, b in pairs if b or not masked)


def _sad_words(first: int, second: int, total: int) -> int:
    halves = ((first >> shift & 0xFFFF, second >> shift & 0xFFFF) for shift in (0, 16))
    return total + sum(abs(a - b) for a, b in halves)


def _quad_sad(first: int, second: int, total: int, masked: bool) -> int:
    """Four sums of byte differences at four byte offsets, in 16 bits each."""
    found = 0
    for place in range(4):
        old = total >> 16 * place & 0xFFFF
        window = first >> 8 * place & 0xFFFF_FFFF
        found |= (_sad_u8(window, second, old, masked) & 0xFFFF) << 16 * place
    return found


def _lerp(first: int, second: int, rounding: int) -> int:
    triples = zip(_bytes(first), _bytes(second), _bytes(rounding), strict=True)
    return sum((a + b + (c & 1) >> 1) << 8 * place for place, (a, b, c) in enumerate(triples))


def _below(start: int) -> Operation:
    """Count bits of lanes below each lane; start: the first lane that the mask's word is about."""

    def apply(mask: Lanes, total: Lanes) -> Lanes:
        counts = [
            (int(mask[lane]) & (1 << max(0, lane - start)) - 1).bit_count() for lane in range(LANES)
        ]
        return u32(np.array(counts) + wide(total))

    return apply


@cache
def operations() -> dict[str, Operation]:
    """Return the operations on 32-bit (and mixed) integers by name."""
    table: dict[str, Operation] = {
        "v_mov_b32": lambda a: a,
        "v_not_b32": lambda a: ~a,
        "v_bfrev_b32": _each(lambda a: int(f"{a:032b}"[::-1], 2)),
        "v_clz_i32_u32": _each(lambda a: 32 - a.bit_length() if a else -1),
        "v_ctz_i32_b32": _each(lambda a: (a & -a).bit_length() - 1 if a else -1),
        "v_cls_i32": _each(_leading_signs),
        "v_and_b32": lambda a, b: a & b,
        "v_or_b32": lambda a, b: a | b,
        "v_xor_b32": lambda a, b: a ^ b,
        "v_xnor_b32": lambda a, b: ~(a ^ b),
        "v_lshlrev_b32": lambda a, b: b << (a & np.uint32(31)),
        "v_lshrrev_b32": lambda a, b: b >> (a & np.uint32(31)),
        "v_ashrrev_i32": lambda a, b: u32(signed(b) >> wide(a & np.uint32(31))),
        "v_lshlrev_b64": lambda a, b: b << (a.astype(np.uint64) & np.uint64(63)),
        "v_lshrrev_b64": lambda a, b: b >> (a.astype(np.uint64) & np.uint64(63)),
        "v_ashrrev_i64": lambda a, b: (b.view(np.int64) >> (wide(a) & 63)).view(np.uint64),
        "v_min_i32": lambda a, b: u32(np.minimum(signed(a), signed(b))),
        "v_max_i32": lambda a, b: u32(np.maximum(signed(a), signed(b))),
        "v_min_u32": np.minimum,
        "v_max_u32": np.maximum,
        "v_mul_lo_u32": lambda a, b: a * b,
        "v_mul_hi_u32": _each(lambda a, b: a * b >> 32),
        "v_mul_hi_i32": _each(lambda a, b: _sign(a, 32) * _sign(b, 32) >> 32),
        "v_mul_u32_u24": _each(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
        "v_mul_hi_u32_u24": _each(lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
        "v_mul_i32_i24": _each(lambda a, b: _sign(a, 24) * _sign(b, 24)),
        "v_mul_hi_i32_i24": _each(lambda a, b: _sign(a, 24) * _sign(b, 24) >> 32),
        "v_bfe_u32": _each(lambda a, b, c: _bit_field(a, b, c, sign=False)),
        "v_bfe_i32": _each(lambda a, b, c: _bit_field(a, b, c, sign=True)),
        "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
        "v_bfm_b32": _each(lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
        "v_bcnt_u32_b32": _each(lambda a, b: a.bit_count() + b),
        "v_mbcnt_lo_u32_b32": _below(0),
        "v_mbcnt_hi_u32_b32": _below(LANES),
        "v_alignbit_b32": _each(lambda a, b, c: (a << 32 | b) >> (c & 31)),
        "v_alignbyte_b32": _each(lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)),
        "v_perm_b32": _each(_permute_bytes),
        "v_xad_u32": lambda a, b, c: (a ^ b) + c,
        "v_lshl_add_u32": lambda a, b, c: (a << (b & np.uint32(31))) + c,
        "v_add_lshl_u32": lambda a, b, c: (a + b) << (c & np.uint32(31)),
        "v_lshl_or_b32": lambda a, b, c: (a << (b & np.uint32(31))) | c,
        "v_and_or_b32": lambda a, b, c: (a & b) | c,
        "v_or3_b32": lambda a, b, c: a | b | c,
        "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
        "v_add3_u32": lambda a, b, c: a + b + c,
        "v_sad_u8": _each(_sad_u8),
        "v_msad_u8": _each(lambda a, b, c: _sad_u8(a, b, c, masked=True)),
        "v_sad_hi_u8": _each(lambda a, b, c: (_sad_u8(a, b, 0) << 16) + c),
        "v_sad_u16": _each(_sad_words),
        "v_sad_u32": _each(lambda a, b, c: abs(a - b) + c),
        "v_qsad_pk_u16_u8": _each64(lambda a, b, c: _quad_sad(a, b, c, masked=False)),
        "v_mqsad_pk_u16_u8": _each64(lambda a, b, c: _quad_sad(a, b, c, masked=True)),
        "v_lerp_u8": _each(_lerp),
        "v_sat_pk_u8_i16": lambda a: u16(
            np.clip(signed(a, 16), 0, 255) | np.clip(signed(a >> np.uint32(16), 16), 0, 255) << 8
        ),
    }
    table.update(_three_way("i32", signed, u32))
    table.update(_three_way("u32", wide, u32))
    table.update(_three_way("i16", lambda a: signed(a, 16), u16))
    table.update(_three_way("u16", wide, u16))
    table.update(_sixteen())
    return table


def _three_way(kind: str, read: Operation, write: Operation) -> dict[str, Operation]:
    def ordered(number: int) -> Operation:
        return lambda a, b, c: write(np.sort([read(a), read(b), read(c)], axis=0)[number])

    return {
        f"v_min3_{kind}": ordered(0),
        f"v_med3_{kind}": ordered(1),
        f"v_max3_{kind}": ordered(2),
        f"v_minmax_{kind}": lambda a, b, c: write(
            np.maximum(np.minimum(read(a), read(b)), read(c))
        ),
        f"v_maxmin_{kind}": lambda a, b, c: write(
            np.minimum(np.maximum(read(a), read(b)), read(c))
        ),
    }


def _sixteen() -> dict[str, Operation]:
    """Return the operations on 16-bit integers."""
    return {
        "v_mov_b16": lambda a: a,
        "v_not_b16": lambda a: ~a,
        "v_and_b16": lambda a, b: a & b,
        "v_or_b16": lambda a, b: a | b,
        "v_xor_b16": lambda a, b: a ^ b,
        "v_lshlrev_b16": lambda a, b: u16(wide(b) << wide(a & np.uint16(15))),
        "v_lshrrev_b16": lambda a, b: u16(wide(b) >> wide(a & np.uint16(15))),
        "v_ashrrev_i16": lambda a, b: u16(signed(b, 16) >> wide(a & np.uint16(15))),
        "v_mul_lo_u16": lambda a, b: u16(wide(a) * wide(b)),
        "v_min_i16": lambda a, b: u16(np.minimum(signed(a, 16), signed(b, 16))),
        "v_max_i16": lambda a, b: u16(np.maximum(signed(a, 16), signed(b, 16))),
        "v_min_u16": np.minimum,
        "v_max_u16": np.maximum,
    }


# Operations that the clamp modifier makes saturate: the exact result in int64, and its type.
_EXACT: dict[str, tuple[str, Operation]] = {
    "v_add_nc_u32": ("u32", lambda a, b: wide(a) + wide(b)),
    "v_sub_nc_u32": ("u32", lambda a, b: wide(a) - wide(b)),
    "v_subrev_nc_u32": ("u32", lambda a, b: wide(b) - wide(a)),
    "v_add_nc_i32": ("i32", lambda a, b: signed(a) + signed(b)),
    "v_sub_nc_i32": ("i32", lambda a, b: signed(a) - signed(b)),
    "v_add_nc_u16": ("u16", lambda a, b: wide(a) + wide(b)),
    "v_sub_nc_u16": ("u16", lambda a, b: wide(a) - wide(b)),
    "v_add_nc_i16": ("i16", lambda a, b: signed(a, 16) + signed(b, 16)),
    "v_sub_nc_i16": ("i16", lambda a, b: signed(a, 16) - signed(b, 16)),
    "v_mad_u16": ("u16", lambda a, b, c: wide(a) * wide(b) + wide(c)),
    "v_mad_i16": ("i16", lambda a, b, c: signed(a, 16) * signed(b, 16) + signed(c, 16)),
    "v_mad_u32_u24": ("u32", lambda a, b, c: wide(a & 0xFFFFFF) * wide(b & 0xFFFFFF) + wide(c)),
    "v_mad_i32_i24": ("i32", lambda a, b, c: signed(a, 24) * signed(b, 24) + signed(c)),
    "v_mad_u32_u16": ("u32", lambda a, b, c: wide(a) * wide(b) + wide(c)),
    "v_mad_i32_i16": ("i32", lambda a, b, c: signed(a, 16) * signed(b, 16) + signed(c)),
}
_LIMITS = {
    "u32": (0, 0xFFFF_FFFF),
    "i32": (-0x8000_0000, 0x7FFF_FFFF),
    "u16": (0, 0xFFFF),
    "i16": (-0x8000, 0x7FFF),
}


def saturating(name: str, sources: list[Lanes], clamp: bool) -> Lanes | None:
    """Execute an operation that can saturate; None if `name` is none."""
    if name not in _EXACT:
        return None
    kind, operation = _EXACT[name]
    exact = operation(*sources)
    if clamp:
        exact = np.clip(exact, *_LIMITS[kind])
    return u32(exact) if kind.endswith("32") else u16(exact)


def with_carry(name: str, sources: list[Lanes]) -> tuple[Lanes, Lanes]:
    """Execute an operation that returns a carry (or borrow, or overflow) in each lane."""
    if name.startswith("v_mad"):
        bits = 32
        pairs = []
        for first, second, third in zip(*sources, strict=True):
            if name == "v_mad_u64_u32":
                total = int(first) * int(second) + int(third)
                pairs.append((total, total >> 64 != 0))
            else:
                total = _sign(int(first), bits) * _sign(int(second), bits) + _sign(int(third), 64)
                pairs.append((total, bool(total >> 64 & 1)))
        values = np.array([total & 0xFFFF_FFFF_FFFF_FFFF for total, _ in pairs], np.uint64)
        return values, np.array([carry for _, carry in pairs])
    first, second = wide(sources[0]), wide(sources[1])
    carry_in: Lanes = wide(sources[2]) if len(sources) > 2 else np.zeros(LANES, np.int64)
    if name.startswith("v_subrev"):
        first, second = second, first
    sums = first + second + carry_in if name.startswith("v_add") else first - second - carry_in
    overflow: Lanes = (sums < 0) | (sums > 0xFFFF_FFFF)
    return u32(sums), overflow
