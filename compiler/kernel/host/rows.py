"""Reductions over rows on the host, one or a chain of them: one row after the other, each pass over
it a loop.

Values that a later pass uses again are held in local memory (on the stack, so in the first caches).
For rows too long for that, one value is held in the result, whose elements the last pass replaces;
a softmax has one pass less (kernel.host.online).
If memory runs across the rows, COLUMNS of them are processed side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import advanced, ended, identity, total_type
from ugpu.compiler.expression.algebra import Index, Range, constant, flatten
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute, walk
from ugpu.compiler.kernel.choices import Chunk
from ugpu.compiler.kernel.host.nest import CHUNK, Columns, Streams, in_vectors
from ugpu.compiler.kernel.host.online import find_online
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, nested
from ugpu.compiler.kernel.shared.kernels import stores
from ugpu.compiler.kernel.shared.spread import loads, runs_along
from ugpu.compiler.pattern.chain import Chain, held_values
from ugpu.compiler.pattern.cost import HELD_BYTES
from ugpu.hcq.state.target import TargetSpec

STREAMS = 2  # long rows read concurrently: a processor fetches several places of memory at once
MANY = 64  # results from which on there are enough for STREAMS
STEPS = 8  # maximum steps of a reduction that columns take at once
OPERATIONS = 64  # maximum operations of these steps together
ROWS = 3  # maximum size of a range whose steps all use the same elements of a row


def rows(
    computation: Computation, chain: Chain, target: TargetSpec, chosen: Chunk | None = None
) -> Kernel:
    """Return a kernel of whole rows, one after the other, or many side by side if that is memory's
    direction. Its groups are chunks of rows."""
    passes, size = [each for each in chain.passes() if each[0]], (chosen or Chunk(CHUNK)).size
    across, along = chain.outer[-1:], {ranges[-1] for ranges, _ in passes}
    roots, single = [root for _, root in passes], len(passes) == 1
    together: Columns | Streams
    if across and all(runs_along(roots, across[0], each) for each in along):
        alike = _alike(chain.outer, roots[0]) if single else None
        outer = [r for r in chain.outer[:-1] if r is not alike]
        together = Columns(computation, outer, across, target.compute_units, size, alike)
    else:
        long = single and size < STREAMS * chain.length
        two = long and chain.rows >= MANY and chain.rows % STREAMS == 0
        streams = STREAMS if two else 1
        together = Streams(computation, chain.outer, chain.length, size, streams)
    return _Rows(computation, chain, together).kernel()


def _alike(rows: Sequence[Range], body: Value) -> Range | None:
    """Return a short range whose every step uses the same elements of a row, so that they are read
    once for all."""
    *outer, last = rows
    for each in outer:
        if each.size <= ROWS and any(
            access.index.coefficient(last) in (1, -1) and each not in access.index.ranges()
            for access in loads(body)
        ):
            return each
    return None


class _Rows:
    """Passes over rows that are processed together.

    Attributes:
        width: number of these rows.
        held: of each value that is held, the pass that computes it, and its memory.
        base: of a row in the result, if that can hold a value.
        totals: of each stage.
    """

    def __init__(self, computation: Computation, chain: Chain, together: Columns | Streams) -> None:
        self.computation, self.chain, self.together = computation, chain, together
        self.passes, self.width = chain.passes(), together.totals
        self.held: dict[Value, tuple[int, Memory]] = {}
        self.base = self.result_base()
        holds = self.base is not None and computation.output.dtype is float32
        held_in = computation.output if holds else None
        self.online = find_online(chain, held_in) if self.width == 1 else None
        left = HELD_BYTES
        for held in held_values(chain, loads=False) if self.online is None else ():
            count = elements(self.passes[held.made][0]) * self.width
            left -= count * held.value.dtype.itemsize
            if left < 0:
                if self.base is not None and held.value.dtype is computation.output.dtype:
                    self.held[held.value] = held.made, computation.output
                break
            memory = Memory(f"held{len(self.held)}", held.value.dtype, count, "local")
            self.held[held.value] = held.made, memory
        self.totals = [
            Memory(s.total.name, total_type(s.operation, s.total.dtype), self.width, together.space)
            for s in chain.stages
        ]

    def kernel(self) -> Kernel:
        body: list[Statement] = []
        online = self.online
        if online is not None:
            kept = self.place((online.along,), self.computation.output, constant(0))
            best, total, *_ = self.totals
            body += self.together.each("", lambda _, row: online.totals(best, total, kept, row))
        for number in range(0 if online is None else 2, len(self.passes)):
            body += self.over_rows(number)
        return self.together.kernel(body)

    def over_rows(self, number: int) -> Iterator[Statement]:
        """Yield a pass over all elements of the rows: of columns some steps of a reduction at once,
        so that totals are read and written once for all."""
        (ranges, root), online = self.passes[number], self.online
        each, of_element = self.together.each, partial(self.of_element, number)
        if number < len(self.totals):
            total, operation = self.totals[number], self.chain.stages[number].operation
            clear = identity(operation, total.dtype)
            yield from each("j0", lambda at, _: [Store(total, at, clear)])
        if online is not None and ranges == (online.along,):
            body = each("", partial(of_element, [online.here({})]))
            yield Loop(online.block, (online.around(*body),))
        elif isinstance(self.together, Streams):
            yield from in_vectors(ranges, *each("", partial(of_element, [{}])))
        elif number == len(self.totals):
            yield from nested(ranges, *each("j2", partial(of_element, [{}])))
        else:
            *outer, last = ranges
            abreast = max(1, min(STEPS, last.size, OPERATIONS // sum(1 for _ in walk(root))))
            count, rest = divmod(last.size, abreast)
            block, end = Range("block", count), last.size - rest
            whole = [{last: block.index() * abreast + step} for step in range(abreast)]
            after = [{last: constant(end + step)} for step in range(rest)]
            steps = Loop(block, tuple(each("j1", partial(of_element, whole))))
            yield from nested(
                outer, steps, *(each("j3", partial(of_element, after)) if rest else ())
            )

    def of_element(
        self, number: int, steps: Sequence[dict[Range, Index]], at: Index, row: dict[Range, Index]
    ) -> Iterator[Statement]:
        """Yield the statements of a pass for some elements of a row. at: of the row's totals."""
        ranges, root = self.passes[number]

        def finished(part: Value, step: dict[Range, Index], whole: bool = False) -> Value:
            return substitute(self.finished(part, ranges, at, whole), row | step)

        for step in steps:
            # values that an expensive one is made of may be held too: these come first
            for value, (made, memory) in reversed(self.held.items()):
                if made == number:
                    place = self.place(ranges, memory, at).substitute(row | step)
                    yield Store(memory, place, finished(value, step, whole=True))
        if number == len(self.totals):
            root = self.finished(root, ranges, at, False)
            yield from stores(self.computation, root, row | steps[0])
            return
        memory, operation = self.totals[number], self.chain.stages[number].operation
        total = load(memory, at)
        for step in steps:
            total = advanced(operation, total, finished(root, step))
        yield Store(memory, at, total)

    def place(self, ranges: tuple[Range, ...], memory: Memory, at: Index) -> Index:
        """Return the place where an element of a row is held."""
        element = flatten([r.index() for r in ranges], [r.size for r in ranges])
        if memory is self.computation.output and self.base is not None:
            return self.base + element
        return element * self.width + at

    def result_base(self) -> Index | None:
        """Return where a row of the result begins, if it is the only result and its rows have the
        layout of held ones."""
        last = self.chain.passes()[-1][0]
        found = self.computation
        if self.width > 1 or len(found.outputs) > 1 or found.place is not None:
            return None
        element = flatten([r.index() for r in last], [r.size for r in last])
        base = found.position - element
        return base if base.ranges().isdisjoint(last) else None

    def finished(self, root: Value, ranges: tuple[Range, ...], at: Index, whole: bool) -> Value:
        """Return a value of a pass over `ranges`, with functions expanded, reading held values and
        totals. whole: except that a value which is to be held itself is computed."""
        stages = zip(self.chain.stages, self.totals, strict=True)
        totals = {stage.total: (stage.operation, total) for stage, total in stages}

        def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
            found = self.held.get(node)
            if found is not None and not (whole and node is root):
                return load(found[1], self.place(ranges, found[1], at))
            if self.online is not None and node is self.online.weight:
                place = self.place(ranges, self.computation.output, at)
                return self.online.again(sources[0], place)
            if node.op != "load" or node.arg.memory not in totals:
                return None
            operation, total = totals[node.arg.memory]
            return ended(operation, node.dtype, load(total, at))

        return ops.expand(rebuild(root, change))
