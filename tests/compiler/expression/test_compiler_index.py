"""Index algebra: every simplification is held against plain evaluation, for all values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Range,
    at_least_zero,
    both,
    constant,
    flatten,
    unflatten,
    within,
)

A, B, C = Range("a", 6), Range("b", 4), Range("c", 5)
RANGES = (A, B, C)


def every_value() -> Iterator[dict[str, int]]:
    for values in itertools.product(*(range(r.size) for r in RANGES)):
        yield dict(zip("abc", values, strict=True))


class Plain:
    """The same expression without any simplification: a list of steps to evaluate."""

    def __init__(self, text: str) -> None:
        self.text = text

    def evaluate(self, values: dict[str, int]) -> int:
        return int(eval(self.text, {}, values))  # text made below, from numbers and a, b, c


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> tuple[Index, Plain]:
    kind = draw(st.integers(0, 4 if depth else 1))
    if kind == 0:
        number = draw(st.integers(-30, 30))
        return constant(number), Plain(f"({number})")
    if kind == 1:
        chosen = draw(st.sampled_from(RANGES))
        return chosen.index(), Plain(chosen.name)
    left, text = draw(expressions(depth - 1))
    if kind == 2:
        right, other = draw(expressions(depth - 1))
        return left + right, Plain(f"({text.text} + {other.text})")
    if kind == 3:
        factor = draw(st.integers(-7, 7))
        return left * factor, Plain(f"({text.text} * {factor})")
    divisor = draw(st.sampled_from((1, 2, 3, 4, 5, 6, 8, 12, 20, 24, 30)))
    if draw(st.booleans()):
        return left // divisor, Plain(f"({text.text} // {divisor})")
    return left % divisor, Plain(f"({text.text} % {divisor})")


@settings(max_examples=400, deadline=None)
@given(expressions())
def test_simplification_changes_no_value_and_bounds_hold(pair: tuple[Index, Plain]) -> None:
    index, plain = pair
    divisor = index.multiple()
    for values in every_value():
        value = plain.evaluate(values)
        assert index.evaluate(values) == value
        assert index.low <= value <= index.high
        assert abs(value) <= index.magnitude()
        assert value % divisor == 0 if divisor else value == 0


@settings(max_examples=200, deadline=None)
@given(expressions(), expressions(depth=2))
def test_substitution_is_evaluation_at_the_substitute(
    pair: tuple[Index, Plain], inner: tuple[Index, Plain]
) -> None:
    index, _ = pair
    replaced = index.substitute({A: inner[0]})
    for values in every_value():
        moved = {**values, "a": inner[1].evaluate(values)}
        assert replaced.evaluate(values) == index.rebuild(lambda r: r.index()).evaluate(moved)


@settings(max_examples=200, deadline=None)
@given(expressions(), expressions(depth=2))
def test_conditions_hold_exactly_where_they_should(
    one: tuple[Index, Plain], two: tuple[Index, Plain]
) -> None:
    together = both(at_least_zero(one[0]), within(two[0], -3, 8))
    for values in every_value():
        holds = one[1].evaluate(values) >= 0 and -3 <= two[1].evaluate(values) < 8
        assert all(c.evaluate(values) >= 0 for c in together) == holds


@pytest.mark.parametrize(
    ("shape", "other"),
    [((6, 4, 5), (24, 5)), ((6, 4, 5), (6, 20)), ((6, 4, 5), (120,)), ((6, 20), (3, 2, 20))],
)
def test_reshapes_between_compatible_shapes_round_trip(
    shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    ranges = [Range("xyz"[i], size) for i, size in enumerate(shape)]
    at = [r.index() for r in ranges]
    there = unflatten(flatten(at, shape), other)
    assert unflatten(flatten(there, other), shape) == at
    assert flatten(there, other) == flatten(at, shape)


def test_known_simplifications() -> None:
    a, b = A.index(), B.index()
    assert (a * 4 + b) // 4 == a
    assert (a * 4 + b) % 4 == b
    assert (a * 8 + b * 2) // 4 == a * 2 + b // 2
    assert (a // 2) // 3 == a // 6 == constant(0)
    assert ((a * 4 + b) % 12) % 4 == b
    assert a // 4 * 4 + a % 4 == a
    assert ((a * 4 + b) // 2) % 2 + (a * 4 + b) // 4 * 2 == (a * 4 + b) // 2
    assert at_least_zero(a) == () and at_least_zero(a - 6) == NEVER
    assert at_least_zero(constant(23) - a * 4 - 3) == at_least_zero(constant(20) - a * 4)
    assert at_least_zero(constant(23) - a * 4) == at_least_zero(constant(20) - a * 4)
    assert at_least_zero(constant(11) - a * 4) == at_least_zero(constant(2) - a) != ()


def test_numbers_beyond_64_bits_are_exact() -> None:
    wide = Range("w", 1 << 40).index() * (1 << 40)
    assert wide.evaluate({"w": (1 << 40) - 1}) == ((1 << 40) - 1) << 40
    assert (wide + 5) // (1 << 40) == Range("w", 1 << 40).index()
