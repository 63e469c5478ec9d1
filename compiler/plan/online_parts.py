"""Attention whose keys several groups share, for a long context and few rows, as in decoding: one
kernel for parts of the keys, and one that joins them.

    before   out[r, e] = sum over k of exp(s[r, k] - M[r]) * v[k, e] / S[r], M and S over all keys
    after    M[p, r], S[p, r] and O[p, r, e], not divided, each over the keys of part p
             out[r, e] = sum over p of exp(M[p, r] - M[r]) * O[p, r, e] / S[r], where M[r] is the
             largest M[p, r], and S[r] the sum of S[p, r] weighted likewise

The parts are again an attention, with one more range in its batch and several outputs, so each form
of attention can compute them. M and S are stored once for every column, which is little compared
with keys and values. (T. Dao et al., "Flash-Decoding for long-context inference", 2023.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
    flatten,
)
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.lookup import guarded
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    cast,
    const,
    gate,
    load,
    rebuild,
    substitute,
    value,
    walk,
)
from ugpu.compiler.pattern.online import Online


@dataclasses.dataclass(frozen=True)
class InParts:
    """parts: has the outputs M, S (one for each of the sums) and O, of `count` elements of float32
    each. join: reads those first, in that order."""

    parts: Computation
    join: Computation
    count: int


def in_parts(computation: Computation, online: Online, pieces: int) -> InParts:
    """Return both computations. pieces: of equal length, except the last; some may be empty."""
    ranges = (Range("part", pieces), *computation.ranges)
    count = pieces * computation.output.count
    names = ("largest", *(f"sum{i}" for i in range(len(online.sums))), "output")
    memories = [Memory(f"part_{name}", float32, count) for name in names]
    results = _results(online, pieces)
    parts = Computation(
        memories[0],
        computation.inputs,
        ranges,
        value("results", float32, results),
        f"parts {computation.origin}",
        None,
        tuple(memories[1:]),
    )
    joined = _joined(computation, online, memories, pieces)
    read = {node.arg.memory for node in walk(joined) if node.op == "load"}
    others = tuple(memory for memory in computation.inputs if memory in read)
    join = dataclasses.replace(
        computation,
        inputs=(*memories, *others),
        value=joined,
        origin=f"join {computation.origin}",
    )
    return InParts(parts, join, count)


def _results(online: Online, pieces: int) -> list[Value]:
    """Return the results of a part: its maximum, its sums, its output."""
    each = -(-online.keys.size // pieces)
    counter = Range("key_of_part", each)
    key = Range("part", pieces).index() * each + counter.index()
    inside = at_least_zero(constant(online.keys.size - 1) - key)

    def here(root: Value) -> Value:
        return _guarded(substitute(root, {online.keys: key}), counter, inside)

    lowest = const(float("-inf"), float32)
    score = gate(inside, here(online.score), lowest)
    largest = value("reduce", float32, (score,), ("max", (counter,)))
    weight = value("function", float32, (binary("sub", score, largest),), "exp")
    results = [largest]
    for _, extra in online.sums:
        term = weight if extra is None else binary("mul", weight, here(extra))
        results.append(value("reduce", float32, (term,), ("sum", (counter,))))
    if online.rounded is not None:
        weight = cast(cast(weight, online.rounded), float32)
    term = binary("mul", weight, here(online.factor))
    return [*results, value("reduce", float32, (term,), ("sum", (counter,)))]


def _guarded(root: Value, counter: Range, inside: Validity) -> Value:
    """Restrict loads that depend on the key to keys that exist."""
    if not inside:
        return root

    def change(node: Value, _: tuple[Value, ...]) -> Value | None:
        if node.op == "index" and counter in node.arg.ranges():
            return value("index", node.dtype, (), guarded(node.arg, inside))
        if node.op != "load" or counter not in node.arg.index.ranges():
            return None
        index = guarded(node.arg.index, inside)
        return load(node.arg.memory, index, both(node.arg.conditions, inside), node.lanes)

    return rebuild(root, change)


def _joined(computation: Computation, online: Online, memories: list[Memory], pieces: int) -> Value:
    """Return the output's element, from the parts in memory."""

    def over(name: str, operation: str, term: Callable[[Index], Value]) -> Value:
        part = Range(name, pieces)
        places = [part.index(), *(r.index() for r in computation.ranges)]
        at = flatten(places, [pieces, *(r.size for r in computation.ranges)])
        return value("reduce", float32, (term(at),), (operation, (part,)))

    largest = over("part_0", "max", lambda at: load(memories[0], at))
    totals = {online.largest: largest}
    wanted = [*(memory for memory, _ in online.sums), online.output]
    for number, (total, memory) in enumerate(zip(wanted, memories[1:], strict=True), 1):

        def weighted(at: Index, memory: Memory = memory) -> Value:
            below = binary("sub", load(memories[0], at), largest)
            weight = value("function", float32, (below,), "exp")
            return binary("mul", weight, load(memory, at))

        totals[total] = over(f"part_{number}", "sum", weighted)
    return online.finished(totals)
