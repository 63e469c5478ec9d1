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

from compiler.expression.algebra import Index as Index
from compiler.expression.algebra import Range as Range
from compiler.expression.algebra import at_least_zero as at_least_zero
from compiler.expression.algebra import constant as constant
from compiler.expression.algebra import within as within
from compiler.expression.value import Memory as Memory
from compiler.expression.value import Value as Value
from compiler.expression.value import binary as binary
from compiler.expression.value import cast as cast
from compiler.expression.value import const as const
from compiler.expression.value import load as load
from compiler.expression.value import value as value
from compiler.kernel.ir import Barrier as Barrier
from compiler.kernel.ir import If as If
from compiler.kernel.ir import Kernel as Kernel
from compiler.kernel.ir import Loop as Loop
from compiler.kernel.ir import Store as Store
from compiler.kernel.ir import group_range as group_range
from compiler.kernel.ir import thread_range as thread_range
from compiler.kernel.text import format_kernel as format_kernel
