"""Kernels for the host without matrix structure: loops that LLVM turns into vector code.

A group is a chunk of work for one thread. The innermost loop runs over neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ugpu.compiler.expression.accumulate import advanced, combine, ended, identity, total_type
from ugpu.compiler.expression.algebra import Index, Range, constant, substitute_all
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.lookup import Lookup, atoms
from ugpu.compiler.expression.value import Memory, Value, indices_of, load, substitute, walk
from ugpu.compiler.kernel.choices import Chunk, Space
from ugpu.compiler.kernel.host.nest import Axis, Nest, Walk, in_vectors, nested
from ugpu.compiler.kernel.host.rare import FLAG, find_rare
from ugpu.compiler.kernel.host.sections import inside, sections
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import kernel_of, result
from ugpu.compiler.kernel.shared.spread import loads, runs_along
from ugpu.hcq.state.target import TargetSpec

CHUNK = 16384  # elements of work that justify a separate group
STREAMS = 2  # long rows read concurrently: a processor fetches several places of memory at once
MANY = 64  # results from which on there are enough for STREAMS
STEPS = 8  # maximum steps of a reduction that columns take at once
OPERATIONS = 64  # maximum operations of these steps together
COLUMNS = 1024  # results of a row that a group accumulates side by side
LINE = 64  # minimum of these
ROLLED = 16  # elements of a row from which on vectors run along it, if each is looked up
ABREAST = 4  # elements of a row up to which LLVM's vectors hold elements of several rows
ROWS = 3  # maximum size of a range whose steps all use the same elements of a row


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
        return kernel_of(computation, (), (1, 1, 1), 1, assign(computation, {}))
    outer, last = computation.ranges[:-1], computation.ranges[-1]
    rare = find_rare(computation.value) if alone and last.size >= LINE else None
    memories = () if rare is None else (FLAG,)
    if last.size >= most or not outer:
        nest = Nest(computation, outer, (last, min(most, last.size)))
        (side,) = nest.sides
        return nest.kernel(_line(computation, nest.batch, side.steps, bool(memories)))
    counted = _counted(outer, last)
    between = outer[len(counted) :]
    rows = max(1, most // (last.size * elements(between)))
    grid, row, bound = rows_of(elements(counted), rows)
    places = {**places_at(counted, row), **{each: each.index() for each in between}}
    inner: list[Statement] = []
    for section, root in sections(computation.value, computation.ranges):
        part = replace(computation, value=root)
        start, stop = section.pop(last)
        count = partial(Axis(last).whole.line, count=stop - start, first=start)
        named = partial(_named, count, start)
        loops = _line(part, places, named, bool(memories) and stop - start >= LINE)
        where = substitute_all(inside(section), places)
        inner += [If(where, tuple(loops))] if where else loops
    rows_loop = Loop(Range("r", rows), nested(between, *inner), bound)
    return kernel_of(computation, memories, grid, 1, (rows_loop,))


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


def _looks_up(root: Value, along: Range) -> bool:
    """Return whether indices from memory differ along a range."""
    looked_up = (index for index in indices_of(root) if along in index.ranges())
    return any(isinstance(atom, Lookup) for index in looked_up for atom in atoms(index))


def reduction(computation: Computation, target: TargetSpec, chosen: Chunk | None = None) -> Kernel:
    """Reduce one result after the other, or many side by side if that is memory's direction."""
    reduce = computation.reduction
    assert reduce is not None
    over = reduce.arg[1]
    ranges = computation.ranges
    body = reduce.sources[0]
    if ranges and runs_along([body], ranges[-1], over[-1]):
        columns = COLUMNS
        if target.compute_units > 1 and elements(ranges[:-1]) < 2 * target.compute_units:
            share = -(-ranges[-1].size // (2 * target.compute_units))
            columns = min(columns, -(-share // LINE) * LINE)
        columns = max(1, columns * (chosen or Chunk(CHUNK)).size // CHUNK)
        return _side_by_side(computation, reduce, columns)
    count = elements(ranges)
    rows = max(1, (chosen or Chunk(CHUNK)).size // elements(over))
    abreast = STREAMS if rows < STREAMS and count % STREAMS == 0 and count >= MANY else 1
    grid, row, bound = rows_of(count // abreast, rows)
    operation = reduce.arg[0]
    kind = total_type(operation, reduce.dtype)
    totals = Memory("total", kind, abreast, "register")
    before: list[Statement] = []
    steps: list[Statement] = []
    after: list[Statement] = []
    for stream in range(abreast):
        places = places_at(ranges, row + stream * (count // abreast))
        at = constant(stream)
        here = load(totals, at)
        before.append(Store(totals, at, identity(operation, kind)))
        steps.append(Store(totals, at, advanced(operation, here, substitute(body, places))))
        total = ended(operation, reduce.dtype, here)
        after.append(result(computation, places, total, reduce))
    loop = Loop(Range("r", rows), (*before, *in_vectors(over, *steps), *after), bound)
    return kernel_of(computation, (totals,), grid, 1, (loop,))


def _side_by_side(computation: Computation, reduce: Value, most: int) -> Kernel:
    operation, over = reduce.arg
    body = reduce.sources[0]
    last = computation.ranges[-1]
    shared = _shared(computation, body)
    outer = tuple(r for r in computation.ranges[:-1] if r is not shared)
    rows = 1 if shared is None else shared.size
    chunk = min(most, last.size)
    nest = Nest(computation, outer, (last, chunk))
    totals = Memory("totals", reduce.dtype, chunk * rows, "local")
    Make = Callable[[Index, dict[Range, Index]], Store]

    def columns(name: str, make: Make) -> Statement:
        walk = nest.sides[0].steps(name)
        stores = []
        for row in range(rows):
            at = {} if shared is None else {shared: constant(row)}
            places = {**nest.batch, **walk.places, **at}
            stores.append(make(walk.position + row * chunk, places))
        return walk.around(*stores)

    def clear(at: Index, places: dict[Range, Index]) -> Store:
        return Store(totals, at, identity(operation, reduce.dtype))

    def gather(steps: list[Index]) -> Make:
        def add(at: Index, places: dict[Range, Index]) -> Store:
            total = load(totals, at)
            for step in steps:
                one = substitute(body, {**places, over[-1]: step})
                total = combine(operation, total, one)
            return Store(totals, at, total)

        return add

    def finish(at: Index, places: dict[Range, Index]) -> Store:
        return result(computation, places, load(totals, at), reduce)

    length = over[-1].size
    abreast = _abreast(body, length)
    block = Range("block", length // abreast)
    whole = [block.index() * abreast + step for step in range(abreast)]
    inside: tuple[Statement, ...] = (Loop(block, (columns("j1", gather(whole)),)),)
    if length % abreast:
        rest = [constant(step) for step in range(length - length % abreast, length)]
        inside = (*inside, columns("j3", gather(rest)))
    inside = nested(over[:-1], *inside)
    return nest.kernel((columns("j0", clear), *inside, columns("j2", finish)))


def _shared(computation: Computation, body: Value) -> Range | None:
    """Return a short range whose every step uses the same elements of a row, so that they are read
    once for all."""
    last = computation.ranges[-1]
    for outer in computation.ranges[:-1]:
        if outer.size <= ROWS and any(
            access.index.coefficient(last) in (1, -1) and outer not in access.index.ranges()
            for access in loads(body)
        ):
            return outer
    return None


def _abreast(body: Value, length: int) -> int:
    """Return the reduction steps taken at once: totals are read and written once for all."""
    operations = sum(1 for _ in walk(body))
    return max(1, min(STEPS, length, OPERATIONS // operations))


def rows_of(count: int, rows: int) -> tuple[tuple[int, int, int], Index, Index]:
    """Return a grid over `count` rows, `rows` a group; a row's number; the row loop's bound."""
    grid = (-(-count // rows), 1, 1)
    start = group_range(0, grid[0]).index() * rows
    return grid, start + Range("r", rows).index(), constant(count) - start


def assign(computation: Computation, places: dict[Range, Index]) -> tuple[Statement, ...]:
    """Return the stores of all results at `places`."""
    position = computation.position.substitute(places)
    results = computation.results(substitute(computation.value, places))
    stores = tuple(Store(memory, position, root) for memory, root in results)
    if computation.chosen is None or not computation.chosen.allowed:
        return stores
    return (If(substitute_all(computation.chosen.allowed, places), stores),)
