"""Attention on a GPU with a group of threads per row, for few rows, as when a model decodes.

The threads share the keys: several lanes per key multiply the key's row with the left factor's and
exchange their partial sums, and the group's running maximum is updated. Then they share the columns
and the keys: each thread has a few columns, and adds up every n-th key's values. The partial
outputs are joined once, after the last key. No score leaves the group; local memory has only the
weights of the current keys.

    for tile of keys:
        scores = left * keys                    some lanes a key
        largest, scale                          joined over the group
        weights[key] = exp(score - largest)     in local memory; barrier
        mine = mine * scale + weights * values  a thread: some columns, every n-th key
    output = sum of mine over the threads of the columns
"""

from __future__ import annotations

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, binary, const, gate, load, substitute
from ugpu.compiler.kernel.attention.running import Running, placed
from ugpu.compiler.kernel.attention.visible import loop_over, seen
from ugpu.compiler.kernel.choices import Attention
from ugpu.compiler.kernel.gpu.cut import cleared
from ugpu.compiler.kernel.gpu.join import join, join_lanes, waves_memory
from ugpu.compiler.kernel.ir import (
    Barrier,
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

TOGETHER = 4  # neighbouring elements of the depth, or columns, that a thread takes at once
HELD = 64  # elements of the left factor's row that a thread keeps


def by_group(
    computation: Computation, parts: Online, target: TargetSpec, wanted: Attention
) -> Kernel:
    """Return the kernel; its grid is (rows, batch, column blocks)."""
    return _ByGroup(computation, parts, target, wanted).kernel()


def power_above(number: int) -> int:
    """Return the lowest power of two that is >= number."""
    return 1 << max(0, number - 1).bit_length()


def column_blocks(columns: int, block: int) -> int:
    """Return the number of groups that share the columns of a row."""
    wide = TOGETHER if columns % TOGETHER == 0 else 1
    across = min(block, power_above(-(-columns // wide)))
    return -(-columns // (across * wide))


class _ByGroup:
    """Assignment of work to threads in one kernel."""

    def __init__(
        self, computation: Computation, parts: Online, target: TargetSpec, wanted: Attention
    ) -> None:
        self.computation = computation
        self.parts = parts
        self.wave, self.block, self.lanes = target.wave_size, wanted.block, wanted.lanes
        self.thread = thread_range(self.block).index()
        # depth: a lane takes every `lanes`-th piece of `deep` elements
        self.deep = TOGETHER if parts.depth.size % TOGETHER == 0 else 1
        self.pieces = -(-parts.depth.size // (self.deep * self.lanes))
        self.lane = self.thread % self.lanes
        # keys: each set of `lanes` threads takes `turns` of them, `beside` apart
        self.beside = self.block // self.lanes
        self.turns = wanted.keys
        self.tile = self.beside * self.turns
        self.tiles = -(-parts.keys.size // self.tile)
        self.keys = Range("keys_wide", self.tiles * self.tile)
        # columns: a thread has `wide` of them; `strands` threads share these
        self.wide = TOGETHER if parts.columns.size % TOGETHER == 0 else 1
        self.across = min(self.block, power_above(-(-parts.columns.size // self.wide)))
        self.share = self.across * self.wide
        self.strands = self.block // self.across
        blocks = -(-parts.columns.size // self.share)
        self.grid = (parts.rows.size, elements(parts.batch), blocks)
        self.all_columns = blocks * self.share
        first = group_range(2, blocks).index() * self.share
        self.column = first + self.thread % self.across * self.wide
        row = group_range(0, self.grid[0]).index()
        self.places = {parts.rows: row, **groups_at(parts.batch, 1)}
        self.keeps = self.pieces * self.deep <= HELD
        self.score = Memory("score", float32, 1, "register")
        self.left = Memory("left", float32, self.pieces * self.deep, "register")
        self.scores = Memory("scores", float32, self.turns, "register")
        self.mine = Memory("mine", float32, self.wide, "register")
        self.running = Running(parts)
        self.rounds = -(-self.tile // self.strands)
        self.weights = Memory("weights", float32, self.rounds * self.strands, "local")
        self.output = Memory("output", float32, self.block * self.wide, "local")

    def kernel(self) -> Kernel:
        body = [*self.running.begin(), *cleared(self.mine)]
        if self.keeps:
            for piece in range(self.pieces):
                for i, element in enumerate(self.taken_left(constant(piece))):
                    body.append(Store(self.left, constant(piece * self.deep + i), element))
        tile = Range("tile", self.tiles)
        start = tile.index() * self.tile
        each = Range("key", self.tile)
        places = {**self.places, self.parts.keys: start + each.index()}
        conditions = seen(self.parts.score, places, {each})
        inside = (*self.weigh(start), Barrier(), *self.multiply(start))
        body.append(loop_over(tile, conditions, inside))
        body += self.finish()
        return kernel_over(self.computation, self.grid, self.block, body)

    def joined(self, operation: str, total: Memory) -> list[Statement]:
        """Join the totals of all threads."""
        shared = waves_memory(f"shared_{total.name}", total, self.block, self.wave)
        return join(operation, total, self.block, self.block, self.wave, shared)

    def deep_elements(self, root: Value, piece: Index) -> list[Value]:
        """Return a factor's elements of this thread's piece of the depth; zero beyond the end."""
        depth = self.parts.depth
        root, wide = widened(root, depth, self.pieces * self.deep * self.lanes)
        return spread(root, wide, (piece * self.lanes + self.lane) * self.deep, self.deep)

    def taken_left(self, piece: Index) -> list[Value]:
        return self.deep_elements(placed(self.parts.left, self.places), piece)

    def at_key(self, root: Value, key: Index) -> Value:
        """Return a value of a key; zero for a key beyond the last."""
        root, wide = widened(placed(root, self.places), self.parts.keys, self.keys.size)
        return substitute(root, {wide: key})

    def weigh(self, start: Index) -> list[Statement]:
        """Store the tile's weights in local memory; update the maximum and the sums."""
        running = self.running
        statements: list[Statement] = []
        places = [self.thread // self.lanes + turn * self.beside for turn in range(self.turns)]
        for turn, place in enumerate(places):
            statements += self.score_of(turn, start + place)
        scores = [load(self.scores, constant(turn)) for turn in range(self.turns)]
        statements += running.raised(scores, *self.joined("max", running.largest))
        first = at_least_zero(-self.lane)
        for turn, (place, score) in enumerate(zip(places, scores, strict=True)):
            statements.append(Store(self.scores, constant(turn), running.weight(score)))
            statements += guarded(first, Store(self.weights, place, score))

        def factor(extra: Value, turn: int) -> Value:
            return self.at_key(extra, start + places[turn])

        return [*statements, *running.added(scores, factor)]

    def score_of(self, turn: int, key: Index) -> list[Statement]:
        """Compute a key's score, equal in all its lanes; minus infinity beyond the last key."""
        parts, zero = self.parts, constant(0)
        total = load(self.score, zero)
        step = Range("piece", self.pieces)
        right = self.at_key(parts.right, key)

        def products(piece: Index) -> Statement:
            if self.keeps:
                at = piece.constant * self.deep
                lefts = [load(self.left, constant(at + i)) for i in range(self.deep)]
            else:
                lefts = self.taken_left(piece)
            joined = total
            for left, each in zip(lefts, self.deep_elements(right, piece), strict=True):
                joined = multiply_add(left, each, joined)
            return Store(self.score, zero, joined)

        body: list[Statement] = [Store(self.score, zero, const(0, float32))]
        if self.keeps:
            body += [products(constant(piece)) for piece in range(self.pieces)]
        else:
            body.append(Loop(step, (products(step.index()),)))
        body += join_lanes("sum", self.score, self.lanes)
        score = self.at_key(replace(parts.score, parts.inner, total), key)
        exists = at_least_zero(constant(parts.keys.size - 1) - key)
        score = gate(exists, score, const(float("-inf"), float32))
        return [*body, Store(self.scores, constant(turn), score)]

    def multiply(self, start: Index) -> list[Statement]:
        """Compute mine = mine rescaled + weights * values."""
        parts, scale = self.parts, load(self.running.scale, constant(0))
        mine = [load(self.mine, constant(i)) for i in range(self.wide)]
        statements: list[Statement] = [
            Store(self.mine, constant(i), binary("mul", each, scale)) for i, each in enumerate(mine)
        ]
        step = Range("k", self.rounds)
        place = step.index() * self.strands + self.thread // self.across
        inside = at_least_zero(constant(self.tile - 1) - place)
        key = start + place
        factor, wide = widened(self.at_key(parts.factor, key), parts.columns, self.all_columns)
        exists = both(inside, at_least_zero(constant(parts.keys.size - 1) - key))
        found = spread(factor, wide, self.column, self.wide)
        weight = load(self.weights, place)
        added = (
            Store(self.mine, constant(i), multiply_add(weight, each, mine[i]))
            for i, each in enumerate(found)
        )
        return [*statements, Loop(step, guarded(exists, *added))]

    def finish(self) -> list[Statement]:
        """Store the output's elements."""
        parts, zero = self.parts, constant(0)
        statements: list[Statement] = []
        for memory in self.running.sums:
            # all lanes of a key have added its weight
            share = const(1 / self.lanes, float32)
            statements.append(Store(memory, zero, binary("mul", load(memory, zero), share)))
            statements += self.joined("sum", memory)
        for i in range(self.wide):
            at = self.thread + i * self.block
            statements.append(Store(self.output, at, load(self.mine, constant(i))))
        statements.append(Barrier())
        mine = [load(self.mine, constant(i)) for i in range(self.wide)]
        strand = Range("strand", self.strands - 1)
        column = self.thread % self.across
        joined: list[Statement] = []
        for i in range(self.wide):
            other = column + (strand.index() + 1) * self.across + i * self.block
            joined.append(
                Store(self.mine, constant(i), binary("add", mine[i], load(self.output, other)))
            )
        results: list[Statement] = [Loop(strand, tuple(joined))] if self.strands > 1 else []
        for i in range(self.wide):
            places = {**self.places, parts.columns: self.column + i}
            results += stores(self.computation, self.running.finished(mine[i]), places)
        exists = both(
            at_least_zero(constant(self.across - 1) - self.thread),
            at_least_zero(constant(parts.columns.size - self.wide) - self.column),
        )
        return [*statements, *guarded(exists, *results)]
