"""Join totals of several threads into one that all of them have.

Within a wave the lanes exchange totals along one bit of their number after the other, so that each
lane ends with the whole total: this takes no memory and no barrier. Beyond a wave, each wave stores
its total in local memory, and after one barrier all threads read all totals.
"""

from __future__ import annotations

from functools import partial, reduce

from ugpu.compiler.expression.accumulate import combine
from ugpu.compiler.expression.algebra import Index, at_least_zero, constant
from ugpu.compiler.expression.value import Memory, Value, binary, load, value
from ugpu.compiler.kernel.ir import Barrier, If, Statement, Store, thread_range
from ugpu.compiler.kernel.shared.spread import lanes_of

READ = 4  # totals that a thread reads at once


def exchange(source: Value, mask: int) -> Value:
    """Return the value of the lane whose number is this one's xor `mask`, a power of two."""
    return value("exchange", source.dtype, (source,), mask)


def larger(left: Value, right: Value) -> Value:
    """Return the greater of two; the left one if the right one is NaN."""
    above = binary("lt", left, right)
    return value("where", left.dtype, (above, right, left))


def join_lanes(operation: str, total: Memory, lanes: int, first: int = 1) -> list[Statement]:
    """Join the totals of lanes whose numbers differ in the bits from `first` to below `lanes`."""
    statements: list[Statement] = []
    here = load(total, constant(0))
    mask = first
    while mask < lanes:
        joined = combine(operation, here, exchange(here, mask))
        statements.append(Store(total, constant(0), joined))
        mask *= 2
    return statements


def waves_memory(name: str, total: Memory, lanes: int, wave: int) -> Memory | None:
    """Return the local memory that `join` needs; None within a wave."""
    return Memory(name, total.dtype, lanes // wave, "local") if lanes > wave else None


def join(
    operation: str, total: Memory, lanes: int, block: int, wave: int, shared: Memory | None
) -> list[Statement]:
    """Join the totals of every `lanes` neighbouring threads. shared: from `waves_memory`, if the
    lanes are the whole group; a barrier must precede a later write to it."""
    statements = join_lanes(operation, total, min(lanes, wave))
    if shared is None:
        return statements
    assert lanes == block
    here, thread = load(total, constant(0)), thread_range(block).index()
    statements += [
        If(at_least_zero(-(thread % wave)), (Store(shared, thread // wave, here),)),
        Barrier(),
    ]
    joined = total_of(operation, shared, constant(0), shared.count)
    return [*statements, Store(total, constant(0), joined)]


def total_of(operation: str, memory: Memory, start: Index, count: int) -> Value:
    """Return the total of neighbouring elements of a memory."""
    width = min(READ, count)
    vectors = [load(memory, start + at, lanes=width) for at in range(0, count, width)]
    return reduce(partial(combine, operation), [each for v in vectors for each in lanes_of(v)])
