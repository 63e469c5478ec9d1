"""Element-wise kernels on the host whose output runs across their input.

    before   out[r, c] = f(in[c, r])
    after    for a tile of few r and many c:
             stage[r][c]   in[c, r .. r + n] a vector at a time, n of them transposed in registers
             out[r, c] = f(stage[r][c])

Each line of memory is read and written once, whole. Plain loops would read a line for each element,
and read it again after the caches have evicted it: rows far apart share the sets of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.dtype import bool_
from ugpu.compiler.expression.algebra import Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute, walk
from ugpu.compiler.kernel.host.products.packing import transpose
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_of
from ugpu.hcq.state.target import TargetSpec

SMALLEST = 1 << 14  # elements below which the first caches hold the whole input
WIDTH = 256  # elements of a row of a tile
LANES = 16  # maximum of a vector: transposing more takes more steps than it saves


@dataclass(frozen=True)
class Turned:
    """across: the range along which memory runs, other than the output's last. loads: the loads
    along it."""

    across: Range
    loads: tuple[Value, ...]


def find_turned(computation: Computation) -> Turned | None:
    """Return the values that an element-wise computation reads across its output; None if there are
    none, or not all are along the same range."""
    if computation.chosen is not None or len(computation.ranges) < 2:
        return None
    last = computation.ranges[-1]
    if elements(computation.ranges) < SMALLEST or last.size < LANES:
        return None
    across: Range | None = None
    found = []
    for node in walk(computation.value):
        if node.op != "load" or last not in node.arg.index.ranges():
            continue
        index = node.arg.index
        step = index.coefficient(last)
        if step in (1, -1):
            continue
        along = next((r for r in computation.ranges[:-1] if index.coefficient(r) == 1), None)
        if not step or along is None or along.size < LANES or across not in (None, along):
            return None
        rest = index - last.index() * step - along.index()
        if not rest.ranges().isdisjoint((last, along)) or node.arg.conditions:
            return None
        if node.dtype is bool_:
            return None  # its vectors are not contiguous in memory
        across = along
        found.append(node)
    return None if across is None else Turned(across, tuple(found))


def elementwise(computation: Computation, turned: Turned, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute a tile each."""
    last, across = computation.ranges[-1], turned.across
    widest = max(node.dtype.itemsize for node in turned.loads)
    lanes = max(2, min(LANES, target.vector_bytes // widest))
    width = min(WIDTH, -(-last.size // lanes) * lanes)
    outer = tuple(r for r in computation.ranges if r not in (last, across))
    grid = (-(-across.size // lanes), -(-last.size // width), elements(outer))
    first = group_range(0, grid[0]).index() * lanes
    start = group_range(1, grid[1]).index() * width
    places = groups_at(outer, 2)
    columns, rows = constant(last.size) - start, constant(across.size) - first
    before = (grid[1] - 1) * width  # columns before the last tile of a row, which has `ragged`
    ragged, in_last = last.size - before, at_least_zero(start - before)
    stages: dict[Value, Memory] = {}
    whole: list[Statement] = []
    edges: list[Statement] = []
    for number, node in enumerate(turned.loads):
        stage = Memory(f"stage{number}", node.dtype, lanes * width, "local")
        stages[node] = stage
        block = Range(f"block{number}", width // lanes)
        read = []
        for lane in range(lanes):
            here = {**places, across: first, last: start + block.index() * lanes + lane}
            access = substitute(node, here).arg
            read.append(load(access.memory, access.index, (), lanes))
        stores = tuple(
            Store(stage, block.index() * lanes + row * width, vector)
            for row, vector in enumerate(transpose(read))
        )
        if last.size >= lanes:
            whole.append(Loop(block, stores, columns // lanes))
        if ragged % lanes:  # the last tile of a row ends inside a vector
            rest, row = Range(f"rest{number}", ragged % lanes), Range(f"row{number}", lanes)
            column = rest.index() + ragged // lanes * lanes
            here = {**places, across: first + row.index(), last: start + column}
            one = Store(stage, row.index() * width + column, substitute(node, here))
            whole.append(If(in_last, (Loop(row, (Loop(rest, (one,)),)),)))
        row, column_ = Range(f"r{number}", lanes), Range(f"c{number}", width)
        here = {**places, across: first + row.index(), last: start + column_.index()}
        one = Store(stage, row.index() * width + column_.index(), substitute(node, here))
        edges.append(Loop(row, (Loop(column_, (one,), columns),), rows))
    row, column_ = Range("row", lanes), Range("column", width)
    here = {**places, across: first + row.index(), last: start + column_.index()}
    at = row.index() * width + column_.index()

    def staged(node: Value, _: tuple[Value, ...]) -> Value | None:
        return load(stages[node], at) if node in stages else None

    position = computation.position.substitute(here)
    root = rebuild(computation.value, staged)
    results = tuple(
        Store(memory, position, substitute(value, here))
        for memory, value in computation.results(root)
    )
    finish = Loop(row, (Loop(column_, results, columns),), rows)
    body: list[Statement] = list(whole)
    if across.size % lanes:
        body = [If((rows - lanes,), tuple(whole)), If((constant(lanes - 1) - rows,), tuple(edges))]
    return kernel_of(computation, tuple(stages.values()), grid, 1, (*body, finish))
