"""Kernels for GPUs without matrix structure.

Consecutive threads take consecutive elements, each thread a few at once, so that a wave moves
whole lines; what would run past the end is switched off only where the sizes do not divide.
"""

from __future__ import annotations

from compiler.index.algebra import Index, Range, at_least_zero, both, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import combine, identity, replace
from compiler.kernel.choices import Sharing, Space, Threads
from compiler.kernel.ir import (
    Barrier,
    If,
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    Value,
    group_range,
    load,
    substitute,
    thread_range,
)
from compiler.kernel.spread import spread, store, unit_stride, vector_width
from hcq.target import TargetSpec

BLOCK = 256  # threads per group where there is enough to do
LONG = 64  # reductions from here on are shared by the threads of a group
MANY = 1 << 15  # so many results keep the machine busy with a thread each


def default_threads(computation: Computation, target: TargetSpec) -> Threads:
    """As many elements for a thread as it moves at once, where all threads then have some."""
    if not computation.ranges:
        return Threads(1, BLOCK)
    last = computation.ranges[-1]
    dtypes = [m.dtype for m in (*computation.outputs, *computation.inputs)]
    width = vector_width(dtypes, target.vector_bytes)
    if computation.position.coefficient(last) != 1:  # an assignment with gaps
        width = 1
    while last.size % width or elements(computation.ranges) < width * target.wave_size:
        width //= 2
        if width <= 1:
            width = 1
            break
    return Threads(width, BLOCK)


def threads_space(computation: Computation, target: TargetSpec) -> Space:
    """Vectors up to 8 elements; groups of 1 to 16 waves."""
    last = computation.ranges[-1]
    gaps = computation.position.coefficient(last) != 1
    widths = tuple(w for w in (1, 2, 4, 8) if last.size % w == 0 and not (gaps and w > 1))
    options = {"width": widths, "block": _blocks(target)}
    return Space(default_threads(computation, target), options, lambda _: True)


def _blocks(target: TargetSpec) -> tuple[int, ...]:
    sizes = (target.wave_size * n for n in (1, 2, 4, 8, 16))
    return tuple(size for size in sizes if size <= target.max_threads_per_group)


def elementwise(
    computation: Computation, target: TargetSpec, threads: Threads | None = None
) -> Kernel:
    """A few neighbouring elements per thread; the grid's y axis takes the outer ranges."""
    ranges = computation.ranges
    if not ranges:
        return _single(computation, target)
    outer, last = ranges[:-1], ranges[-1]
    threads = threads or default_threads(computation, target)
    width, most = threads.width, threads.block
    units = last.size // width
    if outer and units >= most:
        unit, conditions, grid_x, block = threads_along(units, target, most)
        grid = (grid_x, elements(outer), 1)
        indices = [*_positions(outer, group_range(1, grid[1]).index()), unit]
    else:
        unit, conditions, grid_x, block = threads_along(units * elements(outer), target, most)
        grid = (grid_x, 1, 1)
        indices = unflatten(unit, (*(r.size for r in outer), units))
    places = dict(zip(outer, indices[:-1], strict=True))
    base = indices[-1] * width
    position = computation.position.substitute({**places, last: base})
    results = computation.results(substitute(computation.value, places))
    body: tuple[Statement, ...] = tuple(
        store(memory, position, spread(root, last, base, width)) for memory, root in results
    )
    if conditions:
        body = (If(conditions, body),)
    return _kernel(computation, (), grid, block, body)


def default_sharing(computation: Computation) -> Sharing:
    """A group per result where the reduction is long, or per wave of neighbouring results where
    memory runs that way; else a thread per result."""
    reduce = computation.reduction
    assert reduce is not None
    over, ranges = reduce.arg[1], computation.ranges
    outputs = elements(ranges)
    if elements(over) < LONG or outputs >= 1 << 31:
        return Sharing("threads", BLOCK)
    if unit_stride(reduce.sources[0], over[-1]):
        return Sharing("groups", BLOCK)
    if outputs >= MANY:
        return Sharing("threads", BLOCK)
    if ranges and ranges[-1].size >= 8 and unit_stride(reduce.sources[0], ranges[-1]):
        return Sharing("columns", BLOCK)
    return Sharing("groups", BLOCK)


def sharing_space(computation: Computation, target: TargetSpec) -> Space:
    """Every way, with groups of 1 to 16 waves."""
    few = elements(computation.ranges) < 1 << 31
    ways = ("threads", *(("groups", "columns") if few and computation.ranges else ()))
    options = {"way": ways, "block": _blocks(target)}
    return Space(default_sharing(computation), options, lambda _: True)


def reduction(
    computation: Computation, target: TargetSpec, sharing: Sharing | None = None
) -> Kernel:
    """Results added up as `sharing` says."""
    reduce = computation.reduction
    assert reduce is not None
    sharing = sharing or default_sharing(computation)
    ways = {"threads": _by_threads, "groups": _by_groups, "columns": _by_columns}
    return ways[sharing.way](computation, reduce, target, sharing.block)


def _by_threads(computation: Computation, reduce: Value, target: TargetSpec, most: int) -> Kernel:
    operation, over = reduce.arg
    ranges = computation.ranges
    unit, conditions, grid_x, block = threads_along(elements(ranges), target, most)
    places = dict(zip(ranges, _positions(ranges, unit), strict=True))
    total = Memory("total", reduce.dtype, 1, "register")
    here = load(total, constant(0))
    taken = substitute(reduce.sources[0], places)
    inside: Statement = Store(total, constant(0), combine(operation, here, taken))
    for counter in reversed(over):
        inside = Loop(counter, (inside,))
    result = replace(substitute(computation.value, places), substitute(reduce, places), here)
    body: tuple[Statement, ...] = (
        Store(total, constant(0), identity(operation, reduce.dtype)),
        inside,
        Store(computation.output, computation.position.substitute(places), result),
    )
    if conditions:
        body = (If(conditions, body),)
    return _kernel(computation, (total,), (grid_x, 1, 1), block, body)


def _by_groups(computation: Computation, reduce: Value, target: TargetSpec, most: int) -> Kernel:
    """Threads take every block-th piece of the row, then a tree in local memory joins their
    totals."""
    operation, over = reduce.arg
    ranges = computation.ranges
    outputs, length = elements(ranges), elements(over)
    dtypes = [m.dtype for m in computation.inputs] or [reduce.dtype]
    width = vector_width(dtypes, target.vector_bytes)
    while width > 1 and (over[-1].size % width or length < width * target.wave_size):
        width //= 2
    units = length // width
    block = target.wave_size
    while block < most and block < units and block < target.max_threads_per_group:
        block *= 2
    thread = thread_range(block).index()
    places = dict(zip(ranges, _positions(ranges, group_range(0, outputs).index()), strict=True))
    total = Memory("total", reduce.dtype, 1, "register")
    here = load(total, constant(0))

    counter = Range("k", -(-units // block))
    unit = counter.index() * block + thread
    inner = unflatten(unit, (*(r.size for r in over[:-1]), over[-1].size // width))
    taken = substitute(
        reduce.sources[0], {**places, **dict(zip(over[:-1], inner[:-1], strict=True))}
    )
    joined = here
    for piece in spread(taken, over[-1], inner[-1] * width, width):
        joined = combine(operation, joined, piece)
    step: tuple[Statement, ...] = (Store(total, constant(0), joined),)
    inside = at_least_zero(constant(units - 1) - unit)
    if inside:
        step = (If(inside, step),)

    shared = Memory("shared", reduce.dtype, block + block // 2, "local")
    result = replace(
        substitute(computation.value, places),
        substitute(reduce, places),
        load(shared, constant(0)),
    )
    position = computation.position.substitute(places)
    finish = If(at_least_zero(-thread), (Store(computation.output, position, result),))
    body: tuple[Statement, ...] = (
        Store(total, constant(0), identity(operation, reduce.dtype)),
        Loop(counter, step),
        *tree(operation, shared, here, block, 1),
        finish,
    )
    return _kernel(computation, (total, shared), (outputs, 1, 1), block, body)


def _by_columns(computation: Computation, reduce: Value, target: TargetSpec, most: int) -> Kernel:
    """A wave of neighbouring results per group; each of its waves takes every n-th step, so that
    lanes read neighbours. Then a tree over the waves."""
    operation, over = reduce.arg
    outer, last = computation.ranges[:-1], computation.ranges[-1]
    wave, length = target.wave_size, elements(over)
    waves = most // wave
    thread = thread_range(most).index()
    grid = (-(-last.size // wave), elements(outer), 1)
    column = group_range(0, grid[0]).index() * wave + thread % wave
    exists = at_least_zero(constant(last.size - 1) - column)
    places = dict(zip(outer, _positions(outer, group_range(1, grid[1]).index()), strict=True))
    places[last] = column
    total = Memory("total", reduce.dtype, 1, "register")
    here = load(total, constant(0))
    counter = Range("k", -(-length // waves))
    step = counter.index() * waves + thread // wave
    inner = _positions(over, step)
    taken = substitute(reduce.sources[0], {**places, **dict(zip(over, inner, strict=True))})
    add: tuple[Statement, ...] = (Store(total, constant(0), combine(operation, here, taken)),)
    inside = both(exists, at_least_zero(constant(length - 1) - step))
    if inside:
        add = (If(inside, add),)

    shared = Memory("shared", reduce.dtype, most + most // 2, "local")
    root = substitute(computation.value, places)
    result = replace(root, substitute(reduce, places), load(shared, thread))
    position = computation.position.substitute(places)
    first_wave = at_least_zero(constant(wave - 1) - thread)
    body: tuple[Statement, ...] = (
        Store(total, constant(0), identity(operation, reduce.dtype)),
        Loop(counter, add),
        *tree(operation, shared, here, most, wave),
        If(both(first_wave, exists), (Store(computation.output, position, result),)),
    )
    return _kernel(computation, (total, shared), grid, most, body)


def tree(operation: str, shared: Memory, here: Value, block: int, lowest: int) -> list[Statement]:
    """Join the totals of all threads until the first `lowest` threads hold the rest's.

    shared: half as long again as the block, so that the addresses of idle threads lie inside too.
    """
    thread = thread_range(block).index()
    statements: list[Statement] = [Store(shared, thread, here), Barrier()]
    half = block // 2
    while half >= lowest:
        pair = combine(operation, load(shared, thread), load(shared, thread + half))
        active = at_least_zero(constant(half - 1) - thread)
        statements.append(If(active, (Store(shared, thread, pair),)))
        statements.append(Barrier())
        half //= 2
    return statements


def _single(computation: Computation, target: TargetSpec) -> Kernel:
    """One element: one wave, of which one thread works."""
    thread = thread_range(target.wave_size).index()
    position = computation.position
    results = computation.results(computation.value)
    inside = tuple(Store(memory, position, root) for memory, root in results)
    body = (If(at_least_zero(-thread), inside),)
    return _kernel(computation, (), (1, 1, 1), target.wave_size, body)


def threads_along(
    units: int, target: TargetSpec, most: int = BLOCK
) -> tuple[Index, tuple[Index, ...], int, int]:
    """Number units along x: the unit's index, the condition that it exists, groups, threads."""
    block = min(most, -(-units // target.wave_size) * target.wave_size)
    groups = -(-units // block)
    unit = group_range(0, groups).index() * block + thread_range(block).index()
    return unit, at_least_zero(constant(units - 1) - unit), groups, block


def _positions(ranges: tuple[Range, ...], position: Index) -> list[Index]:
    return unflatten(position, tuple(r.size for r in ranges))


def _kernel(
    computation: Computation,
    local: tuple[Memory, ...],
    grid: tuple[int, int, int],
    block: int,
    body: tuple[Statement, ...],
) -> Kernel:
    parameters = (*computation.outputs, *computation.inputs)
    outputs = len(computation.outputs)
    return Kernel("kernel", parameters, local, grid, block, body, outputs=outputs)
