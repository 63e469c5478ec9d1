"""The gradients of an attention on the host: a group for each element of the batch, one block of
rows after the other.

    weights     p[key][row] = exp(key . query - largest[row]), of all visible keys; totals[row]
    slopes      s[key][row] = p (value . gradient - inner[row]), for a block of keys; inner is the
                product of the result and its gradient; then, by products of the same blocks,
    gradients   of values += p gradient, of keys += s query, of the query = the sum of s key

The query comes scaled, and the result's gradient divided by `totals`, so that neither weights nor
slopes are. Vectors run along rows where keys and values are read: one of their elements for all
rows of a vector, in place. Query and gradient are copied twice, by rows and turned. Weights of a
block of rows and the gradients of keys and values stay in the second cache, everything else in the
first. The gradients of keys and values are summed where they are stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import combine
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.functions import exp
from ugpu.compiler.expression.lookup import guard
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    const,
    gate,
    load,
    substitute,
    value,
)
from ugpu.compiler.graph.attention import UNIT, Axes, Sizes
from ugpu.compiler.kernel.host.nest import At, Panel, filled, round_up
from ugpu.compiler.kernel.host.products.packing import turn
from ugpu.compiler.kernel.host.products.rates import highest
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.pattern.online import FINITE_LOWEST
from ugpu.hcq.state.target import TargetSpec

VECTORS = 4  # vectors of rows in a block
LOWEST = float("-inf")


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower the gradients of an attention."""
    return _Gradients(computation, target).kernel()


class _Gradients:
    """Memories of one kernel. Tiles are [key or depth][row], copies [row][depth]."""

    def __init__(self, computation: Computation, target: TargetSpec) -> None:
        self.computation = computation
        self.axes: Axes = computation.value.arg[1]
        self.sizes: Sizes = self.axes.sizes
        sources = [ops.expand(source) for source in computation.value.sources]
        self.query, self.key, self.val, self.result, self.gradient, *mask = sources
        self.mask = mask[0] if mask else None
        sizes, axes = self.sizes, self.axes
        self.lanes = max(2, min(16, target.vector_bytes // float32.itemsize))
        self.registers = vector_registers(target)
        self.wide = min(VECTORS, -(-sizes.rows // self.lanes)) * self.lanes
        self.batch = groups_at(computation.ranges[:-1], 0)
        self.block = Range("block", -(-sizes.rows // self.wide))
        self.first = self.block.index() * self.wide
        self.rows_left = constant(sizes.rows) - self.first
        self.axis_of = {axes.depth: sizes.deep, axes.column: sizes.wide}

        def tile(name: str, count: int) -> Memory:
            return Memory(name, float32, count * self.wide, "local")

        self.weights, self.slopes = tile("weights", sizes.long), tile("slopes", sizes.block)
        self.queries, self.turned_queries = (
            tile(name, sizes.deep) for name in ("queries", "queries_t")
        )
        self.slants, self.turned_slants = tile("slants", sizes.wide), tile("slants_t", sizes.wide)
        self.of_query = tile("of_query", sizes.deep)
        self.largest, self.totals, self.inner = (
            tile(name, 1) for name in ("largest", "totals", "inner")
        )
        self.sums = Memory("sums", float32, self.registers, "register", self.lanes)
        self.total = Memory("total", float32, 1, "register")
        self.groups = elements(list(self.batch))
        number = group_range(0, self.groups).index()
        ends = itertools.accumulate(sizes.parts, initial=0)
        self.starts = [
            number * size + self.groups * end for size, end in zip(sizes.parts, ends, strict=False)
        ]

    def kernel(self) -> Kernel:
        zero = const(0, float32)
        clear = [
            Loop(counter, (Store(self.computation.output, start + counter.index(), zero),))
            for start, counter in zip(
                self.starts[1:],
                (Range("clear", size) for size in self.sizes.parts[1:]),
                strict=True,
            )
        ]
        rows = (
            *self.copied(self.queries, self.query, self.axes.depth, None),
            *self.weighed(),
            *self.copied(self.slants, self.gradient, self.axes.column, self.totals),
            *self.multiplied(),
            filled("fill", self.of_query, zero),
            self.blocks_of_keys(),
            self.finished(),
        )
        body = (*clear, Loop(self.block, rows))
        return kernel_over(self.computation, (self.groups, 1, 1), 1, body)

    # ---- pieces --------------------------------------------------------------------------------

    def value(self, root: Value, places: dict[Range, Index]) -> Value:
        return substitute(root, {**self.batch, **places})

    def across(self, make: Callable[[Index], list[Statement]]) -> Statement:
        """Return the statements for every row of the block."""
        row = Range("lane", self.wide)
        return Loop(row, tuple(make(row.index())))

    def copied(
        self, to: Memory, source: Value, along: Range, divisor: Memory | None
    ) -> list[Statement]:
        """Copy a block of rows, and turn it. divisor: of each row; without one, rows are scaled as
        scores are."""
        row, step, pitch = Range("copy", self.wide), Range("step", along.size), self.axis_of[along]
        number = self.value(source, {self.axes.row: self.first + row.index(), along: step.index()})
        scale = const(self.sizes.scale, float32)
        if divisor is not None:
            scale = load(divisor, row.index())
        store = Store(to, row.index() * pitch + step.index(), binary("mul", number, scale))
        whole = self.sizes.rows % self.wide == 0 and along.size == pitch
        clear = [] if whole else [filled("fill", to, const(0, float32))]
        copy = Loop(row, (Loop(step, (store,)),), self.rows_left)
        turned = self.turned_queries if to is self.queries else self.turned_slants
        return [*clear, copy, self.turned(to, pitch, turned, self.wide)]

    def turned(self, source: Memory, pitch: int, to: Memory, width: int) -> Statement:
        """Turn [row][step] into [step][row]. width: number of rows."""
        down, across = Range("down", width // self.lanes), Range("across", pitch // self.lanes)
        row, step = down.index() * self.lanes, across.index() * self.lanes
        vectors = [
            load(source, (row + lane) * pitch + step, lanes=self.lanes)
            for lane in range(self.lanes)
        ]
        stores = turn(to, step * width + row, width, vectors)
        return Loop(down, (Loop(across, stores, rolled=True),), rolled=True)

    def visible(self, first: Index) -> Index | None:
        """Return how many keys from `first` on any row of the block sees, in whole units, if that
        varies."""
        if not self.sizes.causal:
            return None
        units: Index = (self.first + (self.wide + UNIT - 1)) // UNIT
        return units * UNIT - first

    def panel(self, count: int) -> Panel:
        """Return the largest panel for so many elements along rows, whose units of keys divide."""
        vectors, least = count // self.lanes, UNIT // 2
        highs = {n: highest(self.registers, n) for n in (4, 3, 2, 1) if vectors % n == 0}
        abreast, most = next((n, high) for n, high in highs.items() if high >= least)
        return Panel(self.sums, UNIT if most >= UNIT else least, abreast)

    def tile(self, memory: Memory) -> At:
        """Return vectors of a tile: of a step, along rows."""
        return lambda step, row: load(memory, step * self.wide + row, lanes=self.lanes)

    def element(self, source: Value, along: Range) -> At:
        """Return elements of keys or values; zero beyond the last key."""

        def read(key: Index, step: Index) -> Value:
            found = self.value(source, {self.axes.key: key, along: step})
            outside = at_least_zero(constant(self.sizes.keys - 1) - key)
            return guard(found, outside) if self.sizes.keys < self.sizes.long else found

        return read

    # ---- weights -------------------------------------------------------------------------------

    def weighed(self) -> list[Statement]:
        """Compute the weights of the block's rows, undivided, and the factors that divide them."""
        key = Range("key", self.sizes.long)
        bound = self.visible(constant(0))
        zero, one = const(0, float32), const(1, float32)
        scores = self.panel(self.wide).over(
            "score", (self.sizes.long, self.wide), Range("d", self.sizes.depth),
            self.element(self.key, self.axes.depth), self.tile(self.turned_queries), None,
            lambda i, row, total: Store(self.weights, i * self.wide + row, total),
            (bound, None),
        )  # fmt: skip

        def raise_maximum(row: Index) -> list[Statement]:
            place = key.index() * self.wide + row
            score = self.masked(load(self.weights, place), key.index(), row)
            stored = load(self.weights, place)
            largest = combine("max", load(self.largest, row), stored)
            return [Store(self.weights, place, score), Store(self.largest, row, largest)]

        def exponential(row: Index) -> list[Statement]:
            place = key.index() * self.wide + row
            apart = binary("sub", load(self.weights, place), load(self.largest, row))
            total = binary("add", load(self.totals, row), load(self.weights, place))
            return [Store(self.weights, place, exp(apart)), Store(self.totals, row, total)]

        def invert(row: Index) -> list[Statement]:
            total = load(self.totals, row)
            none = binary("eq", total, zero)
            part = value("where", float32, (none, zero, binary("div", one, total)))
            return [Store(self.totals, row, part)]

        return [
            scores,
            filled("fill", self.largest, const(FINITE_LOWEST, float32)),
            filled("fill", self.totals, zero),
            Loop(key, (self.across(raise_maximum),), bound),
            Loop(key, (self.across(exponential),), bound),
            self.across(invert),
        ]

    def masked(self, score: Value, key: Index, lane: Index) -> Value:
        """Return a score, or minus infinity if the row does not see the key."""
        sizes, lowest = self.sizes, const(LOWEST, float32)
        row = self.first + lane
        inside = at_least_zero(constant(sizes.keys - 1) - key) if sizes.keys < sizes.long else ()
        if self.mask is not None:
            exists = inside
            if sizes.rows % self.wide:
                exists = both(exists, at_least_zero(constant(sizes.rows - 1) - row))
            mask = guard(self.value(self.mask, {self.axes.row: row, self.axes.key: key}), exists)
            if sizes.mask == "added":
                score = binary("add", score, mask)
            else:
                score = value("where", float32, (mask, score, lowest))
        if sizes.causal:
            inside = both(inside, at_least_zero(row - key))
        return gate(inside, score, lowest)

    # ---- slopes and gradients ------------------------------------------------------------------

    def multiplied(self) -> list[Statement]:
        """Compute `inner` of each row, beyond the last one 0."""
        row, step = Range("product", self.wide), Range("e", self.sizes.columns)
        places = {self.axes.row: self.first + row.index(), self.axes.column: step.index()}
        slant = load(self.slants, row.index() * self.sizes.wide + step.index())
        term = binary("mul", slant, self.value(self.result, places))
        first = constant(0)
        more = combine("sum", load(self.total, first), term)
        body = (
            Store(self.total, first, const(0, float32)),
            Loop(step, (Store(self.total, first, more),)),
            Store(self.inner, row.index(), load(self.total, first)),
        )
        beyond = (
            []
            if self.sizes.rows % self.wide == 0
            else [filled("fill", self.inner, const(0, float32))]
        )
        return [*beyond, Loop(row, body, self.rows_left)]

    def blocks_of_keys(self) -> Statement:
        sizes, axes, output = self.sizes, self.axes, self.computation.output
        count = sizes.block
        block = Range("keys", sizes.long // count)
        first = block.index() * count
        bound = self.visible(first)
        of_keys, of_values = self.starts[1:]
        elements = (self.element(self.key, axes.depth), self.element(self.val, axes.column))

        def slope(i: Index, row: Index, total: Value) -> Store:
            apart = binary("sub", total, load(self.inner, row, lanes=self.lanes))
            weight = load(self.weights, (first + i) * self.wide + row, lanes=self.lanes)
            return Store(self.slopes, i * self.wide + row, binary("mul", weight, apart))

        def added(
            name: str, tile: Memory, at: Index, rows: Memory, pitch: int, start: Index
        ) -> Statement:
            def place(key: Index, column: Index) -> Index:
                return start + (first + key) * pitch + column

            return self.panel(pitch).over(
                name, (count, pitch), Range(f"{name}_row", self.wide),
                lambda key, row: load(tile, (at + key) * self.wide + row),
                lambda row, column: load(rows, row * pitch + column, lanes=self.lanes),
                lambda key, column: load(output, place(key, column), lanes=self.lanes),
                lambda key, column, total: Store(output, place(key, column), total),
                (bound, None),
            )  # fmt: skip

        def key_of(step: Index, key: Index) -> Value:
            found = elements[0](first + key, step)
            inside = at_least_zero(constant(sizes.depth - 1) - step)
            return guard(found, inside) if sizes.depth % UNIT else found

        slopes = self.panel(self.wide).over(
            "slope", (count, self.wide), Range("e", sizes.columns),
            lambda i, step: elements[1](first + i, step), self.tile(self.turned_slants),
            None, slope, (bound, None),
        )  # fmt: skip
        of_query = self.panel(self.wide).over(
            "query", (round_up(sizes.depth, UNIT), self.wide), Range("k", count),
            key_of, self.tile(self.slopes), self.tile(self.of_query),
            lambda step, row, total: Store(self.of_query, step * self.wide + row, total),
            (None, bound),
        )  # fmt: skip
        body = (
            slopes,
            added("value", self.weights, first, self.slants, sizes.wide, of_values),
            added("key", self.slopes, constant(0), self.queries, sizes.deep, of_keys),
            of_query,
        )
        limit = self.visible(constant(0))
        if limit is not None:
            limit = (limit + (count - 1)) // count
        return Loop(block, body, limit)

    def finished(self) -> Statement:
        """Store the block's rows of the query's gradient."""
        sizes, lanes = self.sizes, self.lanes
        down, across = Range("rows", self.wide // lanes), Range("columns", sizes.deep // lanes)
        row, step = down.index() * lanes, across.index() * lanes
        scale = broadcast(const(sizes.scale, float32), lanes)
        vectors = [
            binary("mul", load(self.of_query, (step + lane) * self.wide + row, lanes=lanes), scale)
            for lane in range(lanes)
        ]
        to = self.starts[0] + (self.first + row) * sizes.deep + step
        stores = turn(self.computation.output, to, sizes.deep, vectors)
        bound = (self.rows_left + (lanes - 1)) // lanes
        return Loop(down, (Loop(across, stores, rolled=True),), bound, rolled=True)
