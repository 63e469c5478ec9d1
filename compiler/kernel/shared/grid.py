"""Lay out grids that exceed a device's limit along y or z as one axis, x.

before: group_x, group_y and group_z have any size.
after: if y or z exceeds the device's limit, there is one flat group_x, and the numbers along the
axes are its quotients and remainders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ugpu.compiler.expression.algebra import Index, Range, substitute_all, unflatten
from ugpu.compiler.expression.value import load, substitute
from ugpu.compiler.kernel.ir import (
    Await,
    Barrier,
    Bulk,
    Close,
    Fetch,
    GroupProduct,
    If,
    Kernel,
    Loop,
    Settle,
    Signal,
    Statement,
    Store,
    TileStep,
    group_range,
)
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
    return Kernel(
        kernel.name, kernel.parameters, kernel.locals, (x * y * z, 1, 1), kernel.block, body,
        kernel.origin, kernel.notes, kernel.outputs,
    )  # fmt: skip


def moved(statement: Statement, values: Mapping[Range, Index]) -> Statement:
    """Return a statement with ranges replaced."""
    if isinstance(statement, Store):
        index = statement.index.substitute(values)
        return Store(statement.memory, index, substitute(statement.value, values))
    if isinstance(statement, Fetch):
        source, index = statement.source, statement.index.substitute(values)
        access = substitute(load(source.memory, source.index, source.conditions), values).arg
        return Fetch(statement.memory, index, access, statement.lanes)
    if isinstance(statement, Barrier | Close | Await | GroupProduct | Settle):
        return statement
    if isinstance(statement, Signal):
        index, number = (i.substitute(values) for i in (statement.index, statement.number))
        group = None if statement.group is None else statement.group.substitute(values)
        return replace(statement, index=index, number=number, group=group)
    if isinstance(statement, Bulk):
        index, start = statement.index.substitute(values), statement.start.substitute(values)
        place = statement.place.substitute(values)
        return replace(statement, index=index, start=start, place=place)
    if isinstance(statement, TileStep):
        at = statement.index
        return replace(statement, index=None if at is None else at.substitute(values))
    body = tuple(moved(inner, values) for inner in statement.body)
    if isinstance(statement, If):
        return If(substitute_all(statement.conditions, values), body)
    bound = None if statement.bound is None else statement.bound.substitute(values)
    return Loop(statement.range, body, bound)
