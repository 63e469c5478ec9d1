"""Data, numbers, and operations that are made element by element: arithmetic and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ugpu.compiler.dtype import DType, int32, int64, is_narrow, rounded
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Validity, constant
from ugpu.compiler.expression.value import Value, const, value
from ugpu.compiler.expression.value import cast as converted
from ugpu.compiler.graph.node import Kind, Node, Shape, Trace

Kind("buffer", stored=False)  # data in storage from the start


def full(number: bool | int | float, dtype: DType, shape: Shape) -> Node:
    return Node("const", dtype, shape, (), number)


Kind(
    "const",
    lambda trace, node, at, valid: const(node.arg, node.dtype),
    stored=False,
    numbers=True,
)


def iota(count: int) -> Node:
    """Return 0, 1, 2 ... along the only axis."""
    return Node("iota", int64, (count,))


Kind(
    "iota",
    lambda trace, node, at, valid: value("index", node.dtype, (), at[0]),
    stored=False,
    positional=True,
)


def number(source: Node, dtype: DType) -> Node:
    """Return a stored float32 as an element of a float type of 16 or 8 bits. Operations compute
    with it as with a constant of that type: without rounding it first."""
    return Node("number", dtype, source.shape, (source,))


Kind(
    "number",
    lambda trace, node, at, valid: value(
        "number", node.dtype, (trace.value(node.sources[0], at, valid),)
    ),
    aligned=True,
    stored=False,
)


def elementwise(op: str, dtype: DType, *sources: Node) -> Node:
    """Return an operation of compiler.expression.elementary on 1 to 3 sources of one shape."""
    return Node(op, dtype, sources[0].shape, sources)


def _computed(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    sources = [trace.value(source, at, valid) for source in node.sources]
    return _as_index(node.op, node.dtype, sources) or ops.build(node.op, node.dtype, sources)


def _as_index(op: str, dtype: DType, sources: Sequence[Value]) -> Value | None:
    """Return sums and multiples of indices as indices if the type holds them without wrapping, and
    likewise their quotients and remainders by positive constants."""
    if op not in ("add", "sub", "mul", "floordiv", "mod") or not dtype.is_integer:
        return None
    if not any(s.op == "index" for s in sources) or any(
        s.op not in ("index", "const") for s in sources
    ):
        return None
    left, right = (s.arg if s.op == "index" else constant(s.arg) for s in sources)
    if op in ("floordiv", "mod"):
        if not right.is_constant or right.constant <= 0:
            return None
        total = left // right.constant if op == "floordiv" else left % right.constant
    elif op == "mul":
        if not (left.is_constant or right.is_constant):
            return None
        total = right * left.constant if left.is_constant else left * right.constant
    else:
        total = left + right if op == "add" else left - right
    lowest = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    if total.low < lowest or total.magnitude() >= 1 << (dtype.bits - 1):
        return None
    return value("index", dtype, (), total)


for _name in ops.BUILDERS:
    Kind(_name, _computed, partial(ops.price, _name), aligned=True)


def cast(source: Node, dtype: DType) -> Node:
    """Convert the node to another type."""
    if source.dtype is dtype:
        return source
    if (
        source.op == "const" and dtype.is_float and not source.dtype.is_float
        and abs(source.arg) <= 1 << 53  # so that it is rounded once
    ):  # fmt: skip
        return Node("const", dtype, source.shape, (), rounded(float(source.arg), dtype))
    return Node("cast", dtype, source.shape, (source,))


def _converted(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    inner, dtype = trace.value(node.sources[0], at, valid), node.dtype
    if inner.op == "index" and dtype.is_integer and inner.arg.magnitude() < 1 << (dtype.bits - 1):
        return value("index", dtype, (), inner.arg)
    if inner.op == "index" and dtype.is_float and inner.arg.magnitude() < 1 << 31:
        inner = value("index", int32, (), inner.arg)
    if inner.op == "const" and is_narrow(inner.dtype):
        inner = const(rounded(inner.arg, inner.dtype), inner.dtype)
    return converted(inner, dtype)


Kind("cast", _converted, lambda dtype: 1, aligned=True)


def bitcast(source: Node, dtype: DType) -> Node:
    """Take the bits of the elements as another type of the same size."""
    return Node("bitcast", dtype, source.shape, (source,))


def _recast(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    inner = trace.value(node.sources[0], at, valid)
    return inner if inner.dtype is node.dtype else value("bitcast", node.dtype, (inner,))


Kind("bitcast", _recast, aligned=True)


HOST = "host"


def contiguous(source: Node, where: str | None = None) -> Node:
    """Return the same elements, which must be stored: in the device's memory, or (HOST) in host
    memory that the device reaches."""
    return Node("contiguous", source.dtype, source.shape, (source,), where)


def instead(source: Node, old: Node) -> Node:
    """Return the same elements, which may be stored in the memory of `old`, of the same shape and
    type, if nothing else needs that: see compiler.schedule.renewal."""
    assert (source.shape, source.dtype) == (old.shape, old.dtype)
    return Node("instead", source.dtype, source.shape, (source, old))


Kind(
    "instead",
    lambda trace, node, at, valid: trace.value(node.sources[0], at, valid),
    aligned=True,
    stored=True,
)


def in_host_memory(node: Node) -> bool:
    """Return whether a node's result is stored in host memory."""
    return node.op == "contiguous" and node.arg == HOST


Kind(
    "contiguous",
    lambda trace, node, at, valid: trace.value(node.sources[0], at, valid),
    aligned=True,
    stored=True,
)
