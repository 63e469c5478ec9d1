"""Floating-point vector operations and conversions for the oracle.

Source: RDNA3 ISA document, chapter "Vector ALU operations". Transcendental operations are computed
in double precision and rounded: the hardware's are within 1 ulp of that (LLVM AMDGPUUsage).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from functools import cache

import numpy as np

from lab.oracles.gfx11 import float as fp
from lab.oracles.gfx11.integer import signed, u16, u32, wide
from lab.oracles.gfx11.state import Lanes, flush

Operation = Callable[..., Lanes]
_KINDS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def _double(operation: Callable[[Lanes], Lanes]) -> Operation:
    """Compute in double precision, then round to the source's type."""

    def apply(values: Lanes) -> Lanes:
        found: Lanes = operation(values.astype(np.float64)).astype(values.dtype)
        return found

    return apply


def _flushing(operation: Operation) -> Operation:
    """Flush denormals on both sides, as the f32 transcendental unit does."""

    def apply(values: Lanes) -> Lanes:
        if values.dtype.type is np.float32:
            return flush(operation(flush(values)))
        return operation(values)

    return apply


def _sine(turns: Lanes) -> Lanes:
    """Return sin(2 pi turns); exactly 0 at every half turn, minus zero for minus zero."""
    rest = np.fmod(turns, 1.0)
    halves = np.rint(2 * rest)
    sine = np.sin((rest - halves / 2) * (2 * np.pi))
    return np.array(np.where(turns == 0, turns, np.where(halves % 2 == 1, -sine, sine)))


def _cosine(turns: Lanes) -> Lanes:
    return _sine(np.fmod(turns, 1.0) + 0.25)


def _dx9_product(first: Lanes, second: Lanes) -> Lanes:
    zero = (first == 0) | (second == 0)
    return np.where(zero, first.dtype.type(0), fp.multiply(first, second))


def _mullit(first: Lanes, second: Lanes, third: Lanes) -> Lanes:
    lowest = np.finfo(np.float32).min
    refused = (second == lowest) | np.isneginf(second) | np.isnan(second)
    refused |= (third <= 0) | np.isnan(third)
    return np.where(refused, lowest, _dx9_product(first, second))


# 2/pi to 1201 bits, by decimal digits; pi from Gauss's and Legendre's iteration.
@cache
def _two_over_pi() -> int:
    with decimal.localcontext(prec=420):
        a, b = decimal.Decimal(1), 1 / decimal.Decimal(2).sqrt()
        t, p = decimal.Decimal("0.25"), decimal.Decimal(1)
        for _ in range(10):
            a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
        return int(2 * 4 * t / (a + b) ** 2 * 2**1216)


def _trig_preop(angle: Lanes, segment: Lanes) -> Lanes:
    """Return 53 bits of 2/pi by lane; see RDNA3 ISA document, V_TRIG_PREOP_F64."""
    results = []
    for bits, number in zip(angle.view(np.uint64).tolist(), segment.tolist(), strict=True):
        exponent = bits >> 52 & 0x7FF
        shift = (number & 31) * 53 + max(0, exponent - 1077)
        scale = -53 - shift + (128 if exponent >= 1968 else 0)
        # The table has 37 words, and three are taken at a time: behind, hardware reads zero.
        found = 0 if shift // 32 + 2 >= 37 else _two_over_pi() >> 1216 - 53 - shift & (1 << 53) - 1
        results.append(math.ldexp(found, scale))
    return np.array(results)


def _dx9_fma(first: Lanes, second: Lanes, third: Lanes) -> Lanes:
    zero = (first == 0) | (second == 0)
    return np.where(zero, third, fp.fma(first, second, third))


def _div_fixup(quotient: Lanes, denominator: Lanes, numerator: Lanes) -> Lanes:
    kind = quotient.dtype.type
    negative = np.signbit(denominator) != np.signbit(numerator)
    distance = fp.exponent(numerator) - fp.exponent(denominator)
    lowest = {np.float16: None, np.float32: -150, np.float64: -1075}[kind]
    underflow = distance < lowest if lowest is not None else np.zeros(len(quotient), bool)
    zero = kind(0)
    huge = kind(np.inf)
    size = np.select(
        [
            (denominator == 0) | np.isinf(numerator),
            np.isinf(denominator) | (numerator == 0),
            underflow,
        ],
        [huge, zero, zero],
        # Steps that overflowed leave a NaN behind: the quotient of finite numbers is infinite.
        np.where(np.isnan(quotient), huge, np.abs(quotient)),
    ).astype(kind)
    result = np.where(negative, -size, size)
    invalid = ((denominator == 0) & (numerator == 0)) | (
        np.isinf(denominator) & np.isinf(numerator)
    )
    result = np.where(invalid, -kind(np.nan), result)
    result = np.where(np.isnan(denominator), fp.quieted(denominator), result)
    return np.where(np.isnan(numerator), fp.quieted(numerator), result).astype(kind)


def div_scale(value: Lanes, denominator: Lanes, numerator: Lanes) -> tuple[Lanes, Lanes]:
    """Return the scaled value and where the quotient will need scaling back.

    The ISA document's denormal tests read as meant: 1/denominator denormal in the operand's type,
    and then the denominator is scaled down. Both are told by exponents, and zeros set the flag, as
    on boards (tinygrad, test/amd/hw/test_vop3.py, TestDivScale).
    """
    kind = value.dtype.type
    single = kind is np.float32
    step, far, tiny = (64, 96, 23) if single else (128, 768, 53)
    distance = fp.exponent(numerator) - fp.exponent(denominator)
    is_denominator = fp.bits_of(value) == fp.bits_of(denominator)
    is_numerator = fp.bits_of(value) == fp.bits_of(numerator)
    bias = 127 if single else 1023
    field = fp.exponent(denominator)
    tiny_reciprocal = (field >= 2 * bias - 1) & (field <= 2 * bias)
    with np.errstate(all="ignore"):
        tiny_quotient = fp.is_denormal((numerator / denominator).astype(kind))
    tiny_quotient |= (distance <= 1 - bias) & (field <= 2 * bias)
    up, down = (
        fp.ldexp(value, np.full(len(value), step)),
        fp.ldexp(value, np.full(len(value), -step)),
    )
    cases = [
        (numerator == 0) | (denominator == 0),
        distance >= far,
        fp.is_denormal(denominator),
        tiny_reciprocal & tiny_quotient,
        tiny_reciprocal,
        tiny_quotient,
        fp.exponent(numerator) <= tiny,
    ]
    scaled = np.select(
        cases,
        [
            np.full(len(value), np.nan, kind),
            np.where(is_denominator, up, value),
            up,
            np.where(is_denominator, down, value),
            down,
            np.where(is_numerator, up, value),
            up,
        ],
        value,
    )
    no, yes = np.zeros(len(value), bool), np.ones(len(value), bool)
    return scaled.astype(kind), np.select(cases, [yes, yes, no, yes, no, yes, no], no)


def div_fmas(first: Lanes, second: Lanes, third: Lanes, scale: Lanes) -> Lanes:
    """Return the fma, scaled back where VCC says so: up for large quotients, down for small.

    Rounding comes once, after scaling: denormal quotients would otherwise be rounded twice.
    """
    kind = first.dtype.type
    if kind is np.float32:
        product = first.astype(np.float64) * second.astype(np.float64)
        total = fp.add_exactly(product, third.astype(np.float64))
        powers = np.where(scale, np.where(fp.exponent(third) > 127, 64, -64), 0)
        return np.ldexp(total, powers).astype(np.float32)
    powers = np.where(scale, np.where(fp.exponent(third) > 1023, 128, -128), 0)
    return fp.fma_scaled(first, second, third, powers)


def _cube_face(x: Lanes, y: Lanes, z: Lanes) -> tuple[Lanes, Lanes]:
    """Return where z, and else where y, is the major axis."""
    major_z = (np.abs(z) >= np.abs(x)) & (np.abs(z) >= np.abs(y))
    return major_z, ~major_z & (np.abs(y) >= np.abs(x))


def _cube_id(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    on_z, on_y = _cube_face(x, y, z)
    face = np.select([on_z, on_y], [4 + (z < 0), 2 + (y < 0)], 0 + (x < 0))
    return face.astype(np.float32)


def _cube_s(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    on_z, on_y = _cube_face(x, y, z)
    return np.select([on_z, on_y], [np.where(z < 0, -x, x), x], np.where(x < 0, z, -z))


def _cube_t(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    on_z, on_y = _cube_face(x, y, z)
    return np.select([on_z, on_y], [-y, np.where(y < 0, -z, z)], -y)


def _cube_axis(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    on_z, on_y = _cube_face(x, y, z)
    return np.select([on_z, on_y], [z, y], x) * np.float32(2)


@cache
def operations(ieee: bool = True) -> dict[str, Operation]:
    """Return the floating-point operations by name. ieee: MODE.IEEE, minima quiet NaNs."""
    table: dict[str, Operation] = {
        "v_mul_dx9_zero_f32": _dx9_product,
        "v_mullit_f32": _mullit,
        "v_trig_preop_f64": _trig_preop,
        "v_fma_dx9_zero_f32": _dx9_fma,
        "v_rcp_iflag_f32": _flushing(_double(np.reciprocal)),
        "v_cubeid_f32": _cube_id,
        "v_cubesc_f32": _cube_s,
        "v_cubetc_f32": _cube_t,
        "v_cubema_f32": _cube_axis,
        "v_pack_b32_f16": lambda a, b: (
            a.view(np.uint16).astype(np.uint32)
            | b.view(np.uint16).astype(np.uint32) << np.uint32(16)
        ),
    }
    for kind in _KINDS:
        table.update(_common(kind))
        table.update(_extremes(kind, ieee))
    table.update(_conversions())
    return table


def _common(kind: str) -> dict[str, Operation]:
    named: dict[str, Operation] = {
        "add": fp.add,
        "sub": fp.subtract,
        "subrev": lambda a, b: fp.subtract(b, a),
        "mul": fp.multiply,
        "fma": fp.fma,
        "div_fixup": _div_fixup,
        "ldexp": lambda a, b: fp.ldexp(a, signed(b, 8 * b.itemsize)),
        "trunc": np.trunc,
        "ceil": np.ceil,
        "floor": np.floor,
        "rndne": np.rint,
        "fract": fp.fraction,
        "frexp_mant": fp.frexp_mantissa,
        "rcp": _flushing(_double(np.reciprocal)),
        "rsq": _flushing(_double(lambda a: 1 / np.sqrt(a))),
        "sqrt": _flushing(_double(np.sqrt)),
        "exp": _flushing(_double(np.exp2)),
        "log": _flushing(_double(np.log2)),
        "sin": _flushing(_double(_sine)),
        "cos": _flushing(_double(_cosine)),
    }
    return {f"v_{stem}_{kind}": operation for stem, operation in named.items()}


def _extremes(kind: str, ieee: bool) -> dict[str, Operation]:
    def least(a: Lanes, b: Lanes) -> Lanes:
        return fp.minimum(a, b, ieee)

    def most(a: Lanes, b: Lanes) -> Lanes:
        return fp.maximum(a, b, ieee)

    return {
        f"v_min_{kind}": least,
        f"v_max_{kind}": most,
        f"v_min3_{kind}": lambda a, b, c: least(least(a, b), c),
        f"v_max3_{kind}": lambda a, b, c: most(most(a, b), c),
        f"v_med3_{kind}": lambda a, b, c: fp.median(a, b, c, ieee),
        f"v_minmax_{kind}": lambda a, b, c: most(least(a, b), c),
        f"v_maxmin_{kind}": lambda a, b, c: least(most(a, b), c),
    }


def _to_int(low: int, high: int, write: Operation, before: Operation | None = None) -> Operation:
    def apply(values: Lanes) -> Lanes:
        numbers = values.astype(np.float64)
        if before is not None:
            numbers = before(numbers)
        return write(fp.to_integer(numbers, low, high))

    return apply


_I32 = (-0x8000_0000, 0x7FFF_FFFF)
_U32 = (0, 0xFFFF_FFFF)


def _normalized(values: Lanes, low: float, scale: float) -> Lanes:
    numbers = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1.0, neginf=low)
    return u16(np.rint(np.clip(numbers, low, 1.0) * scale))


def _pair(low: Lanes, high: Lanes) -> Lanes:
    found: Lanes = low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
    return found


def _pack(operation: Callable[[Lanes], Lanes]) -> Operation:
    return lambda a, b: _pair(operation(a), operation(b))


def _pack_byte(value: Lanes, place: Lanes, old: Lanes) -> Lanes:
    shift = np.uint32(8) * (place & np.uint32(3))
    # UNSURE: whether to nearest (as here) or towards zero; a test on silicon would settle it.
    byte = fp.to_integer(np.rint(value), 0, 255).astype(np.uint32)
    found: Lanes = (old & ~(np.uint32(0xFF) << shift)) | byte << shift
    return found


def _conversions() -> dict[str, Operation]:
    table: dict[str, Operation] = {
        "v_cvt_i32_f32": _to_int(*_I32, u32),
        "v_cvt_i32_f64": _to_int(*_I32, u32),
        "v_cvt_u32_f32": _to_int(*_U32, u32),
        "v_cvt_u32_f64": _to_int(*_U32, u32),
        "v_cvt_u16_f16": _to_int(0, 0xFFFF, u16),
        "v_cvt_i16_f16": _to_int(-0x8000, 0x7FFF, u16),
        # The addition is in f32: 0.5 - 2^-25 becomes 1.
        "v_cvt_nearest_i32_f32": lambda a: u32(
            fp.to_integer(np.floor(fp.add(a, np.full_like(a, 0.5))), *_I32)
        ),
        "v_cvt_floor_i32_f32": _to_int(*_I32, u32, np.floor),
        "v_cvt_f32_i32": lambda a: signed(a).astype(np.float32),
        "v_cvt_f32_u32": lambda a: wide(a).astype(np.float32),
        "v_cvt_f64_i32": lambda a: signed(a).astype(np.float64),
        "v_cvt_f64_u32": lambda a: wide(a).astype(np.float64),
        "v_cvt_f16_i16": lambda a: signed(a, 16).astype(np.float16),
        "v_cvt_f16_u16": lambda a: wide(a).astype(np.float16),
        "v_cvt_i32_i16": lambda a: u32(signed(a, 16)),
        "v_cvt_u32_u16": u32,
        "v_cvt_f16_f32": lambda a: a.astype(np.float16),
        "v_cvt_f32_f16": lambda a: a.astype(np.float32),
        "v_cvt_f32_f64": lambda a: a.astype(np.float32),
        "v_cvt_f64_f32": lambda a: a.astype(np.float64),
        "v_cvt_off_f32_i4": lambda a: (signed(a, 4) / 16).astype(np.float32),
        "v_cvt_norm_i16_f16": lambda a: _normalized(a, -1.0, 32767.0),
        "v_cvt_norm_u16_f16": lambda a: _normalized(a, 0.0, 65535.0),
        "v_cvt_pk_rtz_f16_f32": lambda a, b: _pair(
            fp.f32_to_f16_towards_zero(a).view(np.uint16),
            fp.f32_to_f16_towards_zero(b).view(np.uint16),
        ),
        "v_cvt_pk_i16_f32": _pack(_to_int(-0x8000, 0x7FFF, u16)),
        "v_cvt_pk_u16_f32": _pack(_to_int(0, 0xFFFF, u16)),
        "v_cvt_pk_i16_i32": _pack(lambda a: u16(np.clip(signed(a), -0x8000, 0x7FFF))),
        "v_cvt_pk_u16_u32": _pack(lambda a: u16(np.minimum(wide(a), 0xFFFF))),
        "v_cvt_pk_u8_f32": _pack_byte,
        "v_frexp_exp_i32_f32": lambda a: u32(fp.frexp_exponent(a)),
        "v_frexp_exp_i32_f64": lambda a: u32(fp.frexp_exponent(a)),
        "v_frexp_exp_i16_f16": lambda a: u16(fp.frexp_exponent(a)),
    }
    for place in range(4):
        table[f"v_cvt_f32_ubyte{place}"] = lambda a, place=place: (
            a >> np.uint32(8 * place) & np.uint32(0xFF)
        ).astype(np.float32)
    for source in ("f16", "f32"):
        table[f"v_cvt_pk_norm_i16_{source}"] = _pack(lambda a: _normalized(a, -1.0, 32767.0))
        table[f"v_cvt_pk_norm_u16_{source}"] = _pack(lambda a: _normalized(a, 0.0, 65535.0))
    return table
