"""Functions that the pseudocode calls without defining them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from tests.support.pcode import numbers
from tests.support.pcode.machine import State, bounds
from tests.support.pcode.numbers import FORMATS, Format
from tests.support.pcode.operators import Unsupported, add, negate
from tests.support.pcode.values import NEAR, Value, real, truth

_CONVERSION = re.compile(r"([uif]|bf|fp)(\d+)_to_([uif]|bf|fp)(\d+)$")
_NORMALISED = re.compile(r"f(16|32)_to_([su])norm$")


def _mantissa(state: State, x: Value) -> Value:
    form = x.form
    if not x.number & ~form.sign:
        return x
    mantissa, _ = numbers.parts(form, x.number)
    bits = numbers.rounded(form, abs(mantissa), -abs(mantissa).bit_length(), mantissa < 0)
    return Value(x.kind, x.width, bits)


def _fma(state: State, a: Value, b: Value, c: Value) -> Value:
    bits = numbers.fused(a.form, a.number, b.number, c.number, state.mode)
    return real(a.kind, a.width, bits, a.mark | b.mark | c.mark)


def _floor(state: State, x: Value) -> Value:
    return real(x.kind, x.width, numbers.truncated(x.form, x.number, -1), x.mark)


def _fract(state: State, x: Value) -> Value:
    return add(x, negate(_floor(state, x)), state.mode)


def _near(x: Value, value: float) -> Value:
    return real(x.kind, x.width, numbers.from_float(x.form, value), NEAR)


def _pow(state: State, base: Value, x: Value) -> Value:
    value = numbers.to_float(x.form, x.number)
    if numbers.to_float(base.form, base.number) != 2.0:
        raise Unsupported("pow of another base than 2")
    if value >= 1024:
        return _near(x, math.inf)
    return _near(x, value if math.isnan(value) else 2.0 ** max(value, -2000.0))


def _log2(state: State, x: Value) -> Value:
    value = numbers.to_float(x.form, x.number)
    if math.isnan(value) or value < 0:
        return _near(x, math.nan)
    return _near(x, -math.inf if not value else value if math.isinf(value) else math.log2(value))


def _turn(function: Callable[[float], float]) -> Callable[[State, Value], Value]:
    def of(state: State, x: Value) -> Value:
        form = FORMATS["f", x.width]
        if x.kind != "turns":
            raise Unsupported("an angle that is not a multiple of 2 pi")
        angle = numbers.to_float(form, x.number)
        result = Value("f", x.width, 0)
        if math.isnan(angle) or math.isinf(angle):
            return _near(result, math.nan)
        part = Fraction(angle) % 1
        return _near(result, function(2 * math.pi * float(part)))

    return of


def _ldexp(state: State, x: Value, power: Value) -> Value:
    return real(x.kind, x.width, numbers.scaled(x.form, x.number, power.number, state.mode))


def _sign_extended(state: State, x: Value, count: Value) -> Value:
    width = count.number
    if not 0 < width < x.width:
        return x if width else Value("i", x.width, 0)
    number = x.number & ((1 << width) - 1)
    return Value("i", x.width, number - (number >> (width - 1) << width))


def _quiet(state: State, x: Value) -> Value:
    return Value(x.kind, x.width, x.number | 1 << (x.form.fraction - 1))


def _exponent_of(state: State, x: Value) -> Value:
    """The exponent of a mantissa in 0.5 to 1; 0 for zero."""
    mantissa, power = numbers.parts(x.form, x.number)
    return Value("i", 32, power + abs(mantissa).bit_length() if mantissa else 0)


def _roundeven(state: State, x: Value) -> Value:
    if numbers.is_nan(x.form, x.number) or numbers.is_infinite(x.form, x.number):
        return real(x.kind, x.width, x.number)
    whole = numbers.nearest(x.form, x.number, 1, *bounds(2000))
    negative = x.number & x.form.sign != 0
    return Value(x.kind, x.width, numbers.rounded(x.form, abs(whole), 0, negative))


def _scaled_fma(state: State, a: Value, b: Value, c: Value, power: Value) -> Value:
    bits = numbers.fused(a.form, a.number, b.number, c.number, state.mode)
    if a.width < 64 or not numbers.is_infinite(a.form, bits):
        bits = numbers.fused(a.form, a.number, b.number, c.number, state.mode, power.number)
    return real(a.kind, a.width, bits)


def _lowest(state: State, x: Value) -> Value:
    return Value("i", 32, (x.number & -x.number).bit_length() - 1)


def _float32(state: State, sign: Value, exponent: Value, mantissa: Value) -> Value:
    bits = sign.number << 31 | exponent.number << 23 | mantissa.raw(23)
    return Value("f", 32, bits)


def _magnitude(state: State, x: Value) -> Value:
    if x.floating:
        return Value(x.kind, x.width, x.number & ~x.form.sign, x.marks)
    return Value(x.kind, x.width, abs(x.number))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "isNAN": lambda s, x: truth(numbers.is_nan(x.form, x.number)),
    "isSignalNAN": lambda s, x: truth(numbers.is_signalling(x.form, x.number)),
    "isQuietNAN": lambda s, x: truth(
        numbers.is_nan(x.form, x.number) and not numbers.is_signalling(x.form, x.number)
    ),
    "cvtToQuietNAN": _quiet,
    "sign": lambda s, x: truth(x.number & x.form.sign != 0),
    "abs": _magnitude,
    "exponent": lambda s, x: Value("i", 32, numbers.exponent(x.form, x.number)),
    "mantissa": _mantissa,
    "fma": _fma,
    "floor": _floor,
    "trunc": lambda s, x: real(x.kind, x.width, numbers.truncated(x.form, x.number), x.mark),
    "fract": _fract,
    # Of our corrections.
    "frexp_exponent": _exponent_of,
    "roundeven": _roundeven,
    "quieted": lambda s, x: _quiet(s, x) if numbers.is_nan(x.form, x.number) else x,
    "scaled_fma": _scaled_fma,
    "f32_to_nearest_u8": lambda s, x: Value("u", 8, numbers.nearest(x.form, x.number, 1, 0, 255)),
    "isEven": lambda s, x: truth(numbers.whole(x.form, x.number, *bounds(2000)) % 2 == 0),
    "sqrt": lambda s, x: real(x.kind, x.width, numbers.root(x.form, x.number), NEAR),
    "pow": _pow,
    "log2": _log2,
    "sin": _turn(math.sin),
    "cos": _turn(math.cos),
    "ldexp": _ldexp,
    "signext": lambda s, x: Value("i", 64, x.number),
    "signext_from_bit": _sign_extended,
    "s_ff1_i32_b32": _lowest,
    "s_ff1_i32_b64": _lowest,
    "float32": _float32,
    "s_nop": lambda s, x: x,
    "v_cvt_i16_f32": lambda s, x: Value("i", 16, numbers.whole(x.form, x.number, *bounds(16))),
    "v_cvt_u16_f32": lambda s, x: Value("u", 16, numbers.whole(x.form, x.number, 0, 0xFFFF)),
}


def _convert(source: tuple[str, int], to: tuple[str, int]) -> Callable[..., Value]:
    def of(state: State, x: Value) -> Value:
        if (x.kind, x.width) != source and source in FORMATS:
            raise Unsupported(f"{x} where {source} is converted")
        if to not in FORMATS:
            low, high = bounds(to[1]) if to[0] == "i" else (0, (1 << to[1]) - 1)
            if source in FORMATS:
                return Value(*to, numbers.whole(x.form, x.number, low, high))
            return Value(*to, max(low, min(high, x.number)))
        if source in FORMATS:
            form: Format = FORMATS[to]
            return real(*to, numbers.convert(x.form, form, x.number, state.mode), x.mark)
        return Value(*to, numbers.from_int(FORMATS[to], x.number, state.mode))

    return of


def _normalise(width: int, signed: bool) -> Callable[..., Value]:
    def of(state: State, x: Value) -> Value:
        factor = 0x7FFF if signed else 0xFFFF
        low = -factor if signed else 0
        number = numbers.nearest(FORMATS["f", width], x.number, factor, low, factor)
        return Value("i" if signed else "u", 16, number)

    return of


def function(name: str) -> Callable[..., Value] | None:
    """Return a function by name; None if the document does not define it."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if match := _CONVERSION.match(name):
        first, one, second, two = match.groups()
        return _convert((first, int(one)), (second, int(two)))
    if match := _NORMALISED.match(name):
        return _normalise(int(match[1]), match[2] == "s")
    return None
