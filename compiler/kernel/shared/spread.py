"""Several neighbouring elements at once: scalar arithmetic, but one load and one store for all.

before: the value of element `r`, for a range r.
after: the values of elements base, base+1 ... base+n-1, where loads of neighbouring addresses
have become one vector load and its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.algebra import Index, Range, substitute_all
from ugpu.compiler.expression.value import Load, Memory, Value, gate, load, value, walk
from ugpu.compiler.kernel.ir import Store


def spread(
    root: Value,
    variable: Range,
    base: Index,
    count: int,
    known: Mapping[Value, list[Value]] | None = None,
) -> list[Value]:
    """Return the values of `root` for variable = base + 0 .. count-1. known: nodes with given
    values."""
    done: dict[int, list[Value]] = {id(k): v for k, v in (known or {}).items()}
    places = [{variable: base + lane} for lane in range(count)]
    for node in walk(root):
        if id(node) not in done:
            sources = [done[id(source)] for source in node.sources]
            done[id(node)] = _node(node, sources, places)
    return done[id(root)]


def _node(node: Value, sources: list[list[Value]], places: list[dict[Range, Index]]) -> list[Value]:
    count = len(places)
    if node.op == "load":
        return _load(node.arg, places)
    if node.op == "index":
        return [value("index", node.dtype, (), node.arg.substitute(place)) for place in places]
    if node.op == "gate":
        lanes = zip(places, *sources, strict=True)
        return [gate(substitute_all(node.arg, place), a, b) for place, a, b in lanes]
    if not sources:
        return [node] * count
    return [
        value(node.op, node.dtype, [source[lane] for source in sources], node.arg)
        for lane in range(count)
    ]


def _load(access: Load, places: list[dict[Range, Index]]) -> list[Value]:
    indices = [access.index.substitute(place) for place in places]
    conditions = [substitute_all(access.conditions, place) for place in places]
    count = len(places)
    neighbours = all(index == indices[0] + lane for lane, index in enumerate(indices))
    apart = access.memory.space == "register"  # register memories are accessed one by one
    if count > 1 and neighbours and not apart and all(c == conditions[0] for c in conditions):
        return lanes_of(load(access.memory, indices[0], conditions[0], count))
    return [
        load(access.memory, index, condition)
        for index, condition in zip(indices, conditions, strict=True)
    ]


def lanes_of(vector: Value, first: int = 0, count: int | None = None) -> list[Value]:
    """Return neighbouring lanes of a vector, by default all (or the single scalar)."""
    if vector.lanes == 1:
        return [vector]
    lanes = range(vector.lanes)[first:] if count is None else range(first, first + count)
    return [value("extract", vector.dtype, (vector,), lane) for lane in lanes]


def pack(values: list[Value]) -> Value:
    """Return a vector of scalars (or the single scalar)."""
    if len(values) == 1:
        return values[0]
    first = values[0]
    if first.op == "extract" and first.sources[0].lanes == len(values):
        whole = first.sources[0]
        if all(
            v.op == "extract" and v.sources[0] is whole and v.arg == i for i, v in enumerate(values)
        ):
            return whole
    return value("pack", first.dtype, values, lanes=len(values))


def store(memory: Memory, index: Index, values: list[Value]) -> Store:
    return Store(memory, index, pack(values))


def unit_stride(root: Value, variable: Range) -> bool:
    """Return whether the range walks through memory element by element in some load of `root`."""
    return any(
        node.op == "load" and node.arg.index.coefficient(variable) in (1, -1) for node in walk(root)
    )


def runs_along(roots: Iterable[Value], variable: Range, other: Range) -> bool:
    """Return whether loops should walk along `variable` rather than `other`: fewer loads jump
    through memory, or equally many do and a load walks element by element only along it."""
    strides = [
        (_stride(access, variable), _stride(access, other))
        for root in roots
        for access in loads(root)
    ]
    if not any(here == 1 for here, _ in strides):
        return False
    jumps = sum(here > 1 for here, _ in strides)
    jumps_of_other = sum(there > 1 for _, there in strides)
    if jumps == jumps_of_other:
        return not any(there == 1 for _, there in strides)
    return jumps < jumps_of_other


def loads(root: Value) -> Iterator[Load]:
    """Yield every access that a value makes."""
    for node in walk(root):
        if node.op == "load":
            yield node.arg


def _stride(access: Load, variable: Range) -> int:
    """Return the class of a step along the range in memory: 0 none, 1 neighbour, 2 farther."""
    if variable not in access.index.ranges():
        return 0
    return 1 if access.index.coefficient(variable) in (1, -1) else 2


def vector_width(dtypes: list[DType], vector_bytes: int) -> int:
    """Return the number of elements that a thread moves at once, so that the widest type fills a
    vector."""
    return max(1, min(8, vector_bytes // max(dtype.itemsize for dtype in dtypes)))
