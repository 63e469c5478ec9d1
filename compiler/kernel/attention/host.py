"""Attention on the host: a block of rows per group, one block of keys after the other.

Vectors run along the rows, so that a row's maximum and sum are plain vector operations and only the
block of the left factor is transposed, once. Scores and weights of a block stay in the first cache;
keys and values are read in place, one element for a whole vector of rows.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.compiler.dtype import float32, int64
from ugpu.compiler.expression.accumulate import combine, multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.functions import exp
from ugpu.compiler.expression.lookup import guard, lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    const,
    load,
    value,
)
from ugpu.compiler.kernel.attention.running import Running, placed
from ugpu.compiler.kernel.attention.visible import bounded, loop_over, seen
from ugpu.compiler.kernel.host.nest import At, Nest, Panel, filled, round_up
from ugpu.compiler.kernel.host.products.rates import highest
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, guarded
from ugpu.compiler.kernel.shared.kernels import stores
from ugpu.compiler.kernel.shared.spread import runs_along
from ugpu.compiler.pattern.online import FINITE_LOWEST, Online
from ugpu.hcq.state.target import TargetSpec

VECTORS = 2  # vectors of rows in a block
FEW = 4  # rows up to which each is computed alone, with vectors along keys and columns
ABREAST = 8  # keys whose values are added to the output at once
KEYS = 128  # approximate keys of a block, so that its scores stay in the first cache


def attention(computation: Computation, parts: Online, target: TargetSpec) -> Kernel:
    """Return the kernel; its grid is (row blocks, batch)."""
    if parts.rows.size <= FEW and all(extra is None for _, extra in parts.sums):
        return _Row(computation, parts, target, 1).kernel()
    lanes = max(2, target.vector_bytes // float32.itemsize)
    return _Blocked(computation, parts, target, VECTORS * lanes).kernel()


def _panel(size: int, most: int) -> int:
    """Return the number of broadcast elements in a panel: a divisor of the size, or a medium
    number."""
    return next((n for n in range(min(most, size), 3, -1) if size % n == 0), min(4, size))


class _Blocked:
    """Sizes and memories of one kernel. Tiles are [key, column or depth][row]; wide: rows."""

    def __init__(
        self, computation: Computation, parts: Online, target: TargetSpec, wide: int
    ) -> None:
        self.computation = computation
        self.parts = parts
        self.lanes = max(2, target.vector_bytes // float32.itemsize)
        self.wide = wide
        most = highest(vector_registers(target), VECTORS)
        self.key_panel = _panel(parts.keys.size, most)
        self.column_panel = _panel(parts.columns.size, most)
        self.key_panels = -(-min(KEYS, parts.keys.size) // self.key_panel)
        self.tall = self.key_panels * self.key_panel
        if wide == 1:
            self.tall = -(-min(KEYS, parts.keys.size) // ABREAST) * ABREAST
        self.nest = Nest(computation, parts.batch, (parts.rows, self.wide))
        self.rows = self.nest.sides[0].walk("lane")
        self.lane = self.rows.last
        self.places = self.nest.batch | self.rows.places
        depth, columns = parts.depth.size, round_up(parts.columns.size, self.column_panel)
        self.turned = Memory("turned", float32, depth * self.wide, "local")
        self.scores = Memory("scores", float32, self.tall * self.wide, "local")
        self.output = Memory("output", float32, columns * self.wide, "local")
        self.running = Running(parts, count=self.wide, space="local")
        self.largest, self.scale = self.running.largest, self.running.scale
        self.sums = self.running.sums
        count = max(self.key_panel, self.column_panel) * VECTORS
        self.totals = Memory("totals", float32, count, "register", self.lanes)
        if wide == 1:
            self.totals = Memory("totals", float32, 1, "register")
        block = Range("block", -(-parts.keys.size // self.tall))
        self.block = block
        self.first_key = block.index() * self.tall
        self.keys_left = constant(parts.keys.size) - self.first_key
        # keys of a block that its rows may see
        stop, _ = bounded(seen(parts.score, self.places, {self.lane}), parts.keys)
        self.key_bound: Index | None = None
        if stop is not None:
            last = lookup(value("index", int64, (), stop), parts.keys.size + 1)
            self.key_bound = last - self.first_key
        elif parts.keys.size % self.tall:
            self.key_bound = self.keys_left

    def kernel(self) -> Kernel:
        output, depth = self.parts.columns, Range("d", self.parts.depth.size)
        places = {**self.places, self.parts.depth: depth.index()}
        left = placed(self.parts.left, places)
        turn = self.across(lambda at: [Store(self.turned, depth.index() * self.wide + at, left)])
        zero = const(0, float32)
        clear: list[Statement] = []
        if self.parts.rows.size % self.wide:
            clear.append(filled("fill", self.turned, zero))
        clear.append(filled("fill", self.output, zero))
        clear.append(filled("fill", self.largest, const(FINITE_LOWEST, float32)))
        clear += [filled("fill", memory, zero) for memory in self.sums]
        each = Range("each", self.tall)
        at = {**self.places, self.parts.keys: self.first_key + each.index()}
        conditions = seen(self.parts.score, at, {self.lane, each})
        inside = (*self.multiply_keys(), *self.weigh(), *self.multiply_values())
        blocks = loop_over(self.block, conditions, inside)
        body = (*clear, Loop(depth, tuple(turn)), blocks, self.finish(output))
        return self.nest.kernel(body)

    # ---- pieces --------------------------------------------------------------------------------

    def across(self, make: Callable[[Index], list[Statement]]) -> list[Statement]:
        """Return the statements for every row of the block."""
        return [self.rows.around(*make(self.rows.position))]

    def tile(self, memory: Memory) -> At:
        """Return vectors of a tile: of a step, along rows."""
        return lambda step, row: load(memory, step * self.wide + row, lanes=self.lanes)

    def kept(self, memory: Memory) -> Callable[[Index, Index, Value], Store]:
        """Return the stores of vectors of totals in a tile."""
        return lambda step, row, total: Store(memory, step * self.wide + row, total)

    def multiply_keys(self) -> list[Statement]:
        """Compute scores = keys * turned, panel by panel."""
        parts, step = self.parts, Range("d", self.parts.depth.size)

        def key(i: Index, depth: Index) -> Value:
            places = {**self.places, parts.keys: self.first_key + i, parts.depth: depth}
            inside = at_least_zero(self.keys_left - i - 1)
            found = placed(parts.right, places)
            return guard(found, inside) if parts.keys.size % self.key_panel else found

        return [Panel(self.totals, self.key_panel, VECTORS).over(
            "key", (self.tall, self.wide), step, key, self.tile(self.turned), None,
            self.kept(self.scores), (self.key_bound, None),
        )]  # fmt: skip

    def weigh(self) -> list[Statement]:
        """Turn scores into weights; rescale the running sums to the new maximum."""
        parts = self.parts
        key = Range("key", self.tall)
        bound = self.key_bound
        places = {**self.places, parts.keys: self.first_key + key.index()}
        here = load(self.scores, key.index() * self.wide + self.lane.index())
        score = placed(replace(parts.score, parts.inner, here), places)

        def remember(at: Index) -> list[Statement]:
            return [Store(self.scale, at, load(self.largest, at))]

        def raise_maximum(at: Index) -> list[Statement]:
            place = key.index() * self.wide + at
            largest = combine("max", load(self.largest, at), load(self.scores, place))
            return [Store(self.scores, place, score), Store(self.largest, at, largest)]

        def rescale(at: Index) -> list[Statement]:
            scale = exp(binary("sub", load(self.scale, at), load(self.largest, at)))
            sums = [
                Store(m, at, binary("mul", load(m, at), load(self.scale, at))) for m in self.sums
            ]
            return [Store(self.scale, at, scale), *sums]

        def weights(at: Index) -> list[Statement]:
            place = key.index() * self.wide + at
            weight = exp(binary("sub", load(self.scores, place), load(self.largest, at)))
            made: list[Statement] = [Store(self.scores, place, weight)]
            for memory, (_, extra) in zip(self.sums, parts.sums, strict=True):
                term = load(self.scores, place)
                if extra is not None:
                    term = binary("mul", term, placed(extra, places))
                made.append(Store(memory, at, binary("add", load(memory, at), term)))
            return made if self.wide > 1 else made[:1]

        return [
            *self.across(remember),
            Loop(key, tuple(self.across(raise_maximum)), bound),
            *self.across(rescale),
            Loop(key, tuple(self.across(weights)), bound),
            *self.added_up(),
        ]

    def added_up(self) -> list[Statement]:
        """Add up the weights if `weigh` leaves the sums out."""
        return []

    def multiply_values(self) -> list[Statement]:
        """Compute output = output rescaled + values * weights, panel by panel."""
        parts, high = self.parts, self.column_panel
        columns = parts.columns.size

        def number(i: Index, key: Index) -> Value:
            places = {**self.places, parts.keys: self.first_key + key, parts.columns: i}
            found, inside = placed(parts.factor, places), at_least_zero(-i + (columns - 1))
            return guard(found, inside) if columns % high else found

        def rescaled(i: Index, row: Index) -> Value:
            scale = load(self.scale, row, lanes=self.lanes)
            return binary("mul", self.tile(self.output)(i, row), scale)

        return [Panel(self.totals, high, VECTORS).over(
            "value", (round_up(columns, high), self.wide), Range("key", self.tall), number,
            self.tile(self.scores), rescaled, self.kept(self.output), (None, self.key_bound),
        )]  # fmt: skip

    def finish(self, columns: Range) -> Statement:
        """Store the output's elements."""
        computation, column = self.computation, Range("column", columns.size)
        at = self.lane.index()
        root = self.running.finished(load(self.output, column.index() * self.wide + at), at)
        inner = Loop(column, stores(computation, root, {**self.places, columns: column.index()}))
        return self.rows.around(inner)


class _Row(_Blocked):
    """A single row; sums follow the direction of memory.

    Weights are added in vectors, in an order that must not depend on how many keys are visible: all
    keys of a block are added, with zero for those that are not visible.
    """

    def added_up(self) -> list[Statement]:
        key, first = Range("weight", self.tall), constant(0)
        here = load(self.scores, key.index())
        return [
            Loop(key, (Store(memory, first, combine("sum", load(memory, first), here)),))
            for memory in self.sums
        ]

    def multiply_keys(self) -> list[Statement]:
        """Compute scores = keys * the row; zero for keys that are not visible."""
        clear = filled("fill", self.scores, const(0, float32))
        parts, key = self.parts, Range("key", self.tall)
        step = Range("d", parts.depth.size)
        places = {parts.keys: self.first_key + key.index(), parts.depth: step.index()}
        factor = placed(parts.right, {**self.places, **places})
        left = load(self.turned, step.index())
        if runs_along([parts.right], parts.keys, parts.depth):
            score = load(self.scores, key.index())
            more = Store(self.scores, key.index(), multiply_add(factor, left, score))
            return [clear, Loop(step, (Loop(key, (more,), self.key_bound),))]
        first = constant(0)
        total = load(self.totals, first)
        product = combine("sum", total, binary("mul", factor, left))
        body = (
            Store(self.totals, first, const(0, float32)),
            Loop(step, (Store(self.totals, first, product),)),
            Store(self.scores, key.index(), total),
        )
        return [clear, Loop(key, body, self.key_bound)]

    def multiply_values(self) -> list[Statement]:
        """Compute output = output rescaled + weights * values."""
        parts, column = self.parts, Range("column", self.parts.columns.size)
        at = column.index()
        scaled = binary("mul", load(self.output, at), load(self.scale, constant(0)))

        def added(keys: list[Index]) -> Statement:
            total = load(self.output, at)
            for key in keys:
                places = {**self.places, parts.keys: self.first_key + key, parts.columns: at}
                factor = placed(parts.factor, places)
                total = multiply_add(factor, load(self.scores, key), total)
            return Loop(column, (Store(self.output, at, total),))

        block, rest = Range("abreast", self.tall // ABREAST), Range("rest", ABREAST)
        bound = self.key_bound
        whole = None if bound is None else bound // ABREAST
        keys = [block.index() * ABREAST + number for number in range(ABREAST)]
        body: list[Statement] = [
            Loop(column, (Store(self.output, at, scaled),)),
            Loop(block, (added(keys),), whole),
        ]
        if bound is not None and whole is not None:
            # equals `whole` where the condition holds, and is inside the block in any case
            first = bound % self.tall // ABREAST * ABREAST
            loop = Loop(rest, (added([first + rest.index()]),), bound % ABREAST)
            inside = both(at_least_zero(constant(self.tall - 1) - bound), at_least_zero(bound))
            body += guarded(inside, loop)
        return body
