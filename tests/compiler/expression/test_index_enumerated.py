"""Index algebra on every small expression: no rule of division escapes for want of an example.

Drawn examples (test_compiler_index) are the same in each run, and few of them have the shape that a
rule looks for. Here all sums of small coefficients and constants are divided, and divided again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ugpu.compiler.expression.algebra import Index, Opaque, Range, Validity, constant

W, X = Range("w", 24), Range("x", 3)
AT = {"w": np.repeat(np.arange(24), 3), "x": np.tile(np.arange(3), 24)}
DIVISORS = (2, 3, 4, 6)
Pair = tuple[Index, np.ndarray]


def sums(
    factors: tuple[int, ...], offsets: range, others: tuple[int, ...] = (0, 1)
) -> Iterator[Pair]:
    """Every w*f + x*g + k, and its values at all w and x."""
    for f, g, k in itertools.product(factors, others, offsets):
        yield W.index() * f + X.index() * g + k, AT["w"] * f + AT["x"] * g + k


def parted(pairs: Iterator[Pair], divisors: tuple[int, ...]) -> Iterator[Pair]:
    """The quotient and the remainder of each by each divisor."""
    for (index, values), divisor in itertools.product(pairs, divisors):
        yield index // divisor, values // divisor
        yield index % divisor, values % divisor


def holds(index: Index, values: np.ndarray) -> None:
    """The expression has these values, and its bounds are true."""
    found = index.evaluate(AT)  # an array for each range: all values at once
    assert np.array_equal(np.broadcast_to(found, values.shape), values), str(index)
    assert index.low <= values.min() and values.max() <= index.high, str(index)
    divisor = index.multiple()
    assert not (values % divisor if divisor else values).any(), str(index)


def test_quotients_and_remainders_of_sums() -> None:
    factors, others = (1, 2, 3, 4, -1, -3), (0, 1, 2, -1, -2)
    for index, values in parted(sums(factors, range(-7, 8), others), DIVISORS):
        holds(index, values)


@pytest.mark.parametrize("factor", [1, 2, 3, -1])
def test_quotients_and_remainders_of_those(factor: int) -> None:
    """(y // d + k) // c, (y % d + k) % c and so on, also as multiples and beside another term."""
    inner = list(parted(sums((1, 2, -1), range(-2, 3)), (2, 3, 6)))
    for (index, values), k, g in itertools.product(inner, range(-2, 3), (0, 1)):
        whole = index * factor + X.index() * g + k
        for outer, found in parted(iter([(whole, values * factor + AT["x"] * g + k)]), (2, 3, 4)):
            holds(outer, found)


def test_sums_of_a_quotient_a_remainder_and_the_whole() -> None:
    """k*(y // c) + m*(y % c) + n*y, where k = m*c folds to y."""
    for (y, values), c in itertools.product(sums((1, 3, -1), range(-1, 2)), (2, 3, 4)):
        for k, m, n in itertools.product((-4, -3, 0, 2, 3, 4, 6, 12), (-2, -1, 0, 1, 3), (-1, 0)):
            holds(y // c * k + y % c * m + y * n, values // c * k + values % c * m + values * n)
            folds = k == m * c and not n
            assert not folds or y // c * k + y % c * m == y * m


class Found(Opaque):
    """A number that something else computes."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high, self.key = low, high, "found"

    def indices(self) -> tuple[Index, ...]:
        return ()

    def rebuild(self, leaf: Callable[[Range], Index]) -> Index:
        return Index(((self, 1),), 0)

    def guarded(self, conditions: Validity) -> Index:
        return Index(((self, 1),), 0)

    def magnitude(self) -> int:
        return max(abs(self.low), abs(self.high))


@pytest.mark.parametrize(("low", "high"), [(0, 3), (5, 6), (4, 9), (-3, -2), (-7, 2)])
def test_numbers_that_do_not_begin_at_zero(low: int, high: int) -> None:
    """All ranges do: only numbers from elsewhere have quotients that are constant and not zero."""
    atom = Index(((Found(low, high), 1),), 0)
    for factor, offset, divisor in itertools.product((1, 2, 3, -1), range(-4, 5), DIVISORS):
        whole = atom * factor + offset
        quotient, rest = whole // divisor, whole % divisor
        for number in range(low, high + 1):
            value = number * factor + offset
            assert quotient.evaluate({"found": number}) == value // divisor
            assert rest.evaluate({"found": number}) == value % divisor


def test_a_range_of_one_is_a_constant() -> None:
    assert Range("one", 1).index() == constant(0) == Range("none", 0).index()
