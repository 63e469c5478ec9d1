"""Attention on the matrix units of a GPU: both products of 16-bit floats, summed in float32.

A wave has as many rows as its unit; their part of the left factor stays in its registers. The
group's waves copy a tile of keys and of values into local memory. Each wave multiplies its rows
with the keys, turns the scores into weights in place, and multiplies those with the values:

    for tile of keys:
        keys[key][depth], values[column][key] = ...; barrier
        scores = left x keys                         fragments of totals
        largest, scale                               lanes that share a row exchange maxima
        output = output * scale + weights x values   weights are a left fragment
        barrier

A lane holds some columns of a row of the scores. The assignment of keys to columns is free. It is
chosen so that a lane's scores are exactly the steps that it must hold of the left fragment for the
second product; where every part of a wave holds all steps (gfx11), they are exchanged once. With
two buffers, the next tile is on its way to registers while one is computed, and is stored in the
other buffer afterwards: one barrier a tile. (T. Dao, "FlashAttention-2", arXiv:2307.08691.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import replace
from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    cast,
    const,
    gate,
    load,
    substitute,
    value,
)
from ugpu.compiler.kernel.attention.running import Running, placed
from ugpu.compiler.kernel.attention.tiles import VECTOR, deep_size, vector_of, wide_size
from ugpu.compiler.kernel.attention.visible import bounded, loop_over, seen
from ugpu.compiler.kernel.choices import Attention
from ugpu.compiler.kernel.gpu.cut import Factor, cleared, waiting
from ugpu.compiler.kernel.gpu.fragments import operand, product
from ugpu.compiler.kernel.gpu.join import exchange, join_lanes
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
from ugpu.compiler.kernel.matrix_units import MatrixUnit
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.kernel.shared.spread import lanes_of, pack, store
from ugpu.compiler.pattern.online import Online, widened

TURNED = 4  # keys that a thread joins if the memory of values runs across
KEPT = 128  # maximum depth at which a lane keeps its row
STORED = 8  # columns that a lane stores at once


def by_matrix_units(
    computation: Computation,
    parts: Online,
    unit: MatrixUnit,
    wanted: Attention,
) -> Kernel:
    """Return the kernel; its grid is (row blocks, batch, column blocks)."""
    return _OnUnits(computation, parts, unit, wanted).kernel()


class _OnUnits:
    """Sizes and memories of one kernel."""

    def __init__(
        self, computation: Computation, parts: Online, unit: MatrixUnit, wanted: Attention
    ) -> None:
        self.computation, self.parts, self.unit = computation, parts, unit
        self.block, self.tall = wanted.block, wanted.keys
        self.thread = thread_range(self.block).index()
        self.lane = self.thread % unit.wave
        self.position, self.part = unit.position(self.lane), unit.part(self.lane)
        rows = self.group_rows = self.block // unit.wave * unit.rows
        groups = -(-parts.rows.size // rows)
        self.rows = Range("rows_wide", groups * rows)
        self.first_row = group_range(0, groups).index() * rows
        first = self.first_row + self.thread // unit.wave * unit.rows
        self.row = [first + self.position + block * unit.positions
                    for block in range(unit.row_blocks)]  # fmt: skip
        self.deep, self.wide = deep_size(parts, unit), wide_size(parts, unit)
        blocks = -(-parts.columns.size // self.wide)
        self.first_column = group_range(2, blocks).index() * self.wide
        self.all_columns = blocks * self.wide
        self.grid = (groups, elements(parts.batch), blocks)
        self.places = groups_at(parts.batch, 1)
        self.tiles = -(-parts.keys.size // self.tall)
        self.all_keys = self.tiles * self.tall
        # fragments of scores whose keys make one left fragment of the second product
        self.joined = unit.depth // unit.columns
        run = unit.run
        self.stored = max(1, STORED // run)
        while self.wide // unit.columns % self.stored:
            self.stored //= 2
        kind, lanes = unit.element, unit.total_lanes
        self.buffers = wanted.buffers
        self.of_keys = self.tall * (self.deep + VECTOR)  # elements of a buffer
        self.of_values = self.wide * (self.tall + VECTOR)
        self.keys = Memory("keys", kind, self.buffers * self.of_keys, "local")
        self.values = Memory("values", kind, self.buffers * self.of_values, "local")
        self.left = Memory("left", kind, self.deep // unit.depth, "register", unit.left_lanes)
        self.keeps = self.deep <= KEPT
        self.totals = Memory("totals", float32, self.tall // unit.columns, "register", lanes)
        self.output = Memory("output", float32, self.wide // unit.columns, "register", lanes)
        self.scores = Memory("scores", float32, self.tall // unit.columns * lanes, "register")
        self.running = [Running(parts, f"_{block}") for block in range(unit.row_blocks)]

    def kernel(self) -> Kernel:
        unit, body = self.unit, cleared(self.output)
        for running in self.running:
            body += running.begin()
        if self.keeps:
            for step in range(0, self.deep, self.span):
                for turn, operand in enumerate(self.left_operands(constant(step))):
                    place = step // unit.depth + turn
                    body.append(Store(self.left, constant(place), operand))
        tile = Range("tile", self.tiles)
        start = tile.index() * self.tall
        conditions = self.seen(start)
        if self.buffers == 2 and not bounded(conditions, tile)[1]:
            body += self.overlapped(tile, conditions)
        else:
            inside = (*self.fill(start), Barrier(), *self.compute(start, constant(0)), Barrier())
            body.append(loop_over(tile, conditions, inside))
        body += self.finish()
        return kernel_over(self.computation, self.grid, self.block, body)

    def overlapped(self, tile: Range, conditions: Validity) -> list[Statement]:
        """Compute tile after tile, alternating two buffers."""
        first, this = constant(0), tile.index()
        following = (this + 1) % self.tiles * self.tall  # after the last tile, the first again
        fetch: list[Statement] = []
        keep: list[Statement] = []
        for memory, size, pieces in self.pieces(following):
            fetched, kept = waiting(pieces, memory, (constant(1) - this % 2) * size)
            fetch += fetched
            keep += kept
        body = (*fetch, *self.compute(this * self.tall, this % 2), *keep, Barrier())
        return [*self.fill(first), Barrier(), loop_over(tile, conditions, body)]

    def compute(self, start: Index, buffer: Index) -> list[Statement]:
        """Process the keys and values of a buffer."""
        return [
            *cleared(self.totals),
            *self.multiply_keys(buffer * self.of_keys),
            *self.weigh(start),
            *self.multiply_values(buffer * self.of_values),
        ]

    def seen(self, start: Index) -> Validity:
        """Return conditions that hold if the group's rows may see one of the next keys."""
        row, key = Range("row", self.group_rows), Range("key", self.tall)
        places = {**self.places, self.parts.rows: self.first_row + row.index()}
        places[self.parts.keys] = start + key.index()
        return seen(self.parts.score, places, {row, key})

    # ---- pieces --------------------------------------------------------------------------------

    @property
    def span(self) -> int:
        """Number of steps of the depth that a wave takes at once."""
        return vector_of(self.unit) * self.unit.depth_parts

    def factor(self, side: Value, across: Range, most: int, along: Range, long: int) -> Factor:
        """Return a narrow factor over ranges of whole tiles."""
        narrow, wide = widened(placed(side.sources[0], self.places), across, most)
        narrow, deep = widened(narrow, along, long)
        return Factor(narrow, wide, deep)

    def fill(self, start: Index) -> list[Statement]:
        """Store the next keys and values in the first buffer."""
        return [
            Store(memory, at, moved)
            for memory, _, pieces in self.pieces(start)
            for at, moved in pieces
        ]

    def pieces(self, start: Index) -> list[tuple[Memory, int, list[tuple[Index, Value]]]]:
        """Return the part of the next keys, depth fastest, and values, keys fastest, that this
        thread copies: for each memory the size of its buffer, and places in it with their
        vectors."""
        parts = self.parts
        keys = self.factor(parts.right, parts.keys, self.all_keys, parts.depth, self.deep)
        of_keys: list[tuple[Index, Value]] = []
        units = self.tall * self.deep // VECTOR
        for number in self.shares(units):
            row, step = number // (self.deep // VECTOR), number % (self.deep // VECTOR) * VECTOR
            taken = keys.along(start + row, step, VECTOR)
            of_keys.append((row * (self.deep + VECTOR) + step, pack(taken)))
        factor = self.factor(
            parts.factor, parts.columns, self.all_columns, parts.keys, self.all_keys
        )
        of_values: list[tuple[Index, Value]] = []
        units = self.wide * self.tall // (VECTOR * TURNED)
        for number in self.shares(units):
            column, key = number % (self.wide // VECTOR) * VECTOR, number // (self.wide // VECTOR)
            place = start + key * TURNED, self.first_column + column
            for i, vector in enumerate(factor.turned(*place, TURNED, VECTOR)):
                of_values.append(((column + i) * (self.tall + VECTOR) + key * TURNED, vector))
        return [(self.keys, self.of_keys, of_keys), (self.values, self.of_values, of_values)]

    def shares(self, units: int) -> list[Index]:
        """Return a thread's pieces of work; with fewer pieces than threads, some are done twice."""
        turns = -(-units // self.block)
        return [(self.thread + turn * self.block) % units for turn in range(turns)]

    def left_operands(self, step: Index) -> list[Value]:
        """Return the wave's left fragments for `span` steps of the depth."""
        parts, unit, count = self.parts, self.unit, vector_of(self.unit)
        left = self.factor(parts.left, parts.rows, self.rows.size, parts.depth, self.deep)
        at = unit.depth_part(self.lane) * count + step
        blocks = [left.along(row, at, count) for row in self.row]
        starts = range(0, count, unit.held)
        return [operand(unit, [b[at : at + unit.held] for b in blocks]) for at in starts]

    def multiply_keys(self, base: Index) -> list[Statement]:
        """Compute totals += left x keys, from the buffer that starts at `base`."""
        if self.keeps:
            statements: list[Statement] = []
            for step in range(0, self.deep, self.span):
                place = step // self.unit.depth
                turns = range(vector_of(self.unit) // self.unit.held)
                lefts = [
                    load(self.left, constant(place + t), lanes=self.unit.left_lanes) for t in turns
                ]
                statements += self.keys_step(constant(step), lefts, base)
            return statements
        counter = Range("d", self.deep // self.span)
        at = counter.index() * self.span
        return [Loop(counter, tuple(self.keys_step(at, self.left_operands(at), base)))]

    def keys_step(self, step: Index, lefts: list[Value], base: Index) -> list[Statement]:
        unit, count = self.unit, vector_of(self.unit)
        at = unit.depth_part(self.lane) * count + step
        statements: list[Statement] = []
        for fragment in range(self.totals.count):
            row = unit.dealt(fragment, *unit.column_part(self.position), self.joined)
            vector = load(self.keys, base + row * (self.deep + VECTOR) + at, lanes=count)
            for turn, left in enumerate(lefts):
                right = pack(lanes_of(vector, turn * unit.held, unit.held))
                statements.append(product(unit, self.totals, fragment, left, right))
        return statements

    def weigh(self, start: Index) -> list[Statement]:
        """Turn scores into weights; rescale the running sums and the output."""
        parts, unit, lanes = self.parts, self.unit, self.unit.total_lanes
        statements: list[Statement] = []
        # stands for the product of a row and a key while their ranges are widened
        inner = load(Memory("inner", float32, 1, "register"), constant(0))
        score, rows, keys = self.by_key(replace(parts.score, parts.inner, inner))
        extras = {extra: self.by_key(extra)[0] for _, extra in parts.sums if extra is not None}

        def factor(places: Sequence[Mapping[Range, Index]], extra: Value, number: int) -> Value:
            return substitute(extras[extra], places[number])

        for block, running in enumerate(self.running):
            scores: list[Value] = []
            places: list[Mapping[Range, Index]] = []
            for fragment in range(self.totals.count):
                total = load(self.totals, constant(fragment), lanes=lanes)
                for place, here in enumerate(lanes_of(total, block * unit.run, unit.run)):
                    at = constant(fragment * lanes + block * unit.run + place)
                    key = start + unit.dealt(fragment, self.part, constant(place), self.joined)
                    places.append({rows: self.row[block], keys: key})
                    made = substitute(replace(score, inner, here), places[-1])
                    exists = at_least_zero(constant(parts.keys.size - 1) - key)
                    made = gate(exists, made, const(float("-inf"), float32))
                    statements.append(Store(self.scores, at, made))
                    scores.append(load(self.scores, at))
            statements += running.raised(scores, *self.join_row("max", running.largest))
            for each in scores:
                statements.append(Store(self.scores, each.arg.index, running.weight(each)))
            statements += running.added(scores, partial(factor, places))
        return statements

    def by_key(self, root: Value) -> tuple[Value, Range, Range]:
        """Return a value of a row and a key, either possibly beyond the last, and their ranges."""
        root, rows = widened(placed(root, self.places), self.parts.rows, self.rows.size)
        root, keys = widened(root, self.parts.keys, self.all_keys)
        return root, rows, keys

    def join_row(self, operation: str, total: Memory) -> list[Statement]:
        """Join the totals of the lanes that share rows."""
        unit = self.unit
        if unit.parts_first:
            return join_lanes(operation, total, unit.parts)
        return join_lanes(operation, total, unit.wave, unit.positions)

    def multiply_values(self, base: Index) -> list[Statement]:
        """Compute output = output rescaled + weights x values, from the buffer at `base`."""
        unit, lanes = self.unit, self.unit.total_lanes
        scales = [load(running.scale, constant(0)) for running in self.running]
        scale = pack([scales[lane // unit.run] for lane in range(lanes)])
        statements: list[Statement] = []
        for column in range(self.output.count):
            old = load(self.output, constant(column), lanes=lanes)
            made = value("mul", float32, (old, scale), lanes=lanes)
            statements.append(Store(self.output, constant(column), made))
        for group in range(self.tall // unit.depth):
            left = self.weights(group)
            at = unit.depth_part(self.lane) * unit.held + group * unit.depth
            for column in range(self.output.count):
                row = unit.dealt(column, *unit.column_part(self.position), self.stored)
                right = load(self.values, base + row * (self.tall + VECTOR) + at, lanes=unit.held)
                statements.append(product(unit, self.output, column, left, right))
        return statements

    def weights(self, group: int) -> Value:
        """Return the left fragment of `depth` keys."""
        unit = self.unit
        blocks = []
        for block in range(unit.row_blocks):
            mine = []
            for fragment in range(group * self.joined, (group + 1) * self.joined):
                for place in range(unit.run):
                    at = fragment * unit.total_lanes + block * unit.run + place
                    mine.append(cast(load(self.scores, constant(at)), unit.element))
            if unit.depth_parts == 1:
                mine = self.all_parts(mine)
            blocks.append(mine)
        return operand(unit, blocks)

    def all_parts(self, mine: list[Value]) -> list[Value]:
        """Return the steps of both parts in order, from the part's own steps."""
        assert self.unit.parts == 2
        first = at_least_zero(-self.part)
        others = [exchange(each, self.unit.positions) for each in mine]
        pairs = list(zip(mine, others, strict=True))
        return [
            *(gate(first, own, other) for own, other in pairs),
            *(gate(first, other, own) for own, other in pairs),
        ]

    def finish(self) -> list[Statement]:
        """Store the output's elements that are in range."""
        parts, unit = self.parts, self.unit
        statements: list[Statement] = []
        for running in self.running:
            for memory in running.sums:
                statements += self.join_row("sum", memory)
        run = unit.run * self.stored
        width = run
        while parts.columns.size % width:
            width //= 2
        lanes = unit.total_lanes
        for block in range(unit.row_blocks):
            in_rows = at_least_zero(constant(parts.rows.size - 1) - self.row[block])
            for fragment in range(0, self.output.count, self.stored):
                taken: list[Value] = []
                for number in range(fragment, fragment + self.stored):
                    total = load(self.output, constant(number), lanes=lanes)
                    taken += lanes_of(total, block * unit.run, unit.run)
                base = self.first_column + (self.part * run + fragment * unit.columns)
                for start in range(0, run, width):
                    several = taken[start : start + width]
                    statements += self.stored_run(several, base + start, block, in_rows)
        return statements

    def stored_run(
        self, taken: list[Value], base: Index, block: int, in_rows: Validity
    ) -> Sequence[Statement]:
        """Store neighbouring columns of a row."""
        computation, parts, width = self.computation, self.parts, len(taken)
        places = {**self.places, parts.rows: self.row[block]}
        several: dict[Memory, list[Value]] = {memory: [] for memory in computation.outputs}
        for i, each in enumerate(taken):
            here = {**places, parts.columns: base + i}
            root = substitute(self.running[block].finished(each), here)
            for memory, result in computation.results(root):
                several[memory].append(result)
        stores: list[Statement] = []
        for memory, values in several.items():
            position = computation.position
            if position.coefficient(parts.columns) == 1:
                at = position.substitute({**places, parts.columns: base})
                stores.append(store(memory, at, values))
                continue
            for i, each in enumerate(values):
                at = position.substitute({**places, parts.columns: base + i})
                stores.append(Store(memory, at, each))
        inside = both(in_rows, at_least_zero(constant(parts.columns.size - width) - base))
        return guarded(inside, *stores)
