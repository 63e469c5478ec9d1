"""Products of bytes on processors that multiply four of them at once (AVX-512 VNNI, `vpdpbusd`).

An instruction adds a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3 to each int32 total, which wraps as all
int32 sums do; a is unsigned, b signed (Intel 64 and IA-32 Architectures Software Developer's
Manual, VPDPBUSD). Both factors are packed four steps of the depth side by side:

    left     [element][step]                memory along the depth or not
    right    [panel][quad][element][4]      zeros beyond the depth

A signed left factor is packed as a + 128. Then 128 times the sum of each column of the right factor
is subtracted from the totals; the same instruction computes the sums once for each packed slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ugpu.compiler.dtype import int8, int32, uint8
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    cast,
    const,
    load,
    substitute,
    value,
)
from ugpu.compiler.kernel.host.products.axis import Axis, Part
from ugpu.compiler.kernel.host.products.packing import Packed, Packing, along_depth, limit, round_up
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

QUAD = 4
LANES = 16  # totals of a vector
OFFSET = 128  # added to make a signed byte unsigned


def in_quads(parts: Contraction, depth: Axis, plain: bool, target: TargetSpec) -> bool:
    """Return whether a product is one of bytes, the right ones signed, that this processor
    multiplies four at a time. plain: each side is one range."""
    known = "+avx512vnni" in target.features.split(",") and target.vector_bytes == 64
    sides = (parts.left, parts.right)
    if not known or not plain or not all(side.op == "cast" for side in sides):
        return False
    left, right = (side.sources[0].dtype for side in sides)
    bytes_ = left in (int8, uint8) and right is int8
    return bytes_ and parts.reduce.dtype is int32 and set(parts.reduce.arg[1]) == set(depth.ranges)


@dataclass(frozen=True)
class QuadPacking:
    """Packs four steps side by side. depth: a multiple of four steps, `total` in all, with the last
    slice starting at `last`."""

    depth: Part
    total: int
    last: int
    batch: Mapping[Range, Index]

    def left(self, factor: Value, across: Part, height: int) -> Packed:
        if factor.dtype is int8:
            factor = cast(binary("xor", factor, const(-OFFSET, int8)), uint8)
        packed = Packing(uint8, LANES, self.depth, self.batch).rows("left", factor, across, height)
        return replace(packed, step_step=QUAD)

    def right(self, factor: Value, across: Part, width: int) -> Packed:
        count, quads = round_up(across.whole, width) // width, self.depth.whole // QUAD
        memory = Memory("right", int8, count * quads * width * QUAD, "local")
        panel, quad = Range("right_panel", count), Range("right_quad", quads)
        element = Range("right_element", width)
        first = panel.index() * width
        bound = limit(across, first, count * width)
        places = across.places(first + element.index())

        def stores(at: Index, present: int) -> tuple[Statement, ...]:
            to = (panel.index() * (quads * width) + at * width + element.index()) * QUAD
            taken = []
            for place in range(QUAD):
                where = {**self.batch, **places, **self.depth.places(at * QUAD + place)}
                here = substitute(factor, where) if place < present else const(0, int8)
                taken.append(Store(memory, to + place, here))
            return tuple(taken)

        whole_bound = self.depth.bound()
        bound_quads = None if whole_bound is None else whole_bound // QUAD
        if self.total % QUAD and whole_bound is None:
            bound_quads = constant(self.total // QUAD)
        body = (Loop(element, stores(quad.index(), QUAD), bound),)
        if along_depth(factor, across, self.depth):  # a few columns at a time, each along memory
            whole: Statement = Loop(panel, (Loop(quad, body, bound_quads),))
        else:
            whole = Loop(quad, (Loop(panel, body),), bound_quads)
        statements: tuple[Statement, ...] = (whole,)
        if self.total % QUAD:
            at = constant((self.total - self.last) // QUAD)
            end = Loop(panel, (Loop(element, stores(at, self.total % QUAD), bound),))
            condition = self.depth.start - self.last
            statements += (end,) if condition.low >= 0 else (If((condition,), (end,)),)
        return Packed(memory, (memory,), statements, quads * width * QUAD, width * QUAD, QUAD)


@dataclass(frozen=True)
class Correction:
    """Values that a signed left factor, packed as unsigned, adds to the totals of each column."""

    right: Packed
    panels: int
    vectors: int
    quads: int
    bound: Index | None

    @property
    def sums(self) -> Memory:
        count = self.panels * self.vectors * LANES
        return Memory("excess", int32, count, "local")

    @property
    def registers(self) -> Memory:
        return Memory("excesses", int32, self.vectors, "register", LANES)

    def statement(self) -> Statement:
        """Return the statement that computes them for the packed slice."""
        panel, quad = Range("excess_panel", self.panels), Range("excess_quad", self.quads)
        zero = value("broadcast", int32, (const(0, int32),), lanes=LANES)
        ones = value("broadcast", uint8, (const(OFFSET, uint8),), lanes=LANES * QUAD)
        before, inner, after = [], [], []
        for vector in range(self.vectors):
            at = constant(vector)
            total = load(self.registers, at, lanes=LANES)
            right = self.right.load(panel.index(), quad.index(), vector * LANES, LANES * QUAD)
            dot = value("dot4", int32, (ones, right, total), lanes=LANES)
            before.append(Store(self.registers, at, zero))
            inner.append(Store(self.registers, at, dot))
            after.append(Store(self.sums, self.place(panel.index(), vector), total))
        return Loop(panel, (*before, Loop(quad, tuple(inner), self.bound), *after))

    def place(self, panel: Index, vector: int) -> Index:
        return (panel * self.vectors + vector) * LANES

    def taken_off(self, start: Value, panel: Index, vector: int) -> Value:
        return binary("sub", start, load(self.sums, self.place(panel, vector), lanes=LANES))
