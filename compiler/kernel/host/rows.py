"""Chains of reductions on the host: one row after the other, each pass over it a loop.

Values that a later pass uses again are held in local memory (on the stack, so in the first caches).
For rows too long for that, one value is held in the result, whose elements the last pass replaces;
a softmax has one pass less (kernel.host.online).
If memory runs across the rows, COLUMNS of them are processed side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import advanced, ended, identity, total_type
from ugpu.compiler.expression.algebra import Index, Range, constant, flatten
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute
from ugpu.compiler.kernel.host.loops import CHUNK, COLUMNS
from ugpu.compiler.kernel.host.nest import Nest, in_vectors, nested
from ugpu.compiler.kernel.host.online import find_online
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import kernel_of
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
    if across and along and all(runs_along(roots, across[0], each) for each in along):
        return _Rows(computation, chain, min(COLUMNS, across[0].size)).kernel()
    return _Rows(computation, chain, 1).kernel()


class _Rows:
    """width: how many rows are processed together, neighbours along the last outer range."""

    def __init__(self, computation: Computation, chain: Chain, width: int) -> None:
        self.computation = computation
        self.chain = chain
        self.width = width
        self.lane = Range("lane", width)
        self.held: dict[Value, tuple[int, Memory]] = {}
        self.base = self.result_base()  # of a row in the result, if that can hold a value
        holds = self.base is not None and computation.output.dtype is float32
        held_in = computation.output if holds else None
        self.online = find_online(chain, held_in) if width == 1 else None
        left = HELD_BYTES
        for held in held_values(chain, loads=False) if self.online is None else ():
            count = elements(chain.passes()[held.made][0]) * width
            left -= count * held.value.dtype.itemsize
            if left < 0:
                if self.base is not None and held.value.dtype is computation.output.dtype:
                    self.held[held.value] = held.made, computation.output
                break
            memory = Memory(f"held{len(self.held)}", held.value.dtype, count, "local")
            self.held[held.value] = held.made, memory
        space = "register" if width == 1 else "local"
        self.totals = [
            Memory(s.total.name, total_type(s.operation, s.total.dtype), width, space)
            for s in chain.stages
        ]
        stages = zip(chain.stages, self.totals, strict=True)
        self.ended = {
            stage.total: ended(stage.operation, stage.total.dtype, load(total, self.lane.index()))
            for stage, total in stages
        }

    def kernel(self) -> Kernel:
        chain = self.chain
        if self.width == 1:
            many = max(1, CHUNK // chain.length)
            grid = (-(-chain.rows // many), 1, 1)
            start = group_range(0, grid[0]).index() * many
            counter = Range("row", many)
            places = places_at(chain.outer, start + counter.index())
            body: tuple[Statement, ...] = (
                Loop(counter, self.passes(places), constant(chain.rows) - start),
            )
        else:
            nest = Nest(self.computation, chain.outer[:-1], (chain.outer[-1], self.width))
            grid, lanes = nest.grid, nest.sides[0]
            self.bound = lanes.left
            body = self.passes(nest.batch | lanes.places(self.lane.index()))
        outputs = self.computation.outputs
        own = (memory for _, memory in self.held.values() if memory not in outputs)
        online = () if self.online is None else self.online.memories
        memories = (*self.totals, *own, *online)
        return kernel_of(self.computation, memories, grid, 1, body)

    def passes(self, places: Mapping[Range, Index]) -> tuple[Statement, ...]:
        """Return all passes over the rows at `places`."""
        statements: list[Statement] = []
        here, online = self.lane.index(), self.online
        if online is not None:
            kept = self.place((online.along,), self.computation.output)
            statements += online.totals(self.totals[0], self.totals[1], kept, places)
        outer = places
        for number, (ranges, root) in enumerate(self.chain.passes()):
            if online is not None and number < 2:
                continue
            in_blocks = online is not None and ranges == (online.along,)
            places = online.here(outer) if online is not None and in_blocks else outer
            inside: list[Statement] = []
            # values that an expensive one is made of may be held too: these come first
            for value, (made, memory) in reversed(self.held.items()):
                if made == number:
                    at = self.place(ranges, memory).substitute(places)
                    inside.append(Store(memory, at, self.finished(value, number, places, True)))
            if number < len(self.totals):
                total = self.totals[number]
                operation = self.chain.stages[number].operation
                first = Store(total, here, identity(operation, total.dtype))
                statements += self.across([first])
                result = self.finished(root, number, places, False)
                inside.append(Store(total, here, advanced(operation, load(total, here), result)))
            else:
                position = self.computation.position.substitute(places)
                for memory, part in self.computation.results(root):
                    result = self.finished(part, number, places, False)
                    inside.append(Store(memory, position, result))
            if online is not None and in_blocks:
                statements.append(Loop(online.block, (online.around(*inside),)))
            else:
                loops = in_vectors if self.width == 1 else nested
                statements += loops(ranges, *self.across(inside))
        return tuple(statements)

    def across(self, inside: list[Statement]) -> list[Statement]:
        """Return the statements for every row that is processed together."""
        return inside if self.width == 1 else [Loop(self.lane, tuple(inside), self.bound)]

    def place(self, ranges: tuple[Range, ...], memory: Memory) -> Index:
        """Return the place where an element of a row is held."""
        element = flatten([r.index() for r in ranges], [r.size for r in ranges])
        if memory is self.computation.output and self.base is not None:
            return self.base + element
        return element * self.width + self.lane.index()

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

    def finished(
        self, root: Value, number: int, places: Mapping[Range, Index], whole: bool
    ) -> Value:
        """Return a value of pass `number`, with functions expanded, reading held values. whole:
        except that a value which is to be held itself is computed."""
        ranges = self.chain.passes()[number][0]

        def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
            found = self.held.get(node)
            if found is not None and not (whole and node is root):
                return load(found[1], self.place(ranges, found[1]))
            if self.online is not None and node is self.online.weight:
                place = self.place(ranges, self.computation.output)
                return self.online.again(sources[0], place)
            return self.ended.get(node.arg.memory) if node.op == "load" else None

        return substitute(ops.expand(rebuild(root, change)), places)
