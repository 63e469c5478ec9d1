"""Online reductions: attention from scores to output without storing the scores.

    before   s[r, k] = sum over d of q[r, d] * key[k, d], then any element-wise work (scale, mask)
             M[r] = max over k of s;  S[r] = sum over k of exp(s - M)
             out[r, e] = (sum over k of exp(s - M) / S * v[k, e]), then any element-wise work
    after    blocks of k one after the other, with running M, S and out: when a block raises M to
             M', what was summed before is multiplied by exp(M - M')

The rule is that of a sum over k whose terms depend on a maximum over the same k. If the maximum
occurs only in one factor exp(a - M), and all other factors that depend on the totals do not depend
on k (these leave the sum), the two can run side by side. (M. Milakov, N. Gimelshein, "Online
normalizer calculation for softmax", arXiv:1805.02867; T. Dao et al., "FlashAttention",
arXiv:2205.14135.)

Casts to 16 bits and back between the weights and the sum are left out: the whole computation is in
float32, which is more exact than step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.compiler.dtype import DType, float32, is_narrow
from ugpu.compiler.expression.accumulate import replace
from ugpu.compiler.expression.algebra import Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.lookup import guard
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    const,
    gate,
    load,
    rebuild,
    substitute,
    value,
    walk,
)
from ugpu.compiler.pattern.chain import Stage, alike, free_ranges
from ugpu.compiler.pattern.contraction import ranges_of

# A running maximum starts here, not at minus infinity: exp(-inf - -inf) is NaN, and the first
# keys of a row may all be masked out. A row without any key gives 0 / 0, as step by step.
WIDEST = 4096  # depth and columns: limit of a host thread's stack for a block of rows
FINITE_LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Online:
    """The parts. rows: of one element if there is only one row. score: element of s[rows, keys],
    made of `inner`, the reduce over depth of left * right. sums: the totals of exp(score - largest)
    times a factor (None is 1). factor: of the output's sum. result: the output's element, made of
    loads of the totals and of `output`. rounded: the type that the weights were rounded to, if
    any.
    """

    batch: tuple[Range, ...]
    rows: Range
    keys: Range
    columns: Range
    depth: Range
    left: Value
    right: Value
    inner: Value
    score: Value
    largest: Memory
    sums: tuple[tuple[Memory, Value | None], ...]
    factor: Value
    output: Memory
    result: Value
    rounded: DType | None

    def finished(self, totals: Mapping[Memory, Value]) -> Value:
        """Return the output's element, with values for `largest`, `sums` and `output`."""

        def change(node: Value, _: tuple[Value, ...]) -> Value | None:
            return totals.get(node.arg.memory) if node.op == "load" else None

        return rebuild(self.result, change)


@once
def find_online(computation: Computation) -> Online | None:
    """Return the parts of an attention in a computation, or None."""
    if len(computation.reductions) < 4:
        return None
    free = free_ranges(computation.value)
    if free is None:
        return None
    outputs = frozenset(computation.ranges)
    keys: list[tuple[Range, ...]] = []
    depths: list[tuple[Range, ...]] = []
    stages: list[tuple[Stage, frozenset[Range]]] = []

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op != "reduce":
            return None
        operation, over = node.arg
        used = free[id(node)]
        ranges = alike(over, keys if used <= outputs else depths)
        places = {old: new.index() for old, new in zip(over, ranges, strict=True) if old != new}
        body = substitute(sources[0], places)
        if not used <= outputs:
            return value("reduce", node.dtype, (body,), (operation, ranges))
        for stage, _ in stages:
            if stage.body is body and stage.operation == operation:
                return load(stage.total, constant(0))
        total = Memory(f"total{len(stages)}", node.dtype, 1, "register")
        stages.append((Stage(operation, ranges, body, total), used))
        return load(total, constant(0))

    result = rebuild(computation.value, change)
    if len(keys) != 1 or len(keys[0]) != 1 or len(depths) != 1 or len(depths[0]) != 1:
        return None
    return _parts(computation, [s for s, _ in stages], [f for _, f in stages], result)


def _parts(
    computation: Computation, stages: list[Stage], free: list[frozenset[Range]], result: Value
) -> Online | None:
    """Return the parts by name, if they have the required form."""
    if [s.operation for s in stages] != ["max", *["sum"] * (len(stages) - 1)] or len(stages) < 3:
        return None
    (keys,) = stages[0].ranges
    across = free[-1] - free[0]
    inner = {node for stage in stages for node in walk(stage.body) if node.op == "reduce"}
    if any(used != free[0] for used in free[:-1]) or len(across) != 1 or len(inner) != 1:
        return None
    if not free[0] < free[-1] or free[-1] != frozenset(computation.ranges):
        return None
    (columns,) = across
    (product,) = inner
    largest, score = stages[0].total, stages[0].body
    totals = frozenset(stage.total for stage in stages)
    split = [weighted(stage.body, score, largest, totals, keys) for stage in stages[1:]]
    if product.arg[0] != "sum" or product.sources[0].op != "mul" or product.dtype is not float32:
        return None
    if any(each is None for each in split) or _reads(score, totals):
        return None
    left, right = product.sources[0].sources
    if keys in ranges_of(left):
        left, right = right, left
    factor, scale = split[-1] or (None, None)
    if factor is None or keys in ranges_of(left) or keys not in ranges_of(right):
        return None
    (depth,) = product.arg[1]
    apart = ranges_of(right) | ranges_of(factor)
    counted = [r for r in computation.ranges if r in ranges_of(left) and r not in apart]
    if max(depth.size, columns.size) > WIDEST:
        return None
    if any(each is not None and each[1] is not None for each in split[:-1]):
        return None
    rows, output = counted[-1] if counted else Range("row", 1), stages[-1].total
    if scale is not None:
        whole = load(output, constant(0))
        result = replace(result, whole, binary("mul", whole, scale))
    batch = tuple(r for r in computation.ranges if r not in (rows, columns))
    sums = tuple(
        (stage.total, each[0])
        for stage, each in zip(stages[1:-1], split[:-1], strict=True)
        if each is not None
    )
    return Online(
        batch, rows, keys, columns, depth, left, right, product, score, largest, sums, factor,
        output, result, _rounded(stages[-1].body),
    )  # fmt: skip


def weight_of(score: Value, largest: Memory) -> Value:
    """Return exp(score - largest)."""
    below = binary("sub", score, load(largest, constant(0)))
    return value("function", float32, (below,), "exp")


def weighted(
    body: Value, score: Value, largest: Memory, totals: frozenset[Memory], keys: Range
) -> tuple[Value | None, Value | None] | None:
    """Return a term as exp(score - largest) * factor * scale, where the factor reads no total and
    the scale does not depend on the key; None in place of 1. None if it has another form."""
    above, below = _factors(body)
    wanted = weight_of(score, largest)
    if above.count(wanted) != 1:
        return None
    above.remove(wanted)
    factor: Value | None = None
    scale: Value | None = None
    for values, op in ((above, "mul"), (below, "div")):
        for each in values:
            varies = keys in ranges_of(each) or any(n.op == "reduce" for n in walk(each))
            if _reads(each, totals) and varies:
                return None
            if _reads(each, totals):
                scale = binary(op, const(1, float32) if scale is None else scale, each)
            elif factor is None and op == "mul":
                factor = each
            else:
                factor = binary(op, const(1, float32) if factor is None else factor, each)
    return factor, scale


def _factors(root: Value) -> tuple[list[Value], list[Value]]:
    """Return the factors and the divisors."""
    above: list[Value] = []
    below: list[Value] = []
    stack = [(root, above)]
    while stack:
        node, side = stack.pop()
        other = below if side is above else above
        if node.op == "mul":
            stack += [(source, side) for source in node.sources]
        elif node.op == "div":
            stack += [(node.sources[0], side), (node.sources[1], other)]
        elif _is_rounding(node):
            stack.append((node.sources[0].sources[0], side))
        elif not (node.op == "const" and node.arg == 1):
            side.append(node)
    return above, below


def _rounded(term: Value) -> DType | None:
    """Return the type that a factor of the output's terms was rounded to."""
    if term.op != "mul":
        return None
    found = [source.sources[0].dtype for source in term.sources if _is_rounding(source)]
    return found[0] if found else None


def _is_rounding(node: Value) -> bool:
    """Return whether a value is a float32 that was rounded to 16 bits."""
    if node.op != "cast" or node.dtype is not float32 or not is_narrow(node.sources[0].dtype):
        return False
    narrow = node.sources[0]
    return narrow.op == "cast" and narrow.sources[0].dtype is float32


def _reads(root: Value, memories: frozenset[Memory]) -> bool:
    return any(node.op == "load" and node.arg.memory in memories for node in walk(root))


def widened(root: Value, across: Range, size: int) -> tuple[Value, Range]:
    """Return a value over a range of at least `size`; beyond `across` it is zero and reads
    nothing."""
    if size <= across.size:
        return root, across
    wide = Range(across.name + "_wide", size)
    inside = at_least_zero(constant(across.size - 1) - wide.index())
    root = guard(substitute(root, {across: wide.index()}), inside)
    return gate(inside, root, const(0, root.dtype)), wide
