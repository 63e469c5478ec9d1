"""Lines of images on the host: padding separated from elements in memory; copies by vectors.

Lines are short and rarely a number of whole vectors: 7, 14, 28, 56. The last vector of a line ends
where the line does, and writes some elements a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Range,
    Validity,
    at_least_zero,
    constant,
)
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    broadcast,
    load,
    substitute,
    value,
    walk,
)
from ugpu.compiler.kernel.host.sections import conditions_of, decided, holding
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store, guarded


class _Line(NamedTuple):
    """A line of an image, by its column. inside: its value from column `low` to before `high` where
    `others` hold; outside: its value elsewhere, the same one without padding."""

    inside: Value
    outside: Value
    low: int
    high: int
    others: Validity


def copied(
    image: Value, column: Range, stage: Memory, firsts: Sequence[Index], lanes: int,
    padded: bool = False,
) -> tuple[Statement, ...]:  # fmt: skip
    """Copy a line: column c to firsts[c % n] + c // n, for the n = len(firsts) phases. lanes: of
    vectors, used for one or two phases of elements that are adjacent in memory; 0 for none.
    padded: the padding of the line is there."""
    line, phases = _parted(image, column), len(firsts)
    if lanes and phases <= min(2, line.high - line.low) and _adjacent(line.inside, column):
        around, inside = _by_vectors(line, column, stage, firsts, lanes)
        return inside if padded else (*around, *inside)
    copies: list[Statement] = []
    for phase, first in enumerate(firsts):
        each = Range(f"{column.name}{phase}", -(-(column.size - phase) // phases))
        elements = substitute(image, {column: each.index() * phases + phase})
        copies += separated(elements, each, stage, first)
    if phases == 1:
        return tuple(copies)
    # else LLVM unrolls each to several KB in 50 ms, which gains nothing
    return tuple(replace(copy, rolled=True) if isinstance(copy, Loop) else copy for copy in copies)


def padding(image: Value, column: Range, moving: frozenset[Range]) -> Value | None:
    """Return what `copied` writes by vectors around all lines; None without padding, or if it or
    its place depends on one of the ranges `moving`."""
    line = _parted(image, column)
    fixed = line.outside.op == "const" and _adjacent(line.inside, column)
    if not fixed or any(moving & condition.ranges() for condition in line.others):
        return None
    return line.outside


def first_inside(image: Value, column: Range) -> int:
    """Return the first column of a line that is not padding."""
    return _parted(image, column).low


def _adjacent(line: Value, column: Range) -> bool:
    plain = line.op == "load" and not line.arg.conditions
    return plain and line.arg.index.linear(column) == (1,)


def chunks(low: int, high: int, lanes: int) -> tuple[int, list[int]]:
    """Return vectors that cover elements from `low` to before `high`: their length and starts. The
    last one may overlap the one before."""
    count = high - low
    width = min(lanes, 1 << (count.bit_length() - 1))
    starts = list(range(low, high - width + 1, width))
    if starts[-1] + width < high:
        starts.append(high - width)
    return width, starts


def every_second(copy: Store, column: Range, lanes: int) -> tuple[Statement, ...]:
    """Return a copy of a line by vectors, if the elements of the line are two apart in memory;
    otherwise nothing. Two vectors of memory become one; neither has an element behind the line."""
    line = copy.value
    if line.op != "load" or line.arg.conditions or line.arg.index.linear(column) != (2,):
        return ()
    width, (*_, last) = chunks(0, column.size, lanes)
    mask = tuple(2 * lane + (2 * lane >= width) for lane in range(width))

    def vector(first: Index) -> Store:
        here = {column: first}
        start = line.arg.index.substitute(here)
        pair = [load(line.arg.memory, start + n, lanes=width) for n in (0, width - 1)]
        moved = value("shuffle", line.dtype, pair, mask, width)
        return Store(copy.memory, copy.index.substitute(here), moved)

    block = Range(column.name + "_vector", column.size // width)
    whole = Loop(block, (vector(block.index() * width),))
    return (whole, vector(constant(last))) if column.size % width else (whole,)


def separated(line: Value, column: Range, stage: Memory, first: Index) -> list[Statement]:
    """Copy the elements of a line to places from `first` on. Padding is written first, then the
    elements inside, without a test for each."""
    inside, outside, low, high, others = _parted(line, column)
    copies: list[Statement] = [Loop(column, (Store(stage, first + column.index(), outside),))]
    if inside is not outside and low < high:
        middle = Range(column.name + "in", high - low)
        place = middle.index() + low
        store = Store(stage, first + place, substitute(inside, {column: place}))
        copy = Loop(middle, (store,))
        copies += guarded(others, copy)
    return copies


def _by_vectors(
    line: _Line, column: Range, stage: Memory, firsts: Sequence[Index], lanes: int
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return the statements that write padding, and those that copy elements."""
    memory, phases = line.inside.arg.memory, len(firsts)
    start = line.inside.arg.index - column.index()
    double, places = chunks(line.low, line.high, phases * lanes)
    width = double // phases
    copies: list[Statement] = []
    for place in places:
        parts = [load(memory, start + place + n * width, lanes=width) for n in range(phases)]
        for phase in range(phases):
            moved, to = parts[phase], place + phase
            if width > 1 and phases > 1:  # even and odd columns to separate places
                mask = tuple(range(phase, double, phases))
                moved = value("shuffle", memory.dtype, parts, mask, width)
            copies.append(Store(stage, firsts[to % phases] + to // phases, moved))
    if line.inside is line.outside:
        return (), tuple(copies)
    around: list[Statement] = []  # both ends
    whole: list[Statement] = []
    for phase, first in enumerate(firsts):
        width, places = chunks(0, -(-(column.size - phase) // phases), lanes)
        padding = broadcast(line.outside, width)
        whole += [Store(stage, first + place, padding) for place in places]
        ends = [c for c in range(phase, column.size, phases) if not line.low <= c < line.high]
        around += [Store(stage, first + c // phases, line.outside) for c in ends]
    apart = [If(at_least_zero(-condition - 1), tuple(whole)) for condition in line.others]
    return (*apart, *guarded(line.others, *around)), guarded(line.others, *copies)


def _parted(image: Value, column: Range) -> _Line:
    """Separate a line's padding. With no padding, or several kinds, the line is all one part."""
    found = {conditions for node in walk(image) if (conditions := conditions_of(node))}
    conditions = found.pop() if len(found) == 1 else ()
    if not all(map(partial(_apart, column), conditions)):
        conditions = ()
    parts = [holding(each, column) for each in conditions]
    low = max((start for start, _ in parts), default=0)
    high = min((stop for _, stop in parts), default=column.size)
    others = tuple(each for each in conditions if not each.coefficient(column))

    def form(now: Validity) -> Value:
        return decided(image, lambda each: now if each == conditions else each)

    return _Line(form(()), form(NEVER), low, high, others)


def _apart(column: Range, condition: Index) -> bool:
    """Return whether a condition depends on a column alone, or not at all."""
    linear = condition.linear(column)
    return linear is not None and (linear == (0,) or condition.ranges() <= {column})
