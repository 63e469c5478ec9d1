"""Element-wise kernels on the host whose output runs across their input.

    before   out[r, c] = f(in[c, r])
    after    for a tile of few r and many c:
             stage[r][c]   in[c, r .. r + n] a vector at a time, n of them transposed in registers
             out[r, c] = f(stage[r][c])

Each line of memory is read and written once, whole. Plain loops would read a line for each element,
and read it again after the caches have evicted it: rows far apart share the sets of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ugpu.compiler.dtype import bool_
from ugpu.compiler.expression.algebra import Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute, walk
from ugpu.compiler.kernel.host.loops import assign
from ugpu.compiler.kernel.host.nest import Nest, Walk, rolled, round_up
from ugpu.compiler.kernel.host.products.packing import turn
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement
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
        # vectors of bools are not contiguous in memory
        if index.linear(last, along) is None or node.arg.conditions or node.dtype is bool_:
            return None
        across = along
        found.append(node)
    return None if across is None else Turned(across, tuple(found))


def elementwise(computation: Computation, turned: Turned, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute a tile each."""
    last, across = computation.ranges[-1], turned.across
    widest = max(node.dtype.itemsize for node in turned.loads)
    lanes = max(2, min(LANES, target.vector_bytes // widest))
    width = min(WIDTH, round_up(last.size, lanes))
    outer = [r for r in computation.ranges if r not in (last, across)]
    nest = Nest(computation, outer, (across, lanes), (last, width))
    rows, columns = nest.sides

    def results(of: Computation, row: Walk, column: Walk) -> Statement:
        places = {**nest.batch, **row.places, **column.places}
        return rolled(row.around(column.around(*assign(of, places))))

    ends = columns.left // lanes * lanes if last.size % lanes else columns.left
    row, column = rows.line("row", lanes), columns.line("column", width, bound=ends)
    stages: dict[Value, Value] = {}
    whole: list[Statement] = []
    for number, node in enumerate(turned.loads):
        stage = Memory(f"stage{number}", node.dtype, lanes * width, "local")
        stages[node] = load(stage, row.position * width + column.position)
        block = Range(f"block{number}", width // lanes)
        first = columns.start + block.index() * lanes
        here = [{**nest.batch, across: rows.start, last: first + lane} for lane in range(lanes)]
        read = [substitute(node, places).arg for places in here]
        vectors = [load(each.memory, each.index, (), lanes) for each in read]
        stores = turn(stage, block.index() * lanes, width, vectors)
        whole.append(Loop(block, stores, columns.left // lanes))
    staged = replace(computation, value=rebuild(computation.value, lambda n, _: stages.get(n)))
    whole.append(results(staged, row, column))
    if rest := last.size % lanes:  # the last tile of a row ends inside a vector
        before = (nest.grid[1] - 1) * width
        end = columns.line("rest", rest, last.size - before - rest)
        single = results(computation, rows.line("row", lanes), end)
        whole.append(If(at_least_zero(columns.start - before), (single,)))
    if across.size % lanes:  # tiles of few rows are computed without stages
        edge = results(computation, rows.steps("edge"), columns.steps("column"))
        few = (constant(lanes - 1) - rows.left,)
        whole = [If((rows.left - lanes,), tuple(whole)), If(few, (edge,))]
    return nest.kernel(whole)
