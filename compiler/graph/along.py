"""Operations along axes: reductions, running totals, sorts."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler.dtype import DType, int64, uint32
from ugpu.compiler.expression.algebra import Index, Range, Validity, constant
from ugpu.compiler.expression.onehot import pick
from ugpu.compiler.expression.value import Value, value
from ugpu.compiler.graph.elements import cast, full
from ugpu.compiler.graph.movement import reshape, shrink
from ugpu.compiler.graph.node import Kind, Node, Trace
from ugpu.compiler.pattern import cost

HELD = 4096  # elements of the longest row that a kernel sorts in its own memory
ONCE = 8  # bits of keys that a kernel sorts by one digit, without memory of its own
NEAR = 32768  # of the longest row of values, or sorted by one digit: 512 KB on the stack
BEHIND = 256  # elements behind a row in the memory in which it is sorted
KEPT = 8192  # elements among which a kernel selects in its own memory

_IDENTITY = {"sum": 0, "prod": 1, "or": False, "and": True}


def reduce(op: str, source: Node, axes: Sequence[int]) -> Node:
    """Reduce over axes, which keep size 1. The result has the type of the source."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
    used = tuple(axis for axis in sorted(axes) if source.shape[axis] != 1)
    if not used:
        return source
    if any(source.shape[axis] == 0 for axis in used) and op in _IDENTITY:
        return full(_IDENTITY[op], source.dtype, kept)
    return Node("reduce", source.dtype, kept, (source,), (op, used))


def _reduced(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    operation, axes = node.arg
    source = node.sources[0]
    number = trace.number()
    ranges = {axis: Range(f"k{number}_{axis}", source.shape[axis]) for axis in axes}
    inner = tuple(ranges[i].index() if i in ranges else index for i, index in enumerate(at))
    body = trace.value(source, inner, valid)
    over = tuple(ranges.values())
    picked = pick(body, *over) if operation == "sum" and len(over) == 1 else None
    return picked or value("reduce", node.dtype, (body,), (operation, over))


Kind("reduce", _reduced, lambda dtype: cost.REDUCE)


def expressed(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    """Return the root of a kernel that goes along the range at an axis."""
    what, axis = node.arg
    body, *start = node.sources
    inner = (*at[: len(body.shape) - 1], at[-1])  # for a long sort, without the axis of size 2
    first = (*at[:axis], constant(0), *at[axis + 1 :])
    sources = [trace.value(body, inner, valid)]
    sources += [trace.value(each, first, valid) for each in start]
    own = at[len(body.shape) - 1 :] if len(at) > len(body.shape) else (at[axis],)
    ranges = tuple(each for index in own for each in index.ranges())
    return value("along", node.dtype, sources, (node.op, what, ranges))


def scan(operation: str, source: Node, axis: int, dtype: DType, start: Node | None = None) -> Node:
    """Return running totals along an axis, by `operation`: each element is the reduction
    of those up to it, rounded to `dtype`. start: the total before the first, of size 1 there. Only
    hosts lower scans and sorts; on other devices tensors use other operations."""
    sources = (source,) if start is None else (source, start)
    return Node("scan", dtype, source.shape, sources, (operation, axis))


Kind("scan", expressed, lowerings={"host": "ugpu.compiler.kernel.host.scan"}, stored=True)


def sort(source: Node, bits: int) -> Node:
    """Return the lower halves of rows of uint64 as int64, ordered by the bits 32 to 32 + bits.
    The lower halves must rise along each row, so that the sort is stable. A node for long rows has
    uint64 and an extra axis of size 2 before the last: the first of the two is sorted, the other
    undefined."""
    if source.shape[-1] <= HELD or bits <= ONCE:
        return Node("sort", int64, source.shape, (source,), (bits, len(source.shape) - 1))
    *rows, size = source.shape
    found = Node("sort", source.dtype, (*rows, 2, size), (source,), (bits, len(rows) + 1))
    first = [(0, count) for count in rows] + [(0, 1), (0, size)]
    return cast(cast(reshape(shrink(found, first), source.shape), uint32), int64)


Kind("sort", expressed, lowerings={"host": "ugpu.compiler.kernel.host.sorting.places"}, stored=True)


def sort_values(source: Node, descending: bool) -> Node:
    """Return rows in order, NaN as the largest; equal elements keep their order, as their bits may
    differ. Only hosts lower it. A node for long rows has two rows of `room` elements for each: the
    first of the two is sorted, what is behind it is undefined."""
    *rows, size = source.shape
    if size <= NEAR:
        return Node("sort values", source.dtype, source.shape, (source,), descending)
    found = Node("sort values", source.dtype, (*rows, 2 * room(size)), (source,), descending)
    return shrink(found, [*((0, count) for count in rows), (0, size)])


def room(size: int) -> int:
    """Return the elements of memory for one row that is sorted."""
    return size + BEHIND


def _sorted_values(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    (source,) = node.sources
    own = tuple(at[-1].ranges())
    along = own[0]
    if node.shape != source.shape:
        along = Range(f"k{trace.number()}_0", source.shape[-1])
    body = trace.value(source, (*at[:-1], along.index()), valid)
    return value("along", node.dtype, (body,), (node.op, (node.arg, along), own))


Kind(
    "sort values", _sorted_values, stored=True,
    lowerings={"host": "ugpu.compiler.kernel.host.sorting.values"},
)  # fmt: skip


def select(source: Node, rank: Node, bits: int, count: int = 0) -> Node:
    """Return places, int64, of elements of rows of unsigned integers of `bits` bits: of the element
    that has a rank in the order of a stable sort, [..., 1], or, with a count, of the first `count`,
    of which the rank is that of the last, rising. rank: integers, [..., 1]. Rows longer than KEPT
    lie along memory. Only hosts lower it."""
    *rows, _ = source.shape
    columns = max(1, count)  # and one more, for what is not among them
    found = Node("select", int64, (*rows, columns + 1), (source, rank), (bits, count > 0))
    return shrink(found, [*((0, each) for each in rows), (0, columns)])


def _selected(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    source, rank = node.sources
    along = Range(f"k{trace.number()}_0", source.shape[-1])
    body = trace.value(source, (*at[:-1], along.index()), valid)
    wanted = trace.value(rank, (*at[:-1], constant(0)), valid)
    what = (*node.arg, along)
    return value("along", node.dtype, (body, wanted), (node.op, what, tuple(at[-1].ranges())))


Kind(
    "select", _selected, stored=True,
    lowerings={"host": "ugpu.compiler.kernel.host.sorting.selection"},
)  # fmt: skip
