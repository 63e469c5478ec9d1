"""Rules of operations on each element. Gradients at edges are PyTorch's: see docs/training.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.expression.elementary import WHOLE_POWERS
from ugpu.compiler.gradients.table import RULES, Rule, rule
from ugpu.compiler.gradients.values import Values

Given = Sequence[Values]
Results = Sequence[Values | None]

# Functions of one element, with the gradient g, the element x and the result y.
_UNARY: dict[str, Callable[[Values, Values, Values], Values]] = {
    "neg": lambda g, x, y: -g,
    "abs": lambda g, x, y: g * x.sign(),
    "sqrt": lambda g, x, y: g / (y * 2),
    "rsqrt": lambda g, x, y: g * y * y * y * -0.5,
    "reciprocal": lambda g, x, y: -g * y * y,
    "exp": lambda g, x, y: g * y,
    "exp2": lambda g, x, y: g * y * math.log(2),
    "expm1": lambda g, x, y: g * (y + 1),
    "log": lambda g, x, y: g / x,
    "log2": lambda g, x, y: g / (x * math.log(2)),
    "log10": lambda g, x, y: g / (x * math.log(10)),
    "log1p": lambda g, x, y: g / (x + 1),
    "sin": lambda g, x, y: g * x.cos(),
    "cos": lambda g, x, y: -g * x.sin(),
    "tan": lambda g, x, y: g * (y * y + 1),
    "asin": lambda g, x, y: g * (1 - x * x).rsqrt(),
    "acos": lambda g, x, y: -g * (1 - x * x).rsqrt(),
    "atan": lambda g, x, y: g / (x * x + 1),
    "sinh": lambda g, x, y: g * x.cosh(),
    "cosh": lambda g, x, y: g * x.sinh(),
    "tanh": lambda g, x, y: g * (1 - y * y),
    "asinh": lambda g, x, y: g * (x * x + 1).rsqrt(),
    "acosh": lambda g, x, y: g * (x * x - 1).rsqrt(),
    "atanh": lambda g, x, y: g / (1 - x * x),
    "erf": lambda g, x, y: g * (-x * x).exp() * (2 / math.sqrt(math.pi)),
    "erfc": lambda g, x, y: g * (-x * x).exp() * (-2 / math.sqrt(math.pi)),
    "erfinv": lambda g, x, y: g * (y * y).exp() * (math.sqrt(math.pi) / 2),
    "gelu": lambda g, x, y: (
        g
        * (
            (x * math.sqrt(0.5)).erf() * 0.5
            + 0.5
            + x * (x * x * -0.5).exp() / math.sqrt(2 * math.pi)
        )
    ),
    "softplus": lambda g, x, y: g * x.sigmoid(),
    "logsigmoid": lambda g, x, y: g * (-x).sigmoid(),
    "sigmoid": lambda g, x, y: g * y * (1 - y),
    "cast": lambda g, x, y: g,
    "contiguous": lambda g, x, y: g,
    "target": lambda g, x, y: g,
    "relu": lambda g, x, y: (y > 0).where(g, 0),
    "straight": lambda g, x, y: g,
    # a root whose result may be zero, where its gradient counts as zero
    "root": lambda g, x, y: (y > 0).where(g / ((y > 0).where(y, 1) * 2), 0),
}


def _of_one(function: Callable[[Values, Values, Values], Values]) -> Rule:
    return lambda g, y, xs, arg: (function(g, xs[0], y),)


RULES.update({name: _of_one(function) for name, function in _UNARY.items()})


def _of_whole_power(n: int) -> Rule:
    return lambda g, y, xs, arg: (g * (xs[0].pow(n - 1) * n),)


RULES.update({f"pow_{n}": _of_whole_power(n) for n in WHOLE_POWERS})


@rule("floor", "ceil", "trunc", "round", "floordiv", "bitcast")
def _steps(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Constant between its steps: no gradient flows."""
    return tuple(None for _ in xs)


@rule("add")
def _add(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return g, g


@rule("sub")
def _sub(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return g, -g


@rule("mul")
def _mul(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return g * xs[1], g * xs[0]


@rule("div")
def _div(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    share = g / xs[1]
    return share, -share * y


@rule("max", "min")
def _extreme(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """To the operand that was chosen; half to each of equals, all to both of NaN, as PyTorch."""
    one, two = xs
    half = one._compare("eq", two).where(g * 0.5, g)
    first, second = y._compare("eq", one) | one.isnan(), y._compare("eq", two) | two.isnan()
    either = y.isnan()
    return (first | either).where(half, 0), (second | either).where(half, 0)


@rule("limit")
def _limit(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """To the second only where it is not the first, as PyTorch's clamp."""
    one, two = xs
    own = y._compare("eq", one) | one.isnan()
    return own.where(g, 0), (own & ~two.isnan()).where(0, g)


@rule("where")
def _where(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return None, xs[0].where(g, 0), xs[0].where(0, g)


@rule("pow")
def _pow(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    base, exponent = xs[0]._real(), xs[1]._real()  # a factor may exceed what a half can hold
    power = exponent._compare("eq", 0).where(0, g * exponent * base.pow(exponent - 1))
    known = base._compare("eq", 0) & (exponent >= 0)
    whole = y if y.dtype is base.dtype else base.pow(exponent)  # y may be beyond a half's range
    # the logarithm of one where it is not used: its gradient stays finite
    return power, known.where(0, g * whole * known.where(1, base).log())


@rule("power")
def _power(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Of a number as exponent."""
    return (g * (xs[0]._real().pow(arg - 1) * arg),)


@rule("atan2")
def _atan2(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    up, right = xs
    share = g / (up * up + right * right)
    return share * right, -share * up


@rule("logaddexp")
def _logaddexp(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Shares of the sum; of two equal infinities, half each."""
    one, two = (x._compare("eq", y).where(0, x - y).exp() for x in xs)
    total = one + two
    return g * one / total, g * two / total


@rule("nextafter")
def _nextafter(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """A step of rounding beside the first; where both are equal, of neither."""
    return xs[0]._compare("eq", xs[1]).where(0, g), None


@rule("hypot")
def _hypot(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return tuple(g * x / y for x in xs)


@rule("mod")
def _mod(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return g, -g * xs[0].floor_divide(xs[1])


@rule("fmod")
def _fmod(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return g, -g * (xs[0] / xs[1]).trunc()


@rule("clamp")
def _clamp(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """arg: the limits, and whether an element at a limit passes its gradient on."""
    low, high, edges = arg
    (x,) = xs
    inside: Any = None
    for limit, above in ((low, True), (high, False)):
        if limit is not None:
            less = x._compare("le" if edges else "lt", limit, swap=above)
            inside = less if inside is None else inside & less
    return (g if inside is None else inside.where(g, 0),)
