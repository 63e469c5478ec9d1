"""Fit the polynomials of the elementary functions on float64.

`python -m lab.polynomials` prints `compiler/expression/doubles/coefficients.py`. Each polynomial
has the least weighted error, by Remez' exchange (E. Remez, 1934) in 60 digits with mpmath, and is
rounded to float64; its error, as a power of two, stands beside its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import mpmath as mp

Function = Callable[[mp.mpf], mp.mpf]
GRID = 60  # points between two alternations, among which the largest error is sought
ROUNDS = 12


@dataclass(frozen=True)
class Fit:
    """A polynomial to fit: of `degree`, to a function from `low` to `high`; the error counts times
    `weight`, which is not zero. `meaning`: the function, in words."""

    name: str
    meaning: str
    function: Function
    low: str
    high: str
    degree: int
    weight: Function


def fitted(fit: Fit) -> tuple[list[mp.mpf], mp.mpf]:
    """Return the coefficients, the highest power first, and the largest weighted error."""
    low, high, count = mp.mpf(fit.low), mp.mpf(fit.high), fit.degree + 2
    middle, half = (low + high) / 2, (high - low) / 2
    points = [middle - half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    coefficients: list[mp.mpf] = []
    worst = mp.mpf(0)
    for _ in range(ROUNDS):
        rows = mp.matrix(count, count)
        wanted = mp.matrix(count, 1)
        for row, x in enumerate(points):
            for power in range(fit.degree + 1):
                rows[row, power] = x ** (fit.degree - power)
            rows[row, fit.degree + 1] = (-1) ** row / fit.weight(x)
            wanted[row] = fit.function(x)
        solved = mp.lu_solve(rows, wanted)
        coefficients = [solved[i] for i in range(fit.degree + 1)]
        points, worst, level = _extremes(fit, coefficients, points, low, high)
        if worst < level * mp.mpf("1.001"):
            break
    return coefficients, worst


def _extremes(
    fit: Fit, coefficients: list[mp.mpf], points: list[mp.mpf], low: mp.mpf, high: mp.mpf
) -> tuple[list[mp.mpf], mp.mpf, mp.mpf]:
    """Return the places of the largest errors near the alternations, and the largest and smallest
    of these errors."""

    def error(x: mp.mpf) -> mp.mpf:
        return (mp.polyval(coefficients, x) - fit.function(x)) * fit.weight(x)

    ends = [low, *((a + b) / 2 for a, b in pairwise(points)), high]
    found = []
    for left, right in pairwise(ends):
        grid = [left + (right - left) * k / GRID for k in range(GRID + 1)]
        found.append(max(grid, key=lambda x: abs(error(x))))
    sizes = [abs(error(x)) for x in found]
    return found, max(sizes), min(sizes)


def _series(x: mp.mpf, function: Function, taken: int, step: int = 2) -> mp.mpf:
    """Return what is left of function(s) / s, or function(s), by powers of s without the first
    terms, at s**step = x; near zero from more digits."""
    with mp.workdps(160):
        s = mp.root(x, step) if step > 1 else x
        return function(s) / x**taken


TINY = "1e-12"  # instead of 0, where a function is a quotient of zeros
FITS = (
    Fit("EXP", "(e^r - 1 - r) / r^2", lambda r: _series(r, lambda s: mp.expm1(s) - s, 2, 1),
        "-0.34658", "0.34659", 10, lambda r: r * r + mp.mpf("0.01")),
    Fit("EXP2", "(2^r - 1 - r log 2) / r^2",
        lambda r: _series(r, lambda s: mp.mpf(2) ** s - 1 - s * mp.log(2), 2, 1),
        "-0.50001", "0.50002", 11, lambda r: r * r + mp.mpf("0.01")),
    Fit("LOG", "(log((1 + s) / (1 - s)) / s - 2) / z, z = s^2",
        lambda z: _series(z, lambda s: 2 * mp.atanh(s) / s - 2, 1), TINY, "0.029438", 6,
        lambda z: z),
    Fit("LOG_TAIL", "(3 atanh(s) / s - 3 - z) / z^2, z = s^2",
        lambda z: _series(z, lambda s: 3 * mp.atanh(s) / s - 3 - s * s, 2), TINY, "0.029438", 7,
        lambda z: z * z / 3),
    Fit("SIN", "(sin(s) / s - 1) / z, z = s^2",
        lambda z: _series(z, lambda s: mp.sin(s) / s - 1, 1), TINY, "0.61686", 5, lambda z: z),
    Fit("COS", "(cos(s) - 1 + z / 2) / z^2, z = s^2",
        lambda z: _series(z, lambda s: mp.cos(s) - 1 + s * s / 2, 2), TINY, "0.61686", 5,
        lambda z: z * z),
    Fit("SINH", "(sinh(s) / s - 1) / z, z = s^2",
        lambda z: _series(z, lambda s: mp.sinh(s) / s - 1, 1), TINY, "1", 6, lambda z: z),
    Fit("TANH", "(tanh(s) / s - 1) / z, z = s^2",
        lambda z: _series(z, lambda s: mp.tanh(s) / s - 1, 1), TINY, "0.3025", 10, lambda z: z),
    Fit("ASIN", "(asin(s) / s - 1) / z, z = s^2",
        lambda z: _series(z, lambda s: mp.asin(s) / s - 1, 1), TINY, "0.25", 12, lambda z: z),
    Fit("ATAN", "(atan(s) / s - 1) / z, z = s^2",
        lambda z: _series(z, lambda s: mp.atan(s) / s - 1, 1), TINY, "1", 20, lambda z: z),
    Fit("ERF", "erf(s) / s - 1 by z = s^2",
        lambda z: _series(z, lambda s: mp.erf(s) / s - 1, 0), TINY, "1", 12, lambda z: mp.mpf(1)),
    Fit("LOG_ERFC", "log(1 - erf(x))", lambda x: mp.log(mp.erfc(x)), "1", "6", 21, mp.erfc),
)  # fmt: skip

# Constants as sums of float64, of so many bits each: few bits where a product with a small whole
# number has to be exact.
SPLIT: tuple[tuple[str, Function, tuple[int, ...]], ...] = (
    ("LN2", lambda _: mp.log(2), (32, 53)),
    ("WHOLE_LN2", lambda _: mp.log(2), (53, 53)),
    ("LOG10_2", lambda _: mp.log10(2), (32, 53)),
    ("LOG2_E", lambda _: 1 / mp.log(2), (53, 53)),
    ("LOG10_E", lambda _: 1 / mp.log(10), (53, 53)),
    ("FACTOR", lambda _: mp.mpf(2) / 3 / mp.log(2), (53, 53)),
    ("HALF_PI", lambda _: mp.pi / 2, (53, 53, 53)),
)
WORDS = 20  # of the bits of 2/pi: what the largest exponent needs, and 192 bits more


def split(number: mp.mpf, bits: tuple[int, ...]) -> list[float]:
    """Return a number as a sum of float64 of so many bits each."""
    parts = []
    for count in bits:
        step = mp.mpf(2) ** (int(mp.floor(mp.log(abs(number), 2))) + 1 - count)
        part = mp.nint(number / step) * step
        parts.append(float(part))
        number -= part
    return parts


def main() -> None:
    """Print the file of coefficients."""
    mp.mp.dps = 60
    print('"""Numbers on float64, of polynomials the highest power first. Written by\n'
          '`lab.polynomials`."""\n\nfrom __future__ import annotations\n')  # fmt: skip
    for name, number, bits in SPLIT:
        print(f"{name} = ({', '.join(map(repr, split(number(mp.mpf(0)), bits)))})")
    with mp.workdps(420):
        whole = int(mp.floor(2 / mp.pi * mp.mpf(2) ** (64 * WORDS)))
    print("# the bits of 2/pi after the binary point\nTWO_OVER_PI = (")
    for word in range(WORDS):
        print(f"    0x{whole >> 64 * (WORDS - 1 - word) & (1 << 64) - 1:016X},")
    print(")")
    for fit in FITS:
        coefficients, worst = fitted(fit)
        power = int(mp.ceil(mp.log(worst, 2)))
        print(f"# {fit.meaning}, from {fit.low} to {fit.high}: error 2^{power}")
        print(f"{fit.name} = (")
        for number in coefficients:
            print(f"    {float(number)!r},")
        print(")")


if __name__ == "__main__":
    main()
