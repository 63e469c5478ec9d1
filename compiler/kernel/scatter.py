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
from ugpu.compiler.kernel.gpu import loops as gpu_loops
from ugpu.compiler.kernel.gpu.loops import threads_along
from ugpu.compiler.kernel.host import loops as host_loops
from ugpu.compiler.kernel.host.nest import Nest
from ugpu.compiler.kernel.ir import Kernel, guarded, nested
from ugpu.compiler.kernel.shared.kernels import kernel_over, stores
from ugpu.hcq.state.target import TargetSpec

LINE = 16  # minimum number of neighbouring elements that a group of the host takes
LONG = 1 << 16  # elements from which on several groups, each reading all indices, are worthwhile
SHARE = 4  # waves for each compute unit


def host(computation: Computation, chosen: Chosen, target: TargetSpec) -> Kernel:
    """Give each group a chunk of the last range, and all indices in order."""
    if not chosen.ordered:
        return host_loops.elementwise(computation, target)
    *outer, last = computation.ranges or (Range("i", 1),)
    units, rows, chunk = max(1, target.compute_units), elements(outer), last.size
    if rows < units:
        pieces = -(-units // rows)
        line = 1 if computation.position.coefficient(last) >= LINE else LINE
        chunk = min(last.size, -(-last.size // (pieces * line)) * line)
    chunks = -(-last.size // chunk)
    owners = 1
    if chunks * rows < units and rows * last.size * elements(chosen.ordered) >= LONG:
        owners = min(chosen.size, -(-units // (chunks * rows)))
    nest = Nest(computation, outer, (last, chunk), (Range("owner", owners), 1))
    part, owner = nest.sides
    walk = part.steps("i")
    places = nest.batch | walk.places
    allowed = _allowed(chosen, places, owner.start, owners)
    here = tuple([c for c in allowed if walk.last in c.ranges()])
    before = tuple([c for c in allowed if walk.last not in c.ranges()])
    inner = walk.around(*guarded(here, *stores(computation, computation.value, places)))
    return nest.kernel(nested(chosen.ordered, *guarded(before, inner)))


def gpu(computation: Computation, chosen: Chosen, target: TargetSpec) -> Kernel:
    """Give each element of the other ranges a thread, or several that share the written
    elements."""
    if not chosen.ordered:
        return gpu_loops.elementwise(computation, target)
    ranges = computation.ranges
    wanted = SHARE * target.compute_units * target.wave_size
    owners = min(chosen.size, max(1, wanted // elements(ranges)))
    unit, exists, groups, block = threads_along(owners * elements(ranges), target)
    owner, *indices = unflatten(unit, (owners, *(r.size for r in ranges)))
    places = dict(zip(ranges, indices, strict=True))
    allowed = _allowed(chosen, places, owner, owners)
    body = nested(
        chosen.ordered, *guarded(allowed, *stores(computation, computation.value, places))
    )
    return kernel_over(computation, (groups, 1, 1), block, guarded(exists, *body))


def _allowed(chosen: Chosen, places: dict[Range, Index], owner: Index, owners: int) -> Validity:
    """Return when an owner writes: owners have equal numbers of neighbouring coordinates."""
    each = -(-chosen.size // owners)
    coordinate = chosen.coordinate.substitute(places)
    own: Validity = ()
    if owners > 1:
        from_first = coordinate - owner * each
        own = both(at_least_zero(from_first), at_least_zero(constant(each - 1) - from_first))
    return both(substitute_all(chosen.allowed, places), own)
