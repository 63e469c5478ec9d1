"""Kernels for GPUs without matrix structure.

Consecutive threads take consecutive elements, each thread a few at once, so that a wave moves whole
lines. Bounds are checked only if the sizes do not divide evenly.
"""

from __future__ import annotations

from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    at_least_zero,
    constant,
    substitute_all,
    unflatten,
)
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import substitute
from ugpu.compiler.kernel.choices import Space, Threads
from ugpu.compiler.kernel.ir import Kernel, group_range, guarded, thread_range
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.kernel.shared.spread import spread, store, vector_width
from ugpu.hcq.state.target import TargetSpec

BLOCK = 256  # threads per group if there is enough work


def default_threads(computation: Computation, target: TargetSpec) -> Threads:
    """Give a thread as many elements as it moves at once, if all threads then have some."""
    if not computation.ranges:
        return Threads(1, BLOCK)
    last = computation.ranges[-1]
    dtypes = [m.dtype for m in (*computation.outputs, *computation.inputs)]
    width = vector_width(dtypes, target.vector_bytes)
    if not _side_by_side(computation, last):
        width = 1
    while last.size % width or elements(computation.ranges) < width * target.wave_size:
        width //= 2
        if width <= 1:
            width = 1
            break
    return Threads(width, BLOCK)


def threads_space(computation: Computation, target: TargetSpec) -> Space:
    """Return the space: vectors up to 8 elements; groups of 1 to 16 waves."""
    last = computation.ranges[-1]
    gaps = not _side_by_side(computation, last)
    widths = tuple(w for w in (1, 2, 4, 8) if last.size % w == 0 and not (gaps and w > 1))
    options = {"width": widths, "block": blocks(target)}
    return Space(default_threads(computation, target), options, lambda _: True)


def _side_by_side(computation: Computation, last: Range) -> bool:
    """Return whether the output along a range is contiguous, and written wholly or not at all."""
    if computation.place is None:
        return True
    allowed = () if computation.chosen is None else computation.chosen.allowed
    rest = (computation.position - last.index(), *allowed)
    return not any(last in index.ranges() for index in rest)


def blocks(target: TargetSpec) -> tuple[int, ...]:
    """Return the sizes of groups to choose from, in whole waves."""
    sizes = (target.wave_size * n for n in (1, 2, 4, 8, 16))
    return tuple(size for size in sizes if size <= target.max_threads_per_group)


def elementwise(
    computation: Computation, target: TargetSpec, threads: Threads | None = None
) -> Kernel:
    """Compute a few neighbouring elements per thread; the grid's y axis takes the outer ranges."""
    *outer, last = computation.ranges or (Range("i", 1),)
    threads = threads or default_threads(computation, target)
    width, most = threads.width, threads.block
    units = last.size // width
    if outer and units >= most:
        unit, conditions, grid_x, block = threads_along(units, target, most)
        grid = (grid_x, elements(outer), 1)
        indices = [*groups_at(outer, 1).values(), unit]
    else:
        unit, conditions, grid_x, block = threads_along(units * elements(outer), target, most)
        grid = (grid_x, 1, 1)
        indices = unflatten(unit, (*(r.size for r in outer), units))
    places = dict(zip(outer, indices[:-1], strict=True))
    base = indices[-1] * width
    position = computation.position.substitute({**places, last: base})
    results = computation.results(substitute(computation.value, places))
    stores = (store(memory, position, spread(root, last, base, width)) for memory, root in results)
    allowed = () if computation.chosen is None else computation.chosen.allowed
    body = guarded(substitute_all(allowed, {**places, last: base}), *stores)
    return kernel_over(computation, grid, block, guarded(conditions, *body))


def threads_along(
    units: int, target: TargetSpec, most: int = BLOCK
) -> tuple[Index, tuple[Index, ...], int, int]:
    """Number units along x. Return a unit's index, the condition that it exists, groups,
    threads."""
    block = min(most, -(-units // target.wave_size) * target.wave_size)
    groups = -(-units // block)
    unit = group_range(0, groups).index() * block + thread_range(block).index()
    return unit, at_least_zero(constant(units - 1) - unit), groups, block
