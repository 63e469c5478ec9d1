"""Kernels for GPUs without matrix structure.

Consecutive threads take consecutive elements, each thread a few at once, so that a wave moves
whole lines; what would run past the end is switched off only where the sizes do not divide.
"""

from __future__ import annotations

from compiler.accumulate import combine, identity, replace
from compiler.index import Index, Range, at_least_zero, constant, unflatten
from compiler.ir import (
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
from compiler.ranges import Computation, elements
from compiler.spread import spread, store, unit_stride, vector_width
from hcq.target import TargetSpec

BLOCK = 256  # threads per group where there is enough to do
LONG = 64  # reductions from here on are shared by the threads of a group


def elementwise(computation: Computation, target: TargetSpec) -> Kernel:
    """A few neighbouring elements per thread; the grid's y axis takes the outer ranges."""
    ranges = computation.ranges
    if not ranges:
        return _single(computation, target)
    outer, last = ranges[:-1], ranges[-1]
    dtypes = [m.dtype for m in (computation.output, *computation.inputs)]
    width = vector_width(dtypes, target.vector_bytes)
    while last.size % width or elements(ranges) < width * target.wave_size:
        width //= 2
        if width <= 1:
            width = 1
            break
    units = last.size // width
    if outer and units >= BLOCK:
        unit, conditions, grid_x, block = _threads(units, target)
        grid = (grid_x, elements(outer), 1)
        indices = [*_positions(outer, group_range(1, grid[1]).index()), unit]
    else:
        unit, conditions, grid_x, block = _threads(units * elements(outer), target)
        grid = (grid_x, 1, 1)
        indices = unflatten(unit, (*(r.size for r in outer), units))
    places = dict(zip(outer, indices[:-1], strict=True))
    base = indices[-1] * width
    values = spread(substitute(computation.value, places), last, base, width)
    position = computation.position.substitute({**places, last: base})
    body: tuple[Statement, ...] = (store(computation.output, position, values),)
    if conditions:
        body = (If(conditions, body),)
    return _kernel(computation, (), grid, block, body)


def reduction(computation: Computation, target: TargetSpec) -> Kernel:
    """A group per result where the reduction is long, else a thread per result."""
    reduce = computation.reduction
    assert reduce is not None
    over = reduce.arg[1]
    outputs = elements(computation.ranges)
    together = unit_stride(reduce.sources[0], over[-1]) or outputs < 4096
    if elements(over) >= LONG and together and outputs < 1 << 31:
        return _by_groups(computation, reduce, target)
    return _by_threads(computation, reduce, target)


def _by_threads(computation: Computation, reduce: Value, target: TargetSpec) -> Kernel:
    operation, over = reduce.arg
    ranges = computation.ranges
    unit, conditions, grid_x, block = _threads(elements(ranges), target)
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


def _by_groups(computation: Computation, reduce: Value, target: TargetSpec) -> Kernel:
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
    while block < BLOCK and block < units and block < target.max_threads_per_group:
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

    # half as much again, so that the addresses of idle threads lie inside too
    shared = Memory("shared", reduce.dtype, block + block // 2, "local")
    tree: list[Statement] = [Store(shared, thread, here), Barrier()]
    half = block // 2
    while half:
        pair = combine(operation, load(shared, thread), load(shared, thread + half))
        tree.append(If(at_least_zero(constant(half - 1) - thread), (Store(shared, thread, pair),)))
        tree.append(Barrier())
        half //= 2
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
        *tree,
        finish,
    )
    return _kernel(computation, (total, shared), (outputs, 1, 1), block, body)


def _single(computation: Computation, target: TargetSpec) -> Kernel:
    """One element: one wave, of which one thread works."""
    thread = thread_range(target.wave_size).index()
    inside = Store(computation.output, constant(0), computation.value)
    body = (If(at_least_zero(-thread), (inside,)),)
    return _kernel(computation, (), (1, 1, 1), target.wave_size, body)


def _threads(units: int, target: TargetSpec) -> tuple[Index, tuple[Index, ...], int, int]:
    """Number units along x: the unit's index, the condition that it exists, groups, threads."""
    block = min(BLOCK, -(-units // target.wave_size) * target.wave_size)
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
    return Kernel("kernel", (computation.output, *computation.inputs), local, grid, block, body)
