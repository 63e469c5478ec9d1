"""Complex arithmetic of vectors, and transforms of a few numbers in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ugpu.compiler.expression.value import Value, binary, broadcast, const, value

Complex = tuple[Value, Value]  # real and imaginary parts


def number(like: Value, given: float) -> Value:
    """Return a number in all lanes of a vector like another one."""
    return broadcast(const(given, like.dtype), like.lanes)


def negative(x: Value) -> Value:
    return value("neg", x.dtype, (x,), lanes=x.lanes)


def fused(x: Value, y: Value, z: Value) -> Value:
    """Return x y + z, rounded once."""
    return value("fma", x.dtype, (x, y, z), lanes=x.lanes)


def add(x: Complex, y: Complex) -> Complex:
    return binary("add", x[0], y[0]), binary("add", x[1], y[1])


def sub(x: Complex, y: Complex) -> Complex:
    return binary("sub", x[0], y[0]), binary("sub", x[1], y[1])


def times(x: Complex, turn: Complex) -> Complex:
    """Return the product of complex numbers."""
    real = fused(x[0], turn[0], negative(binary("mul", x[1], turn[1])))
    return real, fused(x[0], turn[1], binary("mul", x[1], turn[0]))


def scaled(x: Complex, by: float) -> Complex:
    """Return the product with a real number."""
    both = [binary("mul", part, number(part, by)) for part in x]
    return both[0], both[1]


def quarter(x: Complex, sign: int) -> Complex:
    """Return x times i, or times -i."""
    return (negative(x[1]), x[0]) if sign > 0 else (x[1], negative(x[0]))


def turned(x: Complex, steps: int, of: int, sign: int) -> Complex:
    """Return x times exp(sign 2 pi i steps / of)."""
    eighths, rest = divmod(8 * (steps % of), of)
    if rest:
        angle = sign * 2 * math.pi * steps / of
        return times(x, (number(x[0], math.cos(angle)), number(x[0], math.sin(angle))))
    for _ in range(eighths // 2):
        x = quarter(x, sign)
    if eighths % 2:
        x = scaled(add(x, quarter(x, sign)), math.sqrt(0.5))
    return x


def transform(xs: Sequence[Complex], sign: int) -> list[Complex]:
    """Return the transform of 1, 2, 4 or an odd number of complex numbers."""
    if len(xs) == 1:
        return list(xs)
    if len(xs) == 2:
        return [add(*xs), sub(*xs)]
    if len(xs) == 4:
        even, odd = [add(xs[0], xs[2]), sub(xs[0], xs[2])], [add(xs[1], xs[3]), sub(xs[1], xs[3])]
        aside = quarter(odd[1], sign)
        return [
            add(even[0], odd[0]),
            add(even[1], aside),
            sub(even[0], odd[0]),
            sub(even[1], aside),
        ]
    return _odd(xs, sign)


def _odd(xs: Sequence[Complex], sign: int) -> list[Complex]:
    """The sums of elements j and n - j are multiplied by cosines, their differences by sines."""
    n, half = len(xs), len(xs) // 2
    sums = [add(xs[j], xs[n - j]) for j in range(1, half + 1)]
    apart = [sub(xs[j], xs[n - j]) for j in range(1, half + 1)]
    results = [xs[0]] * n
    for each in sums:
        results[0] = add(results[0], each)
    for k in range(1, half + 1):
        angles = [2 * math.pi * (j * k % n) / n for j in range(1, half + 1)]
        along = xs[0]
        across = scaled(apart[0], math.sin(angles[0]))
        for place, angle in enumerate(angles):
            along = _added(along, sums[place], math.cos(angle))
            if place:
                across = _added(across, apart[place], math.sin(angle))
        aside = quarter(across, sign)
        results[k], results[n - k] = add(along, aside), sub(along, aside)
    return results


def _added(total: Complex, x: Complex, factor: float) -> Complex:
    by = number(x[0], factor)
    return fused(x[0], by, total[0]), fused(x[1], by, total[1])
