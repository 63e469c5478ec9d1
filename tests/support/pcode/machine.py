"""What pseudocode runs on: names and registers, and the places that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.pcode import numbers
from tests.support.pcode.numbers import FORMATS, NEAREST
from tests.support.pcode.operators import Unsupported, constant
from tests.support.pcode.values import Value, cast, cut, put, seen

Rows = dict[tuple[int, int], Value]  # by lane and vector register


@dataclass
class State:
    """A lane, or a wave. names: variables and registers, lists for arrays. registers: names that
    keep bits which are not written, with their width. mode: rounding. clamp: whole numbers
    saturate when they are written. call: other instructions by name. vectors: see Rows."""

    names: dict[str, Any]
    registers: Mapping[str, int] = field(default_factory=dict)
    mode: str = NEAREST
    clamp: bool = False
    call: Callable[[str, list[Value], State], Value] | None = None
    vectors: Rows = field(default_factory=dict)
    scalars: dict[int, Value] = field(default_factory=dict)


Expression = Callable[[State], Value]
Statement = Callable[[State], None]
Step = tuple[str, Any, Any]  # "type" kind width, "field" name, "bits" high low, "bit" index


class Place:
    """A name with what follows it."""

    def __init__(self, name: str, steps: list[Step]) -> None:
        self.name, self.steps = name, steps
        if steps and steps[0][0] == "field":
            self.name, self.steps = f"{name}.{steps[0][1]}", steps[1:]

    def read(self, state: State) -> Value:
        """Return the value."""
        base, steps = self._base(state)
        for step in steps:
            base = _follow(base, step, state)
        if not isinstance(base, Value):
            raise Unsupported(f"{self.name} is no value")
        return base

    def _base(self, state: State) -> tuple[Any, list[Step]]:
        if self.name in ("VGPR", "SGPR"):
            steps, place = self._register(state)
            kept = state.vectors if isinstance(place, tuple) else state.scalars
            return kept[place], steps  # type-checked by _register
        if self.name in state.names:
            return state.names[self.name], self.steps
        width = self.steps[0][2] if self.steps and self.steps[0][0] == "type" else 64
        value = constant(self.name, width if ("f", width) in FORMATS else 64)
        if value is None:
            raise Unsupported(f"the name {self.name}")
        return value, self.steps[1:] if self.steps and self.steps[0][0] == "type" else self.steps

    def _register(self, state: State) -> tuple[list[Step], Any]:
        count = 2 if self.name == "VGPR" else 1
        numbers_ = [step[1](state).number for step in self.steps[:count]]
        return self.steps[count:], tuple(numbers_) if count == 2 else numbers_[0]

    def write(self, state: State, value: Value) -> None:
        """Replace the value, or the bits of it that the steps name."""
        steps = self.steps
        if self.name in ("VGPR", "SGPR"):
            steps, place = self._register(state)
            kept: dict[Any, Value] = state.vectors if isinstance(place, tuple) else state.scalars
            for number in range(max(1, (_width(steps) or value.width) // 32)):
                key = (place[0], place[1] + number) if isinstance(place, tuple) else place + number
                part = cut(value, 32 * number + 31, 32 * number) if number else value
                kept[key] = _changed(kept[key], steps if not number else [], part, state, 32)
            return
        before = state.names.get(self.name)
        if isinstance(before, list):
            number = steps[0][1](state).number
            before[number] = _changed(before[number], steps[1:], value, state, 0)
            return
        width = state.registers.get(self.name, 0)
        state.names[self.name] = _changed(before, steps, value, state, width)


def _width(steps: list[Step]) -> int:
    return max((step[2] for step in steps if step[0] == "type"), default=0)


def _follow(base: Any, step: Step, state: State) -> Any:
    kind, first, second = step
    if kind == "type":
        return seen(base, first, second)
    if kind == "bit":
        number = first(state).number
        return base[number] if isinstance(base, list) else cut(base, number, number)
    if kind == "bits":
        return cut(base, first(state).number, second(state).number)
    if kind == "from":
        low = first(state).number
        return cut(base, low + second(state).number - 1, low)
    raise Unsupported(f"the field {first}")


def _changed(
    before: Value | None, steps: list[Step], value: Value, state: State, width: int
) -> Value:
    """Return what a name holds after a write. width: of a register, else 0."""
    low, high, typed = 0, -1, None
    for kind, first, second in steps:
        if kind == "type":
            typed = (first, second)
            high = low + second - 1 if high < 0 else min(high, low + second - 1)
        elif kind == "bit":
            low += first(state).number
            high = low
        elif kind == "bits":
            high, low = low + first(state).number, low + second(state).number
        else:
            raise Unsupported("writing there")
    if steps and steps[-1][0] == "type" and typed is not None:
        value = coerced(value, *typed, state)
    if high < 0:
        if not width:
            return value
        high = min(width, value.width or width) - 1
    whole = len(steps) == 1 and typed is not None and not width
    if whole or (before is None and low == 0 and typed is None):
        return value
    return put(before or Value("b", width or 64, 0), high, low, value)


def coerced(value: Value, kind: str, width: int, state: State) -> Value:
    """Return a value as the type of the place that it is written to."""
    if kind in "ui" and not value.floating:
        if state.clamp:
            low, high = (0, (1 << width) - 1) if kind == "u" else bounds(width)
            return Value(kind, width, max(low, min(high, value.number)), value.marks)
        return cast(value, kind, width, state.mode)
    if value.floating and (kind, width) in FORMATS and (kind, width) != (value.kind, value.width):
        form = FORMATS[kind, width]
        return Value(kind, width, numbers.convert(value.form, form, value.number), value.marks)
    return seen(value, kind, width)


def bounds(width: int) -> tuple[int, int]:
    """Return the least and the greatest signed number."""
    return -(1 << (width - 1)), (1 << (width - 1)) - 1
