"""Choose which loads of a kernel read a texture: cost model of the texture processors' cache.

A plain load (ldg) reads the second-level cache (UCHE) for each element every time. A fetch of
texels (isam) goes through the texture processor, which caches data. A fetch therefore pays if a
group reads elements again: windows of a convolution that overlap, rows that several threads share.

    reads      threads of the group times the turns of the loops around the load
    elements   number of different ones, from the coefficients of the index
    pays       reads >= WORTH * elements, and the address is not the same for all threads

An address that all threads share is left to Mesa, which moves such loads to the preamble.
Sources: Mesa 25.0.7 src/freedreno/ir3/ir3_compiler_nir.c (emit_intrinsic_load_ssbo reads all
buffers that a shader only reads by isam); Qualcomm, OpenCL General Programming and Optimization
80-NB295-11 (images are read through the texture processor's own cache). UNSURE: WORTH and the size
of that cache, which no public document gives; times from silicon would settle them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Load, unseen
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store

WORTH = 2  # reads of an element by a group that make a fetch pay


def fetched(kernel: Kernel) -> frozenset[Load]:
    """Return a kernel's accesses that are fetches of texels, of parameters it does not write."""
    written = {memory.name for memory in kernel.parameters[: kernel.outputs]}
    return frozenset(
        access
        for access, lanes, loops in _loads(kernel.body, ())
        if access.memory.space == "global" and access.memory.name not in written
        and not access.memory.among and _pays(access.index, lanes, loops, kernel.block)
    )  # fmt: skip


def _loads(
    body: Iterable[Statement], loops: tuple[Range, ...]
) -> Iterator[tuple[Load, int, tuple[Range, ...]]]:
    """Yield every access in stored values, its lanes and the loops around it; one that statements
    of the same body share comes once."""
    seen: set[int] = set()
    for statement in body:
        if isinstance(statement, Store):
            for node in unseen(statement.value, seen):
                if node.op == "load":
                    yield node.arg, node.lanes, loops
        elif isinstance(statement, Loop):
            yield from _loads(statement.body, (*loops, statement.range))
        elif isinstance(statement, If):
            yield from _loads(statement.body, loops)


def _pays(index: Index, lanes: int, loops: tuple[Range, ...], block: int) -> bool:
    ranges = index.ranges()
    if not any(one.kind == "thread" for one in ranges):
        return False
    reads = block * lanes
    for loop in loops:
        reads *= loop.size
    inside = index.substitute({one: constant(0) for one in ranges if one.kind == "group"})
    return reads >= WORTH * min(different(inside, lanes), reads)


def different(index: Index, lanes: int) -> int:
    """Return the approximate number of elements that an index reaches. Its terms are taken in order
    of their coefficients; each repeats the elements of the smaller ones, beside them or partly on
    top of them."""
    turns = {1: lanes}
    for atom, factor in index.terms:
        step = abs(factor)
        turns[step] = turns.get(step, 1) + atom.high - atom.low
    count = extent = 1
    for step, many in sorted(turns.items()):
        count *= many
        if step <= extent:
            count = min(count, extent + step * (many - 1))
        extent += step * (many - 1)
    return count
