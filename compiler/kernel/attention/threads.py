"""Attention on a GPU: a thread per row, a few keys at a time.

A thread's row of the left factor and of the output are in local memory, in a separate column for
each thread, so that threads share nothing and never wait. Keys and values are the same for all
threads of a group: they are read once per wave, by scalar loads where LLVM chooses them. Many
columns are shared by several groups, which compute the same scores. A long row of the left factor
is not copied.
"""

from __future__ import annotations

from math import gcd

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, binary, const, load
from ugpu.compiler.kernel.attention.running import Running, placed
from ugpu.compiler.kernel.attention.visible import loop_over, seen
from ugpu.compiler.kernel.choices import Attention
from ugpu.compiler.kernel.gpu.loops import threads_along
from ugpu.compiler.kernel.ir import (
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    guarded,
    thread_range,
)
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over, stores
from ugpu.compiler.kernel.shared.spread import spread
from ugpu.compiler.pattern.online import Online, widened
from ugpu.hcq.state.target import TargetSpec

KEYS = 16  # maximum keys taken together: the output is read and written once for them
ROWS = 64  # maximum rows of a group
TOGETHER = 4  # neighbouring elements of the depth, or columns, in one load
LONGEST = 128  # elements of the left factor's row that are kept, and columns of a group


def by_threads(
    computation: Computation, parts: Online, target: TargetSpec, wanted: Attention
) -> Kernel:
    """Return the kernel; its grid is (row blocks, batch, column blocks)."""
    return _ByThreads(computation, parts, target, wanted).kernel()


def default_block(parts: Online, target: TargetSpec) -> int:
    """Return the threads of a group: as many rows as leave room for two groups, so that one may
    wait, and leave a group for each compute unit."""
    held = row_bytes(parts)
    blocks = elements(parts.batch) * -(-parts.columns.size // column_block(parts.columns.size))
    most = max(ROWS, target.wave_size)
    while most > target.wave_size and (
        most * held > target.local_memory // 2
        or -(-parts.rows.size // most) * blocks < target.compute_units
    ):
        most //= 2
    return most


def row_bytes(parts: Online) -> int:
    """Return the bytes of local memory for a row."""
    kept = parts.depth.size if parts.depth.size <= LONGEST else 0
    return (kept + column_block(parts.columns.size)) * float32.itemsize


def column_block(columns: int) -> int:
    """Return the columns of a group: all, or an even share of them."""
    blocks = -(-columns // LONGEST)
    share = -(-columns // blocks)
    return min(columns, -(-share // TOGETHER) * TOGETHER)


class _ByThreads:
    """Memories of one kernel. Rows in local memory are [element][thread]."""

    def __init__(
        self, computation: Computation, parts: Online, target: TargetSpec, wanted: Attention
    ) -> None:
        self.computation = computation
        self.parts = parts
        row, self.exists, groups, self.block = threads_along(parts.rows.size, target, wanted.block)
        self.thread = thread_range(self.block).index()
        share = column_block(parts.columns.size)
        blocks = -(-parts.columns.size // share)
        self.grid = (groups, elements(parts.batch), blocks)
        self.first_column = group_range(2, blocks).index() * share
        self.places = {parts.rows: row, **groups_at(parts.batch, 1)}
        self.count = min(wanted.keys, parts.keys.size)
        self.keeps = parts.depth.size <= LONGEST
        self.left = Memory("left", float32, parts.depth.size * self.block, "local")
        self.output = Memory("output", float32, share * self.block, "local")
        self.share = share
        self.scores = Memory("scores", float32, self.count, "register")
        self.running = Running(parts)

    def kernel(self) -> Kernel:
        parts, zero = self.parts, const(0, float32)
        depth, column = Range("d", parts.depth.size), Range("e", self.share)
        taken = placed(parts.left, {**self.places, parts.depth: depth.index()})
        body: list[Statement] = []
        if self.keeps:
            body.append(Loop(depth, (Store(self.left, self.own(depth.index()), taken),)))
        body += [
            Loop(column, (Store(self.output, self.own(column.index()), zero),)),
            *self.running.begin(),
        ]
        whole = parts.keys.size // self.count
        body.append(self.over("keys", whole, 0, self.count))
        rest = parts.keys.size - whole * self.count
        if rest:
            body.append(self.over("rest", rest, whole * self.count, 1))
        body.append(self.finish(column))
        return kernel_over(self.computation, self.grid, self.block, guarded(self.exists, *body))

    def own(self, element: Index) -> Index:
        """Return the place of an element of this thread's row."""
        return element * self.block + self.thread

    def over(self, name: str, steps: int, start: int, count: int) -> Statement:
        """Process `steps` times `count` keys, starting at `start`."""
        step = Range(name, steps)
        keys = [step.index() * count + (start + i) for i in range(count)]
        each = Range("key", count)
        places = {**self.places, self.parts.keys: keys[0] + each.index()}
        conditions = seen(self.parts.score, places, {each, thread_range(self.block)})
        return loop_over(step, conditions, (*self.weigh(keys), self.multiply(keys)))

    def weigh(self, keys: list[Index]) -> list[Statement]:
        """Compute the next keys' scores, the new maximum, weights and sums."""
        parts, running = self.parts, self.running
        scores = [load(self.scores, constant(i)) for i in range(len(keys))]
        together = _divisor(parts.depth.size, TOGETHER) or 1
        step = Range("d", parts.depth.size // together)
        statements: list[Statement] = [
            Store(self.scores, constant(i), const(0, float32)) for i in range(len(keys))
        ]
        products: list[Statement] = []
        first = step.index() * together
        lefts = self.lefts(first, together)
        for i, key in enumerate(keys):
            total = scores[i]
            right = placed(parts.right, self.at_key(key))
            for left, each in zip(lefts, spread(right, parts.depth, first, together), strict=True):
                total = multiply_add(left, each, total)
            products.append(Store(self.scores, constant(i), total))
        statements.append(Loop(step, tuple(products)))
        for i, key in enumerate(keys):
            score = placed(replace(parts.score, parts.inner, scores[i]), self.at_key(key))
            statements.append(Store(self.scores, constant(i), score))
        statements += running.raised(scores)
        for i, score in enumerate(scores):
            statements.append(Store(self.scores, constant(i), running.weight(score)))
        factors = running.added(scores, lambda extra, i: placed(extra, self.at_key(keys[i])))
        return [*statements, *factors]

    def at_key(self, key: Index) -> dict[Range, Index]:
        return {**self.places, self.parts.keys: key}

    def lefts(self, first: Index, count: int) -> list[Value]:
        """Return elements of this thread's row of the left factor."""
        if self.keeps:
            return [load(self.left, self.own(first + i)) for i in range(count)]
        taken = placed(self.parts.left, self.places)
        return spread(taken, self.parts.depth, first, count)

    def multiply(self, keys: list[Index]) -> Statement:
        """Compute output = output rescaled + weights * values."""
        parts = self.parts
        together = _divisor(gcd(self.share, parts.columns.size), TOGETHER) or 1
        step = Range("e", self.share // together)
        first = step.index() * together
        scale = load(self.running.scale, constant(0))
        totals = [
            binary("mul", load(self.output, self.own(first + i)), scale) for i in range(together)
        ]
        for number, key in enumerate(keys):
            weight = load(self.scores, constant(number))
            factor = placed(parts.factor, self.at_key(key))
            factor, wide = widened(factor, parts.columns, self.grid[2] * self.share)
            found = spread(factor, wide, self.first_column + first, together)
            totals = [multiply_add(weight, e, t) for e, t in zip(found, totals, strict=True)]
        stores = [Store(self.output, self.own(first + i), t) for i, t in enumerate(totals)]
        return Loop(step, tuple(stores))

    def finish(self, column: Range) -> Statement:
        """Store the output's elements."""
        parts, here = self.parts, self.first_column + column.index()
        root = self.running.finished(load(self.output, self.own(column.index())))
        results = stores(self.computation, root, {**self.places, parts.columns: here})
        exists = at_least_zero(constant(parts.columns.size - 1) - here)
        return Loop(column, guarded(exists, *results))


def _divisor(size: int, most: int) -> int:
    """Return the largest divisor of a size from `most` down to half of it; 0 if there is none."""
    return next((n for n in range(most, most // 2 - 1, -1) if size % n == 0), 0)
