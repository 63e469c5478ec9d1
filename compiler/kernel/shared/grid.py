"""Lay out grids that exceed a device's limit along y or z as one axis, x.

before: group_x, group_y and group_z have any size.
after: if y or z exceeds the device's limit, there is one flat group_x, and the numbers along the
axes are its quotients and remainders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ugpu.compiler.expression.algebra import Index, Range, substitute_all, unflatten
from ugpu.compiler.expression.value import Load, Value, load, substitute
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, group_range
from ugpu.hcq.errors import NotSupported


def within_limits(kernel: Kernel, most: tuple[int, int, int]) -> Kernel:
    """Return the kernel with a grid of at most `most` groups per axis; NotSupported if none
    fits."""
    if all(size <= limit for size, limit in zip(kernel.grid, most, strict=True)):
        return kernel
    x, y, z = kernel.grid
    if x * y * z > most[0]:
        raise NotSupported(f"the grid {x} x {y} x {z} exceeds the device's limit {most}")
    flat = group_range(0, x * y * z).index()
    places = unflatten(flat, (z, y, x))
    values = {group_range(axis, kernel.grid[axis]): places[2 - axis] for axis in range(3)}
    body = tuple(moved(statement, values) for statement in kernel.body)
    return replace(kernel, grid=(x * y * z, 1, 1), body=body)


def moved(statement: Statement, values: Mapping[Range, Index]) -> Statement:
    """Return a statement with ranges replaced."""

    def part(old: Any) -> Any:  # a field of a statement: of many types
        if isinstance(old, Index):
            return old.substitute(values)
        if isinstance(old, Value):
            return substitute(old, values)
        if isinstance(old, Load):
            return substitute(load(old.memory, old.index, old.conditions), values).arg
        return old

    changed = {field.name: part(getattr(statement, field.name)) for field in fields(statement)}
    if isinstance(statement, If | Loop):
        changed["body"] = tuple(moved(inner, values) for inner in statement.body)
    if isinstance(statement, If):
        changed["conditions"] = substitute_all(statement.conditions, values)
    return replace(statement, **changed)
