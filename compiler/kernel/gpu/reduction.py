"""Reductions on a GPU: a thread per result, some lanes or a group per result, or a group for a wave
of neighbouring results where memory runs along them."""

from __future__ import annotations

from functools import partial
from functools import reduce as fold

from ugpu.compiler.expression.accumulate import combine, identity
from ugpu.compiler.expression.algebra import Range, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, load, substitute
from ugpu.compiler.kernel.choices import Rows, Sharing, Space
from ugpu.compiler.kernel.gpu.loops import BLOCK, blocks
from ugpu.compiler.kernel.gpu.rows import by_threads, default_rows, lane_counts, rows
from ugpu.compiler.kernel.ir import (
    Barrier,
    If,
    Kernel,
    Loop,
    Store,
    group_range,
    guarded,
    thread_range,
)
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over, result
from ugpu.compiler.kernel.shared.spread import loads
from ugpu.compiler.pattern.chain import single
from ugpu.hcq.state.target import TargetSpec

SHORT = 16  # a single thread does reductions shorter than this
MANY = 1 << 15  # results that keep the machine busy with one thread each
REUSED = 16  # reads of an element, on average, from which on they are mostly served by caches


def default_sharing(computation: Computation, target: TargetSpec) -> Sharing:
    """Use several lanes per result if most memory runs along the reduction; a group per wave of
    neighbouring results if it runs along those; otherwise a thread per result."""
    reduce = computation.reduction
    assert reduce is not None
    over, ranges = reduce.arg[1], computation.ranges
    outputs, length = elements(ranges), elements(over)
    wanted = default_rows(computation, single(computation), target)
    lanes, block = wanted.lanes, wanted.block
    if length < SHORT or outputs >= 1 << 31:
        return Sharing("threads", lanes, BLOCK)
    if outputs >= MANY and outputs * length >= REUSED * _read(reduce.sources[0]):
        return Sharing("threads", lanes, BLOCK)
    along = _walked(reduce.sources[0], over[-1])
    across = _walked(reduce.sources[0], ranges[-1]) if ranges else 0
    if along and along >= across:
        return Sharing("lanes", lanes, block)
    if outputs >= MANY or (across and length < 2 * target.wave_size):
        return Sharing("threads", lanes, BLOCK)
    if across and ranges[-1].size >= 8:
        return Sharing("columns", lanes, BLOCK)
    return Sharing("lanes", lanes, block)


def _read(root: Value) -> int:
    """Return the elements of all memories that a value reads."""
    return sum(memory.count for memory in {access.memory for access in loads(root)})


def _walked(root: Value, along: Range) -> int:
    """Return the elements of the memories that a range walks through element by element."""
    walking = (access for access in loads(root) if access.index.coefficient(along) in (1, -1))
    return sum({access.memory: access.memory.count for access in walking}.values())


def sharing_space(computation: Computation, target: TargetSpec) -> Space:
    """Return the space of every way, with groups of 1 to 16 waves."""
    few = elements(computation.ranges) < 1 << 31
    ways = ("threads", *(("lanes", "columns") if few and computation.ranges else ()))
    if few and not computation.ranges:
        ways = ("lanes",)
    lanes = lane_counts(target)
    options = {"way": ways, "lanes": lanes, "block": blocks(target)}

    def fits(sharing: Sharing) -> bool:
        by_lanes = sharing.way == "lanes"
        return (
            not by_lanes
            or sharing.lanes <= min(sharing.block, target.wave_size)
            or (sharing.lanes == sharing.block)
        )

    return Space(default_sharing(computation, target), options, fits)


def reduction(
    computation: Computation, target: TargetSpec, sharing: Sharing | None = None
) -> Kernel:
    """Return a kernel that adds up results as `sharing` specifies."""
    reduce = computation.reduction
    assert reduce is not None
    sharing = sharing or default_sharing(computation, target)
    if sharing.way == "columns":
        return _by_columns(computation, reduce, target, sharing.block)
    chain = single(computation)
    if sharing.way == "threads":
        return by_threads(computation, chain, target, sharing.block)
    found = default_rows(computation, chain, target)
    wanted = Rows(sharing.lanes, sharing.block, found.width, found.held)
    return rows(computation, chain, target, wanted)


def _by_columns(computation: Computation, reduce: Value, target: TargetSpec, most: int) -> Kernel:
    """Compute a wave of neighbouring results per group; each of its waves takes every n-th step, so
    that lanes read neighbours. Then the first wave joins the totals of all."""
    operation, over = reduce.arg
    outer, last = computation.ranges[:-1], computation.ranges[-1]
    wave, length = target.wave_size, elements(over)
    waves = most // wave
    thread = thread_range(most).index()
    grid = (-(-last.size // wave), elements(outer), 1)
    column = group_range(0, grid[0]).index() * wave + thread % wave
    exists = at_least_zero(constant(last.size - 1) - column)
    places = groups_at(outer, 1)
    places[last] = column
    total = Memory("total", reduce.dtype, 1, "register")
    here = load(total, constant(0))
    counter = Range("k", -(-length // waves))
    step = counter.index() * waves + thread // wave
    taken = substitute(reduce.sources[0], {**places, **places_at(over, step)})
    add = Store(total, constant(0), combine(operation, here, taken))
    inside = at_least_zero(constant(length - 1) - step)
    # Lanes without a result take no step at all, so that a loop of whole steps has no conditions.
    steps = guarded(exists, Loop(counter, guarded(inside, add)))
    shared = Memory("shared", reduce.dtype, most, "local")
    first_wave = at_least_zero(constant(wave - 1) - thread)
    others = [load(shared, thread % wave + first) for first in range(0, most, wave)]
    joined = fold(partial(combine, operation), others)
    body = (
        Store(total, constant(0), identity(operation, reduce.dtype)),
        *steps,
        Store(shared, thread, here),
        Barrier(),
        If(both(first_wave, exists), (result(computation, places, joined, reduce),)),
    )
    return kernel_over(computation, grid, most, body)
