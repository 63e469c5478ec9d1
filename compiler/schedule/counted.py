"""Sums of which each term counts for one result: its place is computed, not compared with all.

before: sum over n of (k == v[n]) * w[n], for each k of an axis: n * k terms, nearly all zero.
after: zeros, to which w[n] is added at v[n] (a scatter): n terms. Where there are many, pieces of
n add to zeros of their own, side by side, which are then summed.

A histogram is this, and so is a product with a transposed one-hot matrix. Terms that are not
selected count as zero, whatever w is there. (Sums in which k is the counter select one term each:
compiler.expression.onehot.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ugpu.compiler.dtype import bool_, int64, uint64
from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.value import Memory, Value, indices_of
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import KINDS, Node, Shape
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.schedule.express import Tracer, input_memory
from ugpu.hcq.state.target import TargetSpec

FEWEST = 16  # results for a term on a host; below this, comparing with all of them is as fast
FEWEST_GPU = 64  # on a GPU, whose threads compare in parallel but take their terms in order
LEAST = 1 << 15  # comparisons that are worth further kernels
PIECE = 1 << 15  # elements that a piece adds, at least, on a host
PIECE_GPU = 64
WAVES = 4  # of pieces for each compute unit
DEEPEST = 24  # nodes between the sum and the comparison
LARGEST = 96  # nodes that are read to find out what depends on what

Path = tuple[Node, ...]  # from the sum's source to the comparison


def counted(source: Node, axes: Sequence[int], target: TargetSpec) -> Node | None:
    """Return the sum of a node over axes, which keep size 1, as a scatter; None if terms do not
    count for one result each, or if it does not pay."""
    if source.size < LEAST or source.dtype is bool_:
        return None
    for path in _paths(source):
        for side in (0, 1):
            if _counts(path[-1].sources[side]):
                found = _scattered(source, tuple(axes), path, side, target)
                if found is not None:
                    return found
    return None


def _paths(node: Node, before: Path = ()) -> Iterator[Path]:
    """Yield the ways to comparisons whose falsity makes an element of the node zero."""
    path = (*before, node)
    if node.storage is not None or node.history is not None or len(path) > DEEPEST:
        return
    if node.op == "eq":
        yield path
    elif node.op in ("cast", "expand", "reshape", "permute", "shrink", "flip"):
        yield from _paths(node.sources[0], path)
    elif node.op in ("mul", "and"):
        for each in node.sources:
            yield from _paths(each, path)
    elif node.op == "where" and _is_zero(node.sources[2]):
        yield from _paths(node.sources[0], path)


def _is_zero(node: Node) -> bool:
    while node.op in ("expand", "reshape", "cast") and node.storage is None:
        node = node.sources[0]
    return node.op == "const" and node.arg == 0


_INDICES = ("cast", "expand", "reshape", "permute", "shrink", "add", "sub", "mul")


def _counts(node: Node, depth: int = DEEPEST) -> bool:
    """Return whether a node may be 0, 1, 2 ... along an axis."""
    if node.op == "iota":
        return True
    if node.storage is not None or node.op not in _INDICES or not depth:
        return False
    return any(_counts(each, depth - 1) for each in node.sources)


def _scattered(
    source: Node, axes: tuple[int, ...], path: Path, side: int, target: TargetSpec
) -> Node | None:
    equal = path[-1]
    place, number = (_moved(path, equal.sources[each]) for each in (side, 1 - side))
    added = _replaced(path, graph.full(True, bool_, equal.shape))
    values = _values(place, number, added)
    if values is None or not number.dtype.is_integer or number.dtype is uint64:
        return None
    at, (index, compared, term) = values
    if index.op != "index":
        return None
    for axis, counter in enumerate(at):
        if axis in axes or index.arg.coefficient(counter) != 1:
            continue
        rest = [index.arg - counter.index(), *indices_of(compared), *indices_of(term)]
        if any(counter in each.ranges() for each in rest):
            continue
        ranges = {r for each in indices_of(compared) for r in each.ranges()}
        host = target.abi == "host"
        if any(at[each] in ranges for each in axes) and counter.size >= (
            FEWEST if host else FEWEST_GPU
        ):
            wide = graph.cast(_narrowed(number, axis), int64)
            first = graph.cast(_narrowed(place, axis), int64)
            where = graph.elementwise("sub", int64, wide, first)
            return _added(_narrowed(added, axis), where, axes, axis, counter.size, target)
    return None


def _moved(path: Path, end: Node) -> Node:
    """Return an operand of the path's comparison with the shape of the path's first node."""
    for node in reversed(path[:-1]):
        if node.op not in ("cast", "mul", "and", "where"):
            end = Node(node.op, end.dtype, node.shape, (end,), node.arg)
    return end


def _replaced(path: Path, end: Node) -> Node:
    """Return the path's first node with another node in the place of its last."""
    old = path[-1]
    for node in reversed(path[:-1]):
        sources = tuple(end if each is old else each for each in node.sources)
        old, end = node, Node(node.op, node.dtype, node.shape, sources, node.arg)
    return end


def _values(*nodes: Node) -> tuple[tuple[Range, ...], list[Value]] | None:
    """Return a range for each axis and the nodes' elements there, stored nodes and those that are
    not made element by element as memory; None if there are too many."""
    memories: dict[int, Memory] = {}
    seen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > LARGEST:
            return None
        kind = KINDS[node.op]
        if node.storage is None and (kind.aligned or kind.moves or node.op in ("const", "iota")):
            waiting += node.sources
        else:
            memories[id(node)] = input_memory(len(memories), node)
    tracer = Tracer(memories)
    at = tuple(Range(f"i{axis}", size) for axis, size in enumerate(nodes[0].shape))
    indices: tuple[Index, ...] = tuple(r.index() for r in at)
    return at, [tracer.value(node, indices, ()) for node in nodes]


def _narrowed(node: Node, axis: int) -> Node:
    """Return the first elements along an axis, along which all are equal: as far down as the axis
    is known to be the repetition of one element, so that nothing is repeated."""
    if node.shape[axis] == 1:
        return node
    sources, shape = node.sources, (*node.shape[:axis], 1, *node.shape[axis + 1 :])
    plain = node.storage is None and node.history is None
    if plain and node.tracked is any(each.tracked for each in sources):
        if node.op == "const":
            return graph.full(node.arg, node.dtype, shape)
        if node.op == "expand" and sources[0].shape[axis] == 1:
            return graph.expand(sources[0], shape)
        if node.op == "permute":
            return graph.permute(_narrowed(sources[0], node.arg[axis]), node.arg)
        if node.op in ("cast", "mul", "and", "where"):
            inner = tuple(_narrowed(each, axis) for each in sources)
            return Node(node.op, node.dtype, shape, inner, node.arg)
    return graph.shrink(node, [(0, 1 if n == axis else own) for n, own in enumerate(node.shape)])


def _added(
    terms: Node, where: Node, axes: tuple[int, ...], axis: int, count: int, target: TargetSpec
) -> Node:
    """Add terms, of size 1 along `axis`, at places along that axis, of which there are `count`."""
    kept = [each for each in range(len(terms.shape)) if each not in axes and each != axis]
    order = (*axes, *kept)
    length, rest = prod(terms.shape[each] for each in axes), [terms.shape[each] for each in kept]
    pieces = _pieces(length, prod(rest), count, target)
    each = -(-length // pieces)
    missing = each * pieces - length
    # an integer without a sign is below `count` or outside; -1 is a large one
    places = graph.cast(where, uint64)
    given = [_in_pieces(node, axis, order, (length, *rest), pieces, missing)
             for node in (terms, places)]  # fmt: skip
    before = sum(place < axis for place in kept)
    base: Shape = (pieces, *rest[:before], count, *rest[before:])
    whole = Region(tuple((0, size) for size in base), (1,) * len(base), (), base)
    choice = Scatter(whole, (1 + before,), 0 if each == 1 else 1, "add")
    zeros = graph.full(0, terms.dtype, base)
    total: Node = Node("scatter", terms.dtype, base, (zeros, *given), choice)
    if pieces > 1:
        total = graph.reduce("sum", total, (0,))
    shape = [1 if n in axes else size for n, size in enumerate(terms.shape)]
    shape[axis] = count
    return graph.reshape(total, tuple(shape))


def _in_pieces(
    node: Node, axis: int, order: tuple[int, ...], shape: Shape, pieces: int, missing: int
) -> Node:
    """Return [each, pieces, rest]: neighbours of the summed axis are in one piece. What is missing
    adds zero at place zero."""
    node = graph.reshape(graph.permute(node, (*order, axis)), shape)
    node = graph.pad(node, [(0, missing), *((0, 0) for _ in shape[1:])], 0)
    node = graph.reshape(node, (pieces, node.shape[0] // pieces, *shape[1:]))
    return graph.permute(node, (1, 0, *range(2, len(shape) + 1)))


def _pieces(length: int, rest: int, count: int, target: TargetSpec) -> int:
    """Return the number of pieces: no more results than terms, and enough terms in each."""
    host = target.abi == "host"
    units = target.compute_units * (1 if host else WAVES * target.wave_size)
    enough = length * rest // PIECE if host else length // PIECE_GPU
    return max(1, min(-(-units // rest), length // count, enough))
