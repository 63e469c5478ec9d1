"""Kernels for the host without matrix structure: loops that LLVM turns into vector code.

A group is a chunk of work for one thread. The innermost loop runs over neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ugpu.compiler.expression.algebra import Index, Range, constant, substitute_all
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.lookup import Lookup, atoms
from ugpu.compiler.expression.value import Value, indices_of
from ugpu.compiler.kernel.choices import Chunk, Space
from ugpu.compiler.kernel.host.nest import CHUNK, LINE, Axis, Nest, Rows, Walk
from ugpu.compiler.kernel.host.rare import find_rare
from ugpu.compiler.kernel.host.sections import inside, sections
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, group_range, guarded, nested
from ugpu.compiler.kernel.shared.kernels import kernel_over, stores
from ugpu.hcq.state.target import TargetSpec

ROLLED = 16  # elements of a row from which on vectors run along it, if each is looked up
TESTED = 1024  # elements tested for rare values at once; more of them would leave the nearest cache
ABREAST = 4  # elements of a row up to which LLVM's vectors hold elements of several rows


def space() -> Space:
    """Return the space of chunks of all sizes."""
    return Space(Chunk(CHUNK), {"size": tuple(1024 << n for n in range(10))}, lambda _: True)


def elementwise(
    computation: Computation, target: TargetSpec, chosen: Chunk | None = None, alone: bool = True
) -> Kernel:
    """Give a group chunks of the last range, or several whole rows of it. alone: whether the kernel
    may have memory of its own, as one that computes a piece of a cat may not."""
    most = (chosen or Chunk(CHUNK)).size
    if not computation.ranges:
        return kernel_over(computation, (1, 1, 1), 1, assign(computation, {}))
    outer, last = computation.ranges[:-1], computation.ranges[-1]
    rare = find_rare(computation.value) if alone and last.size >= LINE else None
    if last.size >= most or not outer:
        nest = Nest(computation, outer, (last, min(most, last.size)))
        (side,) = nest.sides
        return nest.kernel(_line(computation, nest.batch, side.steps, rare is not None))
    counted = _counted(outer, last)
    between = outer[len(counted) :]
    rows = Rows(computation, elements(counted), last.size * elements(between), most)
    places = {**places_at(counted, rows.number), **{each: each.index() for each in between}}
    inner: list[Statement] = []
    for section, root in sections(computation.value, computation.ranges):
        part = replace(computation, value=root)
        start, stop = section.pop(last)
        count = partial(Axis(last).whole.line, count=stop - start, first=start)
        named = partial(_named, count, start)
        loops = _line(part, places, named, rare is not None and stop - start >= LINE)
        where = substitute_all(inside(section), places)
        inner += guarded(where, *loops)
    return rows.kernel(nested(between, *inner))


def _counted(outer: tuple[Range, ...], last: Range) -> tuple[Range, ...]:
    """Return the ranges that one counter of rows walks, with divisions: without those whose loops
    are around a short row of some vectors, or of so few elements that vectors go across rows."""
    length = last.size
    if ABREAST < length < ROLLED:
        return outer
    while len(outer) > 1 and length < LINE:
        length *= outer[-1].size
        outer = outer[:-1]
    return outer


def _named(line: Callable[[str], Walk], start: int, name: str) -> Walk:
    return line(f"{name}{start}")


def _line(
    computation: Computation, batch: Mapping[Range, Index], line: Callable[[str], Walk],
    branches: bool,
) -> list[Statement]:  # fmt: skip
    """Return the loop over a line of results; with branches two loops, if they rarely need some
    values."""
    size = line("").last.size
    if branches and size > TESTED:
        part = Range("part", -(-size // TESTED))
        shorter = partial(_part_of, line, part.index() * TESTED)
        return [Loop(part, tuple(_line(computation, batch, shorter, branches)))]

    def loop(name: str, root: Value) -> Statement:
        along = line(f"j{name}")
        stores = assign(replace(computation, value=root), {**batch, **along.places})
        ((counter, bound),) = along.loops
        looks_up = bound is None and size >= ROLLED and _looks_up(root, computation.ranges[-1])
        return Loop(counter, stores, bound, looks_up or bool(name))

    rare = find_rare(computation.value) if branches else None
    if rare is None:
        return [loop("", computation.value)]
    return rare.branched(batch, line, loop)


def _part_of(line: Callable[[str], Walk], first: Index, name: str) -> Walk:
    """Return the loop over TESTED elements of a line, from `first` on."""
    whole = line(name)
    ((counter, bound),) = whole.loops
    near = Range(name, TESTED)
    moved = {counter: first + near.index()}
    places = {each: index.substitute(moved) for each, index in whole.places.items()}
    left = (constant(counter.size) if bound is None else bound) - first
    return Walk(((near, left),), whole.position.substitute(moved), places)


def _looks_up(root: Value, along: Range) -> bool:
    """Return whether indices from memory differ along a range."""
    looked_up = (index for index in indices_of(root) if along in index.ranges())
    return any(isinstance(atom, Lookup) for index in looked_up for atom in atoms(index))


def rows_of(count: int, rows: int) -> tuple[tuple[int, int, int], Index, Index]:
    """Return a grid over `count` rows, `rows` a group; a row's number; the row loop's bound."""
    grid = (-(-count // rows), 1, 1)
    start = group_range(0, grid[0]).index() * rows
    return grid, start + Range("r", rows).index(), constant(count) - start


def assign(computation: Computation, places: dict[Range, Index]) -> tuple[Statement, ...]:
    """Return the stores of all results at `places`."""
    allowed = () if computation.chosen is None else computation.chosen.allowed
    results = stores(computation, computation.value, places)
    return guarded(substitute_all(allowed, places), *results)
