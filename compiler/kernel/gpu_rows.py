"""Chains of reductions on a GPU: a group per row, or a thread per row where rows are short or
where memory runs across them.

A group's threads take every block-th piece of the row, as in gpu_loops. Where a thread's share of
the row is small it stays in registers from one pass to the next; else it is read and computed
again.
"""

from __future__ import annotations

from compiler.graph import ops
from compiler.index.algebra import Index, Range, Validity, at_least_zero, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import combine, identity
from compiler.kernel.chain import Chain, held_values
from compiler.kernel.gpu_loops import BLOCK, LONG, threads_along, tree
from compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    Value,
    group_range,
    load,
    rebuild,
    substitute,
    thread_range,
)
from compiler.kernel.spread import spread, store, unit_stride, vector_width
from hcq.target import TargetSpec

REGISTERS = 32  # elements of a row that a thread holds, at most
STEPS = 8  # pieces of a row that a thread takes one after the other without a loop, at most


def rows(computation: Computation, chain: Chain, target: TargetSpec) -> Kernel:
    """A kernel of whole rows."""
    across = chain.outer[-1:]
    along = {ranges[-1] for ranges, _ in chain.passes() if ranges}
    values = [root for _, root in chain.passes()]
    strided = across and any(unit_stride(root, across[0]) for root in values)
    in_order = any(unit_stride(root, r) for root in values for r in along)
    if chain.length < LONG or (strided and not in_order) or chain.rows >= 1 << 31:
        return _by_threads(computation, chain, target)
    return _ByGroups(computation, chain, target).kernel()


def _by_threads(computation: Computation, chain: Chain, target: TargetSpec) -> Kernel:
    unit, conditions, groups, block = threads_along(chain.rows, target)
    sizes = tuple(r.size for r in chain.outer)
    places = dict(zip(chain.outer, unflatten(unit, sizes), strict=True))
    body: list[Statement] = []
    for number, (ranges, root) in enumerate(chain.passes()):
        if number < len(chain.stages):
            stage = chain.stages[number]
            first = identity(stage.operation, stage.total.dtype)
            body.append(Store(stage.total, constant(0), first))
            value = substitute(ops.expand(root), places)
            value = combine(stage.operation, load(stage.total, constant(0)), value)
            inside: tuple[Statement, ...] = (Store(stage.total, constant(0), value),)
        else:
            position = computation.position.substitute(places)
            inside = tuple(
                Store(memory, position, substitute(ops.expand(part), places))
                for memory, part in computation.results(root)
            )
        for counter in reversed(ranges):
            inside = (Loop(counter, inside),)
        body += inside
    statements = (If(conditions, tuple(body)),) if conditions else tuple(body)
    totals = tuple(stage.total for stage in chain.stages)
    return _kernel(computation, totals, (groups, 1, 1), block, statements)


class _ByGroups:
    """A row per group."""

    def __init__(self, computation: Computation, chain: Chain, target: TargetSpec) -> None:
        self.computation = computation
        self.chain = chain
        memories = [*computation.inputs, *computation.outputs]
        width = vector_width([m.dtype for m in memories], target.vector_bytes)
        passes = [ranges for ranges, _ in chain.passes() if ranges]
        while width > 1 and (
            any(ranges[-1].size % width for ranges in passes)
            or chain.length < width * target.wave_size
        ):
            width //= 2
        self.width = width
        units = chain.length // width
        block = target.wave_size
        while block < BLOCK and block < units and block < target.max_threads_per_group:
            block *= 2
        self.block = block
        self.thread = thread_range(block).index()
        sizes = tuple(r.size for r in chain.outer)
        row = unflatten(group_range(0, chain.rows).index(), sizes)
        self.places = dict(zip(chain.outer, row, strict=True))
        self.held: dict[Value, tuple[int, Memory]] = {}
        self.hold()

    def steps(self, ranges: tuple[Range, ...]) -> int:
        """How many pieces of a pass each thread takes."""
        return -(-(elements(ranges) // self.width) // self.block)

    def hold(self) -> None:
        """Choose what stays in registers: elements number step * width + lane of each thread."""
        left = REGISTERS
        for held in held_values(self.chain, loads=True):
            ranges = self.chain.passes()[held.made][0]
            count = self.steps(ranges) * self.width
            if self.steps(ranges) <= STEPS and count <= left:
                left -= count
                memory = Memory(f"held{len(self.held)}", held.value.dtype, count, "register")
                self.held[held.value] = held.made, memory

    def kernel(self) -> Kernel:
        computation, chain = self.computation, self.chain
        totals = [stage.total for stage in chain.stages]
        shared = []
        body: list[Statement] = []
        for number, stage in enumerate(chain.stages):
            total = stage.total
            here = load(total, constant(0))
            first = identity(stage.operation, total.dtype)
            body.append(Store(total, constant(0), first))
            body += self.over(stage.ranges, number)
            size = self.block + self.block // 2
            memory = Memory(f"shared{number}", total.dtype, size, "local")
            shared.append(memory)
            body += tree(stage.operation, memory, here, self.block, 1)
            body.append(Store(total, constant(0), load(memory, constant(0))))
        body += self.over(chain.inner, len(chain.stages))
        memories = (*totals, *shared, *(memory for _, memory in self.held.values()))
        return _kernel(computation, memories, (chain.rows, 1, 1), self.block, tuple(body))

    def over(self, ranges: tuple[Range, ...], number: int) -> list[Statement]:
        """One pass over the row."""
        if not ranges:
            first = at_least_zero(-self.thread)
            return [If(first, tuple(self.piece(ranges, number, 0, [])))]
        steps, units = self.steps(ranges), elements(ranges) // self.width
        counter = Range("step", steps)
        written_out = steps <= STEPS
        statements: list[Statement] = []
        for step in range(steps if written_out else 1):
            at = constant(step) if written_out else counter.index()
            unit = at * self.block + self.thread
            shape = (*(r.size for r in ranges[:-1]), ranges[-1].size // self.width)
            inside: tuple[Statement, ...] = tuple(
                self.piece(ranges, number, step, unflatten(unit, shape))
            )
            exists: Validity = at_least_zero(constant(units - 1) - unit)
            statements += [If(exists, inside)] if exists else inside
        return statements if written_out else [Loop(counter, tuple(statements))]

    def piece(
        self, ranges: tuple[Range, ...], number: int, step: int, at: list[Index]
    ) -> list[Statement]:
        """A thread's next elements of a pass; at: their place, the last in units of the width."""
        width = self.width if ranges else 1
        lane = Range("lane", width)
        places = dict(self.places)
        if ranges:
            places |= zip(ranges, (*at[:-1], at[-1] * width + lane.index()), strict=True)
        held = constant(step * width) + lane.index()

        def values(root: Value, whole: bool) -> list[Value]:
            """For each lane, reading what is held; whole: but not from where it is to be held."""

            def change(node: Value, _: tuple[Value, ...]) -> Value | None:
                found = self.held.get(node)
                if found is None or (whole and node is root):
                    return None
                return load(found[1], held)

            finished = substitute(ops.expand(rebuild(root, change)), places)
            return spread(finished, lane, constant(0), width)

        statements: list[Statement] = []
        # what a dear one is made of may be held as well: the cheaper come first
        for root, (made, memory) in reversed(self.held.items()):
            if made == number:
                for index, value in enumerate(values(root, True)):
                    statements.append(Store(memory, constant(step * width + index), value))
        root = self.chain.passes()[number][1]
        if number < len(self.chain.stages):
            stage = self.chain.stages[number]
            joined = load(stage.total, constant(0))
            for value in values(root, False):
                joined = combine(stage.operation, joined, value)
            return [*statements, Store(stage.total, constant(0), joined)]
        position = self.computation.position.substitute(places)
        for output, part in self.computation.results(root):
            results = values(part, False)
            if width > 1 and position.coefficient(lane) == 1:
                first = position.substitute({lane: constant(0)})
                statements.append(store(output, first, results))
                continue
            for index, value in enumerate(results):
                here = position.substitute({lane: constant(index)})
                statements.append(Store(output, here, value))
        return statements


def _kernel(
    computation: Computation,
    local: tuple[Memory, ...],
    grid: tuple[int, int, int],
    block: int,
    body: tuple[Statement, ...],
) -> Kernel:
    parameters = (*computation.outputs, *computation.inputs)
    outputs = len(computation.outputs)
    return Kernel("kernel", parameters, local, grid, block, body, outputs=outputs)
