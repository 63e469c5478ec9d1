"""Products of bfloat16 on processors that multiply pairs (AVX-512 BF16, `vdpbf16ps`).

An instruction adds a0 * b0 + a1 * b1 to each float32 total, so both factors are packed two steps of
the depth side by side:

    left rows       [element][step]                 memory along the depth: has pairs already
    left panels     [panel][pair][element][2]       otherwise
    right panels    [panel][pair][element][2]
    right, turned   [panel][pair][element][2]       memory along the depth: pairs of steps are
                                                    transposed in registers like 32-bit elements
    both, wide      [pair][element][2]              several ranges walked as one: a pair is two
                                                    steps of the depth's main range

With an odd depth the last pair's second half is zero. Numbers: Intel's manual (VDPBF16PS) defines
them: denormal inputs and results count as zero, each pair's sum is rounded to nearest; totals of
other instructions round likewise. Sums are taken in any order, as are all float sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ugpu.compiler.dtype import bfloat16, float32
from ugpu.compiler.expression.algebra import Index, Range, constant, flatten
from ugpu.compiler.expression.value import Memory, Value, const, load, substitute
from ugpu.compiler.kernel.host.products.axis import Axis, Part, Walk
from ugpu.compiler.kernel.host.products.packing import (
    Packed,
    Packing,
    along_depth,
    limit,
    round_up,
    transpose,
)
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

PAIR = 2


def is_plain(parts: Contraction, rows: Axis, columns: Axis) -> bool:
    """Return whether each side is one range."""
    return rows.unit == columns.unit == 1 and len(parts.all_depths) == 1


def in_pairs(parts: Contraction, depth: Axis, target: TargetSpec) -> bool:
    """Return whether a product is one of bfloat16 values that this processor multiplies in
    pairs."""
    known = "+avx512bf16" in target.features.split(",") and target.vector_bytes == 64
    sides = (parts.left, parts.right)
    narrow = all(side.op == "cast" and side.sources[0].dtype is bfloat16 for side in sides)
    return known and narrow and depth.main.size >= PAIR and parts.reduce.dtype is float32


def narrowed(parts: Contraction) -> Contraction:
    """Return the product with the factors as they are before they are widened."""
    return replace(parts, left=parts.left.sources[0], right=parts.right.sources[0])


@dataclass(frozen=True)
class PairPacking:
    """Packs two steps side by side. lanes: float32 totals of a vector; depth: an even number of
    steps of its main range, `total` in all, with the last slice starting at `last`; plain: each
    side is one range."""

    lanes: int
    depth: Part
    total: int
    last: int
    batch: Mapping[Range, Index]
    plain: bool = True

    @property
    def whole_pairs(self) -> Index | None:
        """Return the number of complete pairs in a slice."""
        bound = self.depth.bound()
        return None if bound is None else bound // PAIR

    def left(self, factor: Value, across: Part, height: int) -> Packed:
        if not self.plain:
            return self.wide("left", factor, across, height)
        if not along_depth(factor, across, self.depth):
            return self.panels("left", factor, across, height)
        plain = Packing(bfloat16, self.lanes, self.depth, self.batch)
        packed = plain.rows("left", factor, across, height)
        pitch = packed.element_step
        row = Range("left_end", round_up(across.whole, height))
        end = row.index() * pitch + (self.total - self.last)
        zero = Loop(row, (Store(packed.memory, end, const(0, bfloat16)),))
        statements = (*packed.statements, *self.at_odd_end(zero))
        return replace(packed, statements=statements, step_step=PAIR)

    def right(self, factor: Value, across: Part, width: int) -> Packed:
        if not self.plain:
            return self.wide("right", factor, across, width)
        if along_depth(factor, across, self.depth):
            return self.turned("right", factor, across, width)
        return self.panels("right", factor, across, width)

    def panels(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        count, pairs = round_up(across.whole, width) // width, self.depth.whole // PAIR
        memory = Memory(name, bfloat16, count * pairs * width * PAIR, "local")
        panel, pair = Range(name + "_panel", count), Range(name + "_pair", pairs)
        element = Range(name + "_element", width)
        first = panel.index() * width
        bound = limit(across, first, count * width)
        places = across.places(first + element.index())

        def at(step_pair: Index, half: int) -> Index:
            here = panel.index() * (pairs * width) + step_pair * width + element.index()
            return here * PAIR + half

        def element_of(step: Index) -> Value:
            return substitute(factor, {**self.batch, **places, **self.depth.places(step)})

        halves = tuple(
            Store(memory, at(pair.index(), half), element_of(pair.index() * PAIR + half))
            for half in range(PAIR)
        )
        whole = Loop(pair, (Loop(panel, (Loop(element, halves, bound),)),), self.whole_pairs)
        final = (self.total - self.last) // PAIR
        ends = (
            Store(memory, at(constant(final), 0), element_of(constant(final * PAIR))),
            Store(memory, at(constant(final), 1), const(0, bfloat16)),
        )
        odd = self.at_odd_end(Loop(panel, (Loop(element, ends, bound),)))
        statements = (whole, *odd)
        step = width * PAIR
        return Packed(memory, (memory,), statements, pairs * step, step, PAIR)

    def wide(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        pitch = Packing(bfloat16, self.lanes, self.depth, self.batch).pitch(
            round_up(across.whole, width)
        )
        depth, count = self.depth.axis, self.depth.count // PAIR
        memory = Memory(name, bfloat16, count * depth.unit * pitch * PAIR, "local")
        element = across.walk(name, factor)
        pair = Range(name + "_pair", count)
        inner = [Range(f"{name}_step{i}", r.size) for i, r in enumerate(depth.inner)]
        places = {r: counter.index() for r, counter in zip(depth.inner, inner, strict=True)}

        def stores(at_pair: Index, halves: int) -> Statement:
            """Store both halves of a pair, or the first and zeros."""
            indices = [at_pair, *(counter.index() for counter in inner)]
            step = flatten(indices, [count, *(counter.size for counter in inner)])
            at = (step * pitch + element.position) * PAIR
            body = []
            for half in range(PAIR):
                main = {depth.main: self.depth.start + at_pair * PAIR + half}
                where = {**self.batch, **element.places, **places, **main}
                here = substitute(factor, where) if half < halves else const(0, bfloat16)
                body.append(Store(memory, at + half, here))
            loop: Statement = _around(element, tuple(body))
            for counter in reversed(inner):
                loop = Loop(counter, (loop,))
            return loop

        bound = None
        if self.total % self.depth.count or self.total % PAIR:
            bound = (constant(self.total) - self.depth.start) // PAIR
        whole = Loop(pair, (stores(pair.index(), PAIR),), bound)
        final = constant((self.total - self.last) // PAIR)
        odd = self.at_odd_end(stores(final, 1)) if self.total % PAIR else ()
        step = pitch * PAIR
        return Packed(memory, (memory,), (whole, *odd), width * PAIR, step, PAIR)

    def turned(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        lanes, count = self.lanes, round_up(across.whole, width) // width
        wide = lanes * PAIR
        steps = round_up(self.depth.whole, wide)
        pitch = Packing(bfloat16, lanes, self.depth, self.batch).pitch(steps)
        memory = Memory(name, bfloat16, count * steps * width, "local")
        stage = Memory(name + "_stage", bfloat16, lanes * pitch, "local")
        panel, part = Range(name + "_panel", count), Range(name + "_part", width // lanes)
        column, step = Range(name + "_column", lanes), self.depth.walk(name + "_step", factor)
        first = panel.index() * width + part.index() * lanes
        places = {**self.batch, **across.places(first + column.index()), **step.places}
        copied = Store(stage, column.index() * pitch + step.position, substitute(factor, places))
        zero = Store(stage, column.index() * pitch + (self.total - self.last), const(0, bfloat16))
        body = (step.around(copied), *self.at_odd_end(zero))
        copy = Loop(column, body, limit(across, first, count * width))
        block = Range(name + "_block", steps // wide)
        rows = [load(stage, block.index() * wide + row * pitch, lanes=wide) for row in range(lanes)]
        to = panel.index() * (steps * width) + block.index() * (wide * width)
        to = to + part.index() * wide
        turn = tuple(
            Store(memory, to + row * (width * PAIR), vector)
            for row, vector in enumerate(transpose(rows, PAIR))
        )
        statement = Loop(panel, (Loop(part, (copy, Loop(block, turn))),))
        packed = width * PAIR
        return Packed(memory, (memory, stage), (statement,), steps * width, packed, PAIR)

    def at_odd_end(self, statement: Statement) -> tuple[Statement, ...]:
        """Return the statements for the last slice of an odd depth only."""
        if self.total % PAIR == 0:
            return ()
        condition = self.depth.start - self.last
        return (statement,) if condition.low >= 0 else (If((condition,), (statement,)),)


def _around(walk: Walk, body: tuple[Statement, ...]) -> Statement:
    """Return the loops of a walk around several statements."""
    (last, bound), outer = walk.loops[-1], walk.loops[:-1]
    loop: Statement = Loop(last, body, bound)
    for counter, limit_ in reversed(outer):
        loop = Loop(counter, (loop,), limit_)
    return loop
