"""Attention on a GPU: a thread per row, a few keys after the other.

A thread's row of the left factor and of the output lie in local memory, a column of their own for
each thread, so that nothing is shared between threads and nothing waits. Keys and values are the
same for all threads of a group: they are read once per wave, by scalar loads where LLVM sees fit.
"""

from __future__ import annotations

from compiler.dtype import float32
from compiler.graph import ops
from compiler.index.algebra import Index, Range, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import combine, replace
from compiler.kernel.functions import exp
from compiler.kernel.gpu_loops import threads_along
from compiler.kernel.gpu_matmul import multiply_add
from compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    Value,
    binary,
    const,
    group_range,
    load,
    rebuild,
    substitute,
    thread_range,
)
from compiler.kernel.online import FINITE_LOWEST, Online
from compiler.kernel.spread import spread
from hcq.target import TargetSpec

KEYS = 8  # taken together, at most: the output is read and written once for them
ROWS = 64  # of a group, at most
TOGETHER = 4  # neighbouring elements of the depth, or columns, in one load


def attention(computation: Computation, parts: Online, target: TargetSpec) -> Kernel:
    """The kernel; its grid is (row blocks, batch)."""
    return _ByRows(computation, parts, target).kernel()


class _ByRows:
    """Memories of one kernel. Rows in local memory are [element][thread]."""

    def __init__(self, computation: Computation, parts: Online, target: TargetSpec) -> None:
        self.computation = computation
        self.parts = parts
        held = (parts.depth.size + parts.columns.size) * float32.itemsize  # of a row
        most = ROWS
        while most * held > target.local_memory // 2 and most > target.wave_size:
            most //= 2  # two groups should fit, so that one may wait for memory
        row, self.exists, groups, self.block = threads_along(parts.rows.size, target, most)
        self.thread = thread_range(self.block).index()
        self.grid = (groups, elements(parts.batch), 1)
        sizes = tuple(r.size for r in parts.batch)
        batch = unflatten(group_range(1, self.grid[1]).index(), sizes)
        self.places = {parts.rows: row, **dict(zip(parts.batch, batch, strict=True))}
        self.count = min(KEYS, parts.keys.size)
        self.left = Memory("left", float32, parts.depth.size * self.block, "local")
        self.output = Memory("output", float32, parts.columns.size * self.block, "local")
        self.scores = Memory("scores", float32, self.count, "register")
        self.largest = Memory("largest", float32, 1, "register")
        self.scale = Memory("scale", float32, 1, "register")
        self.sums = [Memory(f"sum{i}", float32, 1, "register") for i in range(len(parts.sums))]

    def kernel(self) -> Kernel:
        parts, zero, first = self.parts, const(0, float32), constant(0)
        depth, column = Range("d", parts.depth.size), Range("e", parts.columns.size)
        taken = self.value(parts.left, {**self.places, parts.depth: depth.index()})
        body: list[Statement] = [
            Loop(depth, (Store(self.left, self.own(depth.index()), taken),)),
            Loop(column, (Store(self.output, self.own(column.index()), zero),)),
            Store(self.largest, first, const(FINITE_LOWEST, float32)),
            *(Store(memory, first, zero) for memory in self.sums),
        ]
        whole = parts.keys.size // self.count
        body.append(self.over("keys", whole, 0, self.count))
        rest = parts.keys.size - whole * self.count
        if rest:
            body.append(self.over("rest", rest, whole * self.count, 1))
        body.append(self.finish(column))
        inside = (If(self.exists, tuple(body)),) if self.exists else tuple(body)
        memories = (
            self.left, self.output, self.scores, self.largest, self.scale, *self.sums,
        )  # fmt: skip
        parameters = (self.computation.output, *self.computation.inputs)
        return Kernel("kernel", parameters, memories, self.grid, self.block, inside)

    def value(self, root: Value, places: dict[Range, Index]) -> Value:
        return substitute(ops.expand(root), places)

    def own(self, element: Index) -> Index:
        """Where an element of this thread's row is."""
        return element * self.block + self.thread

    def over(self, name: str, steps: int, start: int, count: int) -> Statement:
        """Take in `steps` times `count` keys, the first of them at `start`."""
        step = Range(name, steps)
        keys = [step.index() * count + (start + i) for i in range(count)]
        return Loop(step, (*self.weigh(keys), self.multiply(keys)))

    def weigh(self, keys: list[Index]) -> list[Statement]:
        """The next keys' scores, the new maximum, weights and sums."""
        parts, zero = self.parts, constant(0)
        scores = [load(self.scores, constant(i)) for i in range(len(keys))]
        largest, scale = load(self.largest, zero), load(self.scale, zero)
        together = _divisor(parts.depth.size, TOGETHER) or 1
        step = Range("d", parts.depth.size // together)
        statements: list[Statement] = [
            Store(self.scores, constant(i), const(0, float32)) for i in range(len(keys))
        ]
        products: list[Statement] = []
        first = step.index() * together
        lefts = [load(self.left, self.own(first + i)) for i in range(together)]
        for i, key in enumerate(keys):
            total = scores[i]
            right = self.value(parts.right, {**self.places, parts.keys: key})
            for left, each in zip(lefts, spread(right, parts.depth, first, together), strict=True):
                total = multiply_add(left, each, total)
            products.append(Store(self.scores, constant(i), total))
        statements.append(Loop(step, tuple(products)))
        raised = largest
        for i, key in enumerate(keys):
            places = {**self.places, parts.keys: key}
            score = self.value(replace(parts.score, parts.inner, scores[i]), places)
            statements.append(Store(self.scores, constant(i), score))
            raised = combine("max", raised, scores[i])
        statements.append(Store(self.scale, zero, largest))
        statements.append(Store(self.largest, zero, raised))
        statements.append(Store(self.scale, zero, exp(binary("sub", scale, largest))))
        for i, score in enumerate(scores):
            weight = exp(binary("sub", score, largest))
            statements.append(Store(self.scores, constant(i), weight))
        for memory, (_, extra) in zip(self.sums, parts.sums, strict=True):
            total = binary("mul", load(memory, zero), scale)
            for key, weight in zip(keys, scores, strict=True):
                term = weight
                if extra is not None:
                    term = binary(
                        "mul", weight, self.value(extra, {**self.places, parts.keys: key})
                    )
                total = binary("add", total, term)
            statements.append(Store(memory, zero, total))
        return statements

    def multiply(self, keys: list[Index]) -> Statement:
        """output = output rescaled + weights * values."""
        parts = self.parts
        together = _divisor(parts.columns.size, TOGETHER) or 1
        step = Range("e", parts.columns.size // together)
        first = step.index() * together
        scale = load(self.scale, constant(0))
        totals = [
            binary("mul", load(self.output, self.own(first + i)), scale) for i in range(together)
        ]
        for number, key in enumerate(keys):
            weight = load(self.scores, constant(number))
            factor = self.value(parts.factor, {**self.places, parts.keys: key})
            found = spread(factor, parts.columns, first, together)
            totals = [multiply_add(weight, e, t) for e, t in zip(found, totals, strict=True)]
        stores = [Store(self.output, self.own(first + i), t) for i, t in enumerate(totals)]
        return Loop(step, tuple(stores))

    def finish(self, column: Range) -> Statement:
        """The output's elements."""
        parts, zero = self.parts, constant(0)
        totals = {parts.largest: self.largest}
        totals |= {m: mine for (m, _), mine in zip(parts.sums, self.sums, strict=True)}

        def change(node: Value, _: tuple[Value, ...]) -> Value | None:
            if node.op != "load":
                return None
            if node.arg.memory == parts.output:
                return load(self.output, self.own(column.index()))
            found = totals.get(node.arg.memory)
            return None if found is None else load(found, zero)

        places = {**self.places, parts.columns: column.index()}
        result = self.value(rebuild(parts.result, change), places)
        position = self.computation.position.substitute(places)
        return Loop(column, (Store(self.computation.output, position, result),))


def _divisor(size: int, most: int) -> int:
    """The largest divisor of a size from `most` down to half of it; 0 if there is none."""
    return next((n for n in range(most, most // 2 - 1, -1) if size % n == 0), 0)
