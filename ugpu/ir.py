"""Kernel IR for your own kernels: one kernel object that every device compiles and runs.

    out, x = (ir.Memory(name, ugpu.dtypes.float32, 256) for name in ("out", "x"))
    at = ir.group_range(0, 256).index()              # one group of one thread for each element
    body = (ir.Store(out, at, ir.binary("add", ir.load(x, at), ir.load(x, at))),)
    twice = ir.Kernel("twice", (out, x), (), grid=(256, 1, 1), block=1, body=body)
    program = gpu.compile(twice)

The language is the one that the tensor compiler lowers to: see compiler.kernel.ir and
compiler.expression.value.
"""

from __future__ import annotations

from ugpu.compiler.expression.algebra import Index as Index
from ugpu.compiler.expression.algebra import Range as Range
from ugpu.compiler.expression.algebra import at_least_zero as at_least_zero
from ugpu.compiler.expression.algebra import constant as constant
from ugpu.compiler.expression.algebra import within as within
from ugpu.compiler.expression.value import Memory as Memory
from ugpu.compiler.expression.value import Value as Value
from ugpu.compiler.expression.value import binary as binary
from ugpu.compiler.expression.value import cast as cast
from ugpu.compiler.expression.value import const as const
from ugpu.compiler.expression.value import load as load
from ugpu.compiler.expression.value import value as value
from ugpu.compiler.kernel.ir import Barrier as Barrier
from ugpu.compiler.kernel.ir import If as If
from ugpu.compiler.kernel.ir import Kernel as Kernel
from ugpu.compiler.kernel.ir import Loop as Loop
from ugpu.compiler.kernel.ir import Store as Store
from ugpu.compiler.kernel.ir import group_range as group_range
from ugpu.compiler.kernel.ir import thread_range as thread_range
from ugpu.compiler.kernel.text import format_kernel as format_kernel
