"""Sorts on the host: rows of uint64 in order of their bits from 32 up. The lower halves rise along
a row, so that no two elements are equal, and sorting by all bits is stable.

Several rows of at most LONGEST keys: a network of exchanges (kernel.host.sorting.network), whose
code does not depend on keys, for as many rows at a time as a vector has lanes.

Few short rows: a key's place is the number of keys below it, counted for all keys of the row in
vectors. Other rows are sorted by digits (kernel.host.sorting.digits), whose passes alternate
between two arrays: on the stack, or, for long rows, the halves of the output, of which the first is
the last one written.
"""

from __future__ import annotations

from ugpu.compiler.dtype import float64, int64, uint32, uint64
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import Memory, Value, binary, cast, const, load, substitute
from ugpu.compiler.graph.along import NEAR, ONCE
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.sorting.digits import Read, by_digits
from ugpu.compiler.kernel.host.sorting.network import LANES, LONGEST, Network
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

SHORT = 128  # keys of a row up to which every pair is compared
TOGETHER = 4  # keys that all others are compared with at a time
CHUNK = 16384  # keys that justify a separate group
LOW = 32  # the lowest significant bit


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation that sorts rows."""
    _, bits, (*_, along) = computation.value.arg
    output, size = computation.output, along.size
    long = output.dtype is uint64
    outer = computation.ranges[: -2 if long else -1]
    body = ops.expand(computation.value.sources[0])
    lanes = target.vector_bytes // uint64.itemsize
    once = bits <= ONCE and size > SHORT  # one pass by digits
    if size <= LONGEST and LANES <= lanes <= 2 * elements(outer) and not once:
        return _side_by_side(computation, lanes, body)
    rows = max(1, CHUNK // size)
    grid, row, bound = rows_of(elements(outer), rows)

    def read(place: Index) -> Value:
        return substitute(body, places_at(outer, row) | {along: place})

    def key(element: Value) -> Value:
        return binary("shr", element, const(LOW, uint64))

    if long:
        start = row * (2 * size)
        last, before = (output, start), (output, start + size)
        local, steps = by_digits(bits, size, read, key, (last, before, last))
    elif size <= SHORT:
        local, steps = _by_pairs(output, size, row * size, read)
    elif once and size <= NEAR:  # where they go is far from a cache, unless it is in order
        places = Memory("places", uint32, size, "local")
        last = places, constant(0)
        local, steps = by_digits(bits, size, read, key, (last, last, last), _narrow)
        each = Range("p", size)
        place = cast(load(places, each.index()), int64)
        steps.append(Loop(each, (Store(output, row * size + each.index(), place),)))
        local = (places, *local)
    else:
        last = output, row * size
        halves = () if once else tuple(
            [Memory(name, uint64, size, "local") for name in ("even", "odd")]
        )  # fmt: skip
        even, odd = (last, last) if once else ((each, constant(0)) for each in halves)
        local, steps = by_digits(bits, size, read, key, (last, even, odd), _place)
        local = (*halves, *local)
    loop = Loop(Range("r", rows), tuple(steps), bound)
    return kernel_of(computation, local, grid, 1, (loop,))


def _place(key: Value) -> Value:
    """Return the place beside a key."""
    return cast(_narrow(key), int64)


def _narrow(key: Value) -> Value:
    return cast(key, uint32)


def _side_by_side(computation: Computation, lanes: int, body: Value) -> Kernel:
    """Sort rows by a network, `lanes` of them at a time. body: the keys."""
    (*_, along), outer = computation.value.arg[2], computation.ranges[:-1]
    count, size = elements(outer), along.size
    network = Network(size, lanes, float64)
    grid, block, bound = rows_of(-(-count // lanes), max(1, CHUNK // (size * lanes)))

    def read(row: Index, place: Index) -> Value:
        return substitute(body, places_at(outer, block * lanes + row) | {along: place})

    def place(row: Index, at: Index) -> Index:
        first: Index = (block * lanes + row) * size
        return first + at

    left = constant(count) - block * lanes
    steps = network.steps(read, computation.output, place, left)
    loop = Loop(Range("r", max(1, CHUNK // (size * lanes))), tuple(steps), bound)
    return kernel_of(computation, network.memories, grid, 1, (loop,))


def _by_pairs(
    output: Memory, size: int, start: Index, read: Read
) -> tuple[tuple[Memory, ...], list[Statement]]:
    keys, ranks = Memory("keys", uint64, size, "local"), Memory("ranks", uint64, size, "local")
    whole = size // TOGETHER
    first, other, last = Range("i", size), Range("j", whole), Range("l", size)

    def count(places: list[Index], name: str) -> Loop:
        each = Range(name, size)
        total = load(ranks, each.index())
        for place in places:
            below = binary("lt", load(keys, place), load(keys, each.index()))
            total = binary("add", total, cast(below, uint64))
        return Loop(each, (Store(ranks, each.index(), total),))

    begin = (
        Store(keys, first.index(), read(first.index())),
        Store(ranks, first.index(), const(0, uint64)),
    )
    steps: list[Statement] = [Loop(first, begin)]
    if whole:
        block = [other.index() * TOGETHER + place for place in range(TOGETHER)]
        steps.append(Loop(other, (count(block, "i1"),), rolled=True))
    if size % TOGETHER:
        rest = range(whole * TOGETHER, size)
        steps.append(count([constant(place) for place in rest], "i2"))
    to = lookup(load(ranks, last.index()), size)
    steps.append(Loop(last, (Store(output, start + to, _place(load(keys, last.index()))),)))
    return (keys, ranks), steps
