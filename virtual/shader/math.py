"""Native exp2, log2, sine, cosine and tanh of 32 lanes, for translated kernels.

Arguments and results are f32; the work is done in f64 with polynomials whose error is below 2^-40,
so that the result is nearly always the correctly rounded one. (The chip's own units err by up to
one unit in the last place.) Sine and cosine take revolutions, as the instructions do.
"""

from __future__ import annotations

import math
import struct

from ugpu.virtual.shader.library import Part
from ugpu.virtual.shader.text import Text, constant

_KIND = "double"


def _bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _number(value: float) -> str:
    return constant(_KIND, _bits(value))


def _polynomial(e: Text, x: str, coefficients: list[float]) -> str:
    """Evaluate c0 + c1 x + c2 x^2 ... by Horner's rule."""
    result = _number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = e.intrinsic("fma", _KIND, result, x, _number(coefficient))
    return result


def _clamped(e: Text, x: str, low: float, high: float) -> str:
    """Limit x to low..high; a NaN stays."""
    x = e.select(e.compare("olt", _KIND, x, _number(low)), _KIND, _number(low), x)
    return e.select(e.compare("ogt", _KIND, x, _number(high)), _KIND, _number(high), x)


def _exp2(e: Text, x: str) -> str:
    x = _clamped(e, x, -300.0, 300.0)
    whole = e.intrinsic("roundeven", _KIND, x)
    part = e.binary("fsub", _KIND, x, whole)
    terms = [math.log(2) ** k / math.factorial(k) for k in range(12)]
    fraction = _polynomial(e, part, terms)
    # 1.5 * 2^52 added: the low bits of the sum are the integer.
    shifted = e.binary("fadd", _KIND, whole, _number(1.5 * 2.0**52))
    bits = e.convert("bitcast", _KIND, "i64", shifted)
    scale = e.binary("add", "i64", e.binary("shl", "i64", bits, constant("i64", 52)),
                     constant("i64", 1023 << 52))  # fmt: skip
    return e.binary("fmul", _KIND, fraction, e.convert("bitcast", "i64", _KIND, scale))


def _log2(e: Text, x: str) -> str:
    bits = e.convert("bitcast", _KIND, "i64", x)
    # Mantissa in sqrt(1/2)..sqrt(2): subtract sqrt(1/2) before splitting.
    root = _bits(math.sqrt(0.5))
    moved = e.binary("sub", "i64", bits, constant("i64", root))
    exponent = e.binary("ashr", "i64", moved, constant("i64", 52))
    mantissa = e.binary("sub", "i64", bits, e.binary("shl", "i64", exponent, constant("i64", 52)))
    m = e.convert("bitcast", "i64", _KIND, mantissa)
    ratio = e.binary(
        "fdiv", _KIND, e.binary("fadd", _KIND, m, _number(-1.0)),
        e.binary("fadd", _KIND, m, _number(1.0)),
    )  # fmt: skip
    square = e.binary("fmul", _KIND, ratio, ratio)
    series = _polynomial(e, square, [2 / math.log(2) / (2 * k + 1) for k in range(10)])
    whole = e.convert("sitofp", "i64", _KIND, exponent)
    result = e.intrinsic("fma", _KIND, ratio, series, whole)
    infinity = _number(math.inf)
    result = e.select(e.compare("oeq", _KIND, x, infinity), _KIND, infinity, result)
    zero = e.compare("oeq", _KIND, x, _number(0.0))
    negative = e.compare("ult", _KIND, x, _number(0.0))  # or NaN
    result = e.select(negative, _KIND, constant(_KIND, 0x7FF8 << 48), result)
    return e.select(zero, _KIND, _number(-math.inf), result)


def _sine(e: Text, turns: str) -> str:
    """Return the sine of 2 pi times `turns`; minus zero for minus zero, NaN for infinities."""
    part = e.binary("fsub", _KIND, turns, e.intrinsic("roundeven", _KIND, turns))
    # Fold -1/2..1/2 into -1/4..1/4: sin(pi - a) = sin(a).
    signed_half = e.intrinsic("copysign", _KIND, _number(0.5), part)
    folded = e.binary("fsub", _KIND, signed_half, part)
    outer = e.compare("ogt", _KIND, e.intrinsic("fabs", _KIND, part), _number(0.25))
    part = e.select(outer, _KIND, folded, part)
    square = e.binary("fmul", _KIND, part, part)
    terms = [
        (-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(10)
    ]
    result = e.binary("fmul", _KIND, part, _polynomial(e, square, terms))
    return e.select(e.compare("oeq", _KIND, turns, _number(0.0)), _KIND, turns, result)


def _cosine(e: Text, turns: str) -> str:
    part = e.binary("fsub", _KIND, turns, e.intrinsic("roundeven", _KIND, turns))
    return _sine(e, e.binary("fadd", _KIND, part, _number(0.25)))


def _tanh(e: Text, x: str) -> str:
    power = _exp2(e, e.binary("fmul", _KIND, x, _number(2 / math.log(2))))
    ratio = e.binary(
        "fdiv", _KIND, e.binary("fadd", _KIND, power, _number(-1.0)),
        e.binary("fadd", _KIND, power, _number(1.0)),
    )  # fmt: skip
    small = e.compare("olt", _KIND, e.intrinsic("fabs", _KIND, x), _number(2.0**-20))
    return e.select(small, _KIND, x, ratio)


_FUNCTIONS = {"exp2": _exp2, "log2": _log2, "sin": _sine, "cos": _cosine, "tanh": _tanh}
_OF_TURNS = {"sin_turns": _sine, "cos_turns": _cosine}  # of an f64, for callers that use radians


def math_ir(prefix: str) -> tuple[str, set[str]]:
    """Return the IR of the functions, named after `prefix`, and the declarations they need."""
    parts: list[str] = []
    declarations: set[str] = set()
    for name, function in _FUNCTIONS.items():
        e = Text()
        wide = e.convert("fpext", "float", _KIND, "%x")
        result = e.convert("fptrunc", _KIND, "float", function(e, wide))
        head = f"define <32 x float> @{prefix}{name}(<32 x float> %x) noinline {{"
        parts.append("\n".join([head, *e.lines, f"  ret <32 x float> {result}", "}"]))
        declarations |= e.declarations
    for name, function in _OF_TURNS.items():
        e = Text()
        result = e.convert("fptrunc", _KIND, "float", function(e, "%x"))
        head = f"define <32 x float> @{prefix}{name}(<32 x double> %x) noinline {{"
        parts.append("\n".join([head, *e.lines, f"  ret <32 x float> {result}", "}"]))
        declarations |= e.declarations
    return "\n".join(parts), declarations


def part(prefix: str) -> Part:
    """Return the functions as part of a library."""
    return lambda: math_ir(prefix), [prefix + name for name in (*_FUNCTIONS, *_OF_TURNS)]
