"""Lines of images on the host: padding separated from elements in memory; copies by vectors.

Lines are short and rarely a number of whole vectors: 7, 14, 28, 56. The last vector of a line ends
where the line does, and writes some elements a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero
from ugpu.compiler.expression.value import Memory, Value, const, load, rebuild, value, walk
from ugpu.compiler.kernel.ir import If, Statement, Store


class Line(NamedTuple):
    """A line of an image, by its column. inside: its value from column `low` to before `high` where
    `others` hold; outside: its value elsewhere."""

    inside: Value
    outside: Value
    low: int
    high: int
    others: Validity

    @property
    def padded(self) -> bool:
        return self.inside is not self.outside


def parted(image: Value, column: Range) -> Line:
    """Separate a line's padding. With no padding, or several kinds, the line is all one part."""
    conditions = _conditions(image, column)
    if not conditions:
        return Line(image, image, 0, column.size, ())
    inside, outside = _parted(image, conditions)
    low, high, others = 0, column.size, []
    for condition in conditions:
        step = condition.coefficient(column)
        rest = condition - column.index() * step
        if not rest.is_constant:
            others.append(condition)
        elif step > 0:
            low = max(low, -(rest.constant // step))
        else:
            high = min(high, rest.constant // -step + 1)
    return Line(inside, outside, low, high, tuple(others))


def chunks(low: int, high: int, lanes: int) -> tuple[int, list[int]]:
    """Return vectors that cover elements from `low` to before `high`: their length and starts. The
    last one may overlap the one before."""
    count = high - low
    width = min(lanes, 1 << (count.bit_length() - 1))
    starts = list(range(low, high - width + 1, width))
    if starts[-1] + width < high:
        starts.append(high - width)
    return width, starts


def staged(
    image: Value, column: Range, stage: Memory, firsts: Sequence[Index], lanes: int
) -> tuple[Statement, ...]:
    """Copy a line: column c to firsts[c % n] + c // n, for the n = len(firsts) phases (1 or 2).
    Empty where its elements are not adjacent in memory."""
    line, phases = parted(image, column), len(firsts)
    if line.inside.op != "load" or line.inside.arg.conditions or line.high - line.low < phases:
        return ()
    memory, index = line.inside.arg.memory, line.inside.arg.index
    if index.coefficient(column) != 1 or column in (index - column.index()).ranges():
        return ()
    start: Index = index - column.index()
    copies: list[Statement] = []
    if phases == 1:
        width, places = chunks(line.low, line.high, lanes)
        for place in places:
            copies.append(Store(stage, firsts[0] + place, load(memory, start + place, lanes=width)))
    else:
        copies += _apart(memory, start, line, stage, firsts, lanes)
    if not line.padded:
        return tuple(copies)
    around: list[Statement] = []  # both ends
    whole: list[Statement] = []
    for phase, first in enumerate(firsts):
        count = -(-(column.size - phase) // phases)
        width, places = chunks(0, count, lanes)
        padding = line.outside
        if width > 1:
            padding = value("broadcast", padding.dtype, (padding,), lanes=width)
        whole += [Store(stage, first + place, padding) for place in places]
        ends = [c for c in range(phase, column.size, phases) if not line.low <= c < line.high]
        around += [Store(stage, first + c // phases, line.outside) for c in ends]
    if not line.others:
        return *around, *copies
    apart = [If(at_least_zero(-condition - 1), tuple(whole)) for condition in line.others]
    return *apart, If(line.others, (*around, *copies))


def _apart(
    memory: Memory, start: Index, line: Line, stage: Memory, firsts: Sequence[Index], lanes: int
) -> list[Statement]:
    """Return copies of even and odd columns to separate places."""
    double, places = chunks(line.low, line.high, 2 * lanes)
    width = double // 2
    stores: list[Statement] = []
    for place in places:
        halves = tuple(load(memory, start + place + n * width, lanes=width) for n in (0, 1))
        for odd in (0, 1):
            column = place + odd
            if width == 1:
                moved = halves[odd]
            else:
                mask = tuple(range(odd, double, 2))
                moved = value("shuffle", memory.dtype, halves, mask, width)
            stores.append(Store(stage, firsts[column % 2] + column // 2, moved))
    return stores


def _conditions(image: Value, column: Range) -> Validity:
    """Return the conditions that decide between an image and its padding; () if there are none, or
    several sets of them."""
    found = {node.arg if node.op == "gate" else node.arg.conditions
             for node in walk(image) if node.op in ("gate", "load")}  # fmt: skip
    found.discard(())
    if len(found) != 1:
        return ()
    (conditions,) = found
    apart = all(
        column not in (c - column.index() * c.coefficient(column)).ranges()
        and (not c.coefficient(column) or (c - column.index() * c.coefficient(column)).is_constant)
        for c in conditions
    )
    return conditions if apart else ()


def _parted(image: Value, conditions: Validity) -> tuple[Value, Value]:
    """Return an image's values where its conditions hold, and where they do not."""

    def held(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "gate" and node.arg == conditions:
            return sources[0]
        if node.op == "load" and node.arg.conditions == conditions:
            return load(node.arg.memory, node.arg.index, (), node.lanes)
        return None

    def failed(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "gate" and node.arg == conditions:
            return sources[1]
        if node.op == "load" and node.arg.conditions == conditions:
            return const(0, node.dtype)
        return None

    return rebuild(image, held), rebuild(image, failed)
