"""Chains of reductions on the host: one row after the other, each pass over it a loop.

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
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute
from ugpu.compiler.kernel.host.nest import Columns, Streams, in_vectors, nested
from ugpu.compiler.kernel.host.online import find_online
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.spread import runs_along
from ugpu.compiler.pattern.chain import Chain, held_values
from ugpu.compiler.pattern.cost import HELD_BYTES
from ugpu.hcq.state.target import TargetSpec


def rows(computation: Computation, chain: Chain, target: TargetSpec) -> Kernel:
    """Return a kernel of whole rows. Its groups are chunks of rows."""
    passes = chain.passes()
    across = chain.outer[-1:]
    along = {ranges[-1] for ranges, _ in passes if ranges}
    roots = [root for _, root in passes]
    together: Columns | Streams
    if across and along and all(runs_along(roots, across[0], each) for each in along):
        together = Columns(computation, chain.outer[:-1], across, target.compute_units)
    else:
        together = Streams(computation, chain.outer, chain.length)
    return _Rows(computation, chain, together).kernel()


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

    def over_rows(self, number: int) -> list[Statement]:
        """Return a pass over all elements of the rows."""
        ranges, _ = self.passes[number]
        body = self.together.each("lane", partial(self.of_element, number))
        if self.online is not None and ranges == (self.online.along,):
            loops: Sequence[Statement] = (Loop(self.online.block, (self.online.around(*body),)),)
        else:
            loops = (in_vectors if self.width == 1 else nested)(ranges, *body)
        if number >= len(self.totals):
            return [*loops]
        total, operation = self.totals[number], self.chain.stages[number].operation
        clear = identity(operation, total.dtype)
        return [*self.together.each("lane", lambda at, _: [Store(total, at, clear)]), *loops]

    def of_element(self, number: int, at: Index, row: dict[Range, Index]) -> Iterator[Statement]:
        """Yield the statements of a pass for an element of a row. at: the place of its totals."""
        ranges, root = self.passes[number]
        if self.online is not None and ranges == (self.online.along,):
            row = self.online.here(row)

        def finished(part: Value, whole: bool = False) -> Value:
            return substitute(self.finished(part, ranges, at, whole), row)

        # values that an expensive one is made of may be held too: these come first
        for value, (made, memory) in reversed(self.held.items()):
            if made == number:
                place = self.place(ranges, memory, at).substitute(row)
                yield Store(memory, place, finished(value, whole=True))
        if number < len(self.totals):
            total, operation = self.totals[number], self.chain.stages[number].operation
            yield Store(total, at, advanced(operation, load(total, at), finished(root)))
            return
        position = self.computation.position.substitute(row)
        for memory, part in self.computation.results(root):
            yield Store(memory, position, finished(part))

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
