"""Kernels that write elements chosen by indices (compiler.schedule.express.Chosen).

If no element is written twice, these are ordinary loops. Otherwise one thread goes in order through
the ranges along which writes may collide, so that results are deterministic. Threads share the
other ranges and, if these are few, the written elements: each such thread reads all indices and
writes only its own part of the elements.
"""

from __future__ import annotations

from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
    substitute_all,
    unflatten,
)
from ugpu.compiler.expression.computation import Chosen, Computation, elements
from ugpu.compiler.expression.value import substitute
from ugpu.compiler.kernel.gpu import loops as gpu_loops
from ugpu.compiler.kernel.gpu.loops import threads_along
from ugpu.compiler.kernel.host import loops as host_loops
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store, group_range, nested
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.hcq.state.target import TargetSpec

LINE = 16  # minimum number of neighbouring elements that a group of the host takes
LONG = 1 << 16  # elements from which on several groups, each reading all indices, are worthwhile
SHARE = 4  # waves for each compute unit


def host(computation: Computation, target: TargetSpec) -> Kernel:
    """Give each group a chunk of the last range, and all indices in order."""
    computation = computation.plain
    chosen = _chosen(computation)
    if not chosen.ordered:
        return host_loops.elementwise(computation, target)
    units, ranges = max(1, target.compute_units), computation.ranges
    outer, last = ranges[:-1], ranges[-1] if ranges else Range("i", 1)
    rows = elements(outer)
    chunk = last.size
    if rows < units:
        pieces = -(-units // rows)
        line = 1 if computation.position.coefficient(last) >= LINE else LINE
        chunk = min(last.size, -(-last.size // (pieces * line)) * line)
    chunks = -(-last.size // chunk)
    owners = 1
    if chunks * rows < units and elements(ranges) * elements(chosen.ordered) >= LONG:
        owners = min(chosen.size, -(-units // (chunks * rows)))
    grid = (chunks, rows, owners)
    start = group_range(0, chunks).index() * chunk
    step = Range("i", chunk)
    places = groups_at(outer, 1)
    if ranges:
        places[last] = start + step.index()
    allowed = _allowed(chosen, places, group_range(2, owners).index(), owners)
    here = tuple([c for c in allowed if step in c.ranges()])
    before = tuple([c for c in allowed if step not in c.ranges()])
    inner = Loop(step, _if(here, (_store(computation, places),)), constant(last.size) - start)
    body = nested(chosen.ordered, *_if(before, (inner,)))
    return kernel_over(computation, grid, 1, body)


def gpu(computation: Computation, target: TargetSpec) -> Kernel:
    """Give each element of the other ranges a thread, or several that share the written
    elements."""
    computation = computation.plain
    chosen = _chosen(computation)
    if not chosen.ordered:
        return gpu_loops.elementwise(computation, target)
    ranges = computation.ranges
    wanted = SHARE * target.compute_units * target.wave_size
    owners = min(chosen.size, max(1, wanted // elements(ranges)))
    unit, exists, groups, block = threads_along(owners * elements(ranges), target)
    owner, *indices = unflatten(unit, (owners, *(r.size for r in ranges)))
    places = dict(zip(ranges, indices, strict=True))
    allowed = _allowed(chosen, places, owner, owners)
    body = nested(chosen.ordered, *_if(allowed, (_store(computation, places),)))
    return kernel_over(computation, (groups, 1, 1), block, _if(exists, body))


def _chosen(computation: Computation) -> Chosen:
    assert computation.chosen is not None
    return computation.chosen


def _allowed(chosen: Chosen, places: dict[Range, Index], owner: Index, owners: int) -> Validity:
    """Return when an owner writes: owners have equal numbers of neighbouring coordinates."""
    each = -(-chosen.size // owners)
    coordinate = chosen.coordinate.substitute(places)
    own: Validity = ()
    if owners > 1:
        from_first = coordinate - owner * each
        own = both(at_least_zero(from_first), at_least_zero(constant(each - 1) - from_first))
    return both(substitute_all(chosen.allowed, places), own)


def _store(computation: Computation, places: dict[Range, Index]) -> Store:
    position = computation.position.substitute(places)
    return Store(computation.output, position, substitute(computation.value, places))


def _if(conditions: Validity, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return (If(conditions, body),) if conditions else body
