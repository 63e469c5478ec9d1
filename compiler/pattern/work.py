"""The minimum work of a kernel, from which its rates are computed."""

from __future__ import annotations

from math import prod

from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import walk
from ugpu.compiler.pattern.chain import free_ranges

# Values that are not arithmetic: sources of values, and selections.
_PLACES = frozenset(
    ("load", "const", "gate", "where", "cast", "bitcast", "index", "results", "pack", "extract")
)


def flops(computation: Computation) -> int:
    """Return the additions, multiplications and functions of floats, each value once in each pass
    over its ranges: 2 M N K for a product of M x K and K x N. 0 if an index depends on a reduced
    value. The caller holds compiler.expression.value.interning."""
    if computation.pieces:
        return sum(map(flops, computation.pieces))
    free = free_ranges(computation.value)
    if free is None:
        return 0
    total = 0
    for node in walk(computation.value):
        if node.dtype.is_float and node.op not in _PLACES:
            source = node.sources[0] if node.op == "reduce" else node
            total += prod(each.size for each in free[id(source)])
    return total


def moved(computation: Computation) -> int:
    """Return the bytes of the arrays that it reads and writes, each once."""
    memories = {*computation.outputs, *computation.inputs}
    return sum(memory.count * memory.dtype.itemsize for memory in memories)
