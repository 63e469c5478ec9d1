"""A lowering of a test's own kind of node: the elements of each row, the last first, on a host."""

from __future__ import annotations

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import substitute
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.ir import Kernel, Loop, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    _, _, (along,) = computation.value.arg
    outer, size = computation.ranges[:-1], along.size
    grid, row, bound = rows_of(elements(outer), 1)
    each = Range("e", size)
    body = ops.expand(computation.value.sources[0])
    element = substitute(body, places_at(outer, row) | {along: each.index() * -1 + (size - 1)})
    store = Store(computation.output, row * size + each.index(), element)
    return kernel_of(
        computation, (), grid, 1, (Loop(Range("r", 1), (Loop(each, (store,)),), bound),)
    )
