"""Results of a product as vectors, made of totals that are still in registers.

    before   tile[row][column] = total; out[row, column] = f(tile[row][column], bias[row], ..)
    after    out[row, column .. column + n] = f(total, bias[row] in all lanes, ..)

f is short and elementwise, and what it reads is the same along a row of results or lies along it.
Of longer functions each total would have a copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.compiler.dtype import bfloat16, bool_, float32, int32
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    broadcast,
    indices_of,
    load,
    rebuild,
    value,
    walk,
)
from ugpu.compiler.kernel.host.nest import Part
from ugpu.compiler.kernel.ir import Store
from ugpu.compiler.kernel.shared.kernels import result

LONGEST = 12  # operations of a result
OPERATIONS = frozenset(("add", "sub", "mul", "div", "neg", "fma", "min", "max", "where", "lt", "le",
                        "eq", "ne", "sqrt"))  # fmt: skip
CASTS = frozenset(((float32, bfloat16), (bfloat16, float32), (int32, float32)))


def in_lanes(
    computation: Computation, reduce: Value, places: Mapping[Range, Index], along: Part,
    first: Index, vector: Value, normal: bool = False,
) -> Store | None:  # fmt: skip
    """Return the store of a vector of results, from the first one along a part on, of totals that
    `vector` has. None if they are not neighbours in memory, or need other operations. normal: the
    totals are never denormal, and the processor has an instruction that converts such numbers to
    bfloat16; results may then be cast."""
    lanes = vector.lanes
    lane = Range("lane", lanes)
    total = load(Memory("total", vector.dtype, lanes, "local"), lane.index())
    store = result(computation, {**places, **along.places(first + lane.index())}, total, reduce)
    nodes = list(walk(store.value))
    moving = {id(node) for node in nodes if any(lane in i.ranges() for i in indices_of(node))}
    if store.index.linear(lane) != (1,) or len(nodes) > LONGEST or id(store.value) not in moving:
        return None
    if not all(id(node) not in moving or _is_vector(node, lane, normal) for node in nodes):
        return None
    start = {lane: constant(0)}

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node is total:
            return vector
        if id(node) not in moving:
            return None
        if node.op == "load":
            return load(node.arg.memory, node.arg.index.substitute(start), (), lanes)
        if node.op == "cast" and node.sources[0] is total and node.dtype is bfloat16:
            return value("narrow", bfloat16, (vector,), lanes=lanes)
        sides = [each if each.lanes == lanes else broadcast(each, lanes) for each in sources]
        return value(node.op, node.dtype, sides, node.arg, lanes)

    return Store(store.memory, store.index.substitute(start), rebuild(store.value, change))


def _is_vector(node: Value, lane: Range, casts: bool) -> bool:
    if node.op == "load":
        # vectors of bools are not contiguous in memory
        plain = node.dtype is not bool_ and not node.arg.conditions
        return plain and node.arg.index.linear(lane) == (1,)
    if node.op == "cast":
        return casts and (node.sources[0].dtype, node.dtype) in CASTS
    return node.op in OPERATIONS and node.dtype in (float32, bool_)
