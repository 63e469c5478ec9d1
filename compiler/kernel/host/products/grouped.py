"""Products of which one instruction multiplies several steps of the depth and adds them to a total.

Pairs of bfloat16 (AVX-512 BF16, `vdpbf16ps`): adds a0 * b0 + a1 * b1 to each float32 total. Intel's
manual (VDPBF16PS) defines the numbers: denormal inputs and results count as zero, each pair's sum
is rounded to nearest; totals of other instructions round likewise. Sums are taken in any order, as
are all float sums.

Quads of bytes (AVX-512 VNNI, `vpdpbusd`): adds a0 * b0 + .. + a3 * b3 to each int32 total, which
wraps as all int32 sums do; a is unsigned, b signed (Intel 64 and IA-32 Architectures Software
Developer's Manual, VPDPBUSD). A signed left factor is packed as a + 128. Then 128 times the sum of
each column of the right factor is subtracted from the totals; the same instruction computes the
sums once for each packed slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ugpu.compiler.dtype import bfloat16, float32, int8, int32, uint8
from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    value,
)
from ugpu.compiler.kernel.host.nest import Axis, Panel
from ugpu.compiler.kernel.host.products.packing import PAIR, QUAD, Packed
from ugpu.compiler.kernel.ir import Loop, Statement
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

LANES = 16  # totals of a vector
OFFSET = 128  # added to make a signed byte unsigned


def is_plain(parts: Contraction, rows: Axis, columns: Axis) -> bool:
    """Return whether each side is one range."""
    return rows.unit == columns.unit == 1 and len(parts.all_depths) == 1


def steps_together(parts: Contraction, depth: Axis, plain: bool, target: TargetSpec) -> int:
    """Return how many steps of a product this processor multiplies at once. plain: each side is one
    range."""
    sides, features = (parts.left, parts.right), target.features.split(",")
    if target.vector_bytes != 64 or not all(side.op == "cast" for side in sides):
        return 1
    left, right = (side.sources[0].dtype for side in sides)
    if left is right is bfloat16 and parts.reduce.dtype is float32 and depth.main.size >= PAIR:
        return PAIR if "+avx512bf16" in features else 1
    bytes_ = left in (int8, uint8) and right is int8 and parts.reduce.dtype is int32
    whole = plain and set(parts.reduce.arg[1]) == set(depth.ranges)
    return QUAD if bytes_ and whole and "+avx512vnni" in features else 1


def narrowed(parts: Contraction) -> Contraction:
    """Return the product with the factors as they are before they are widened."""
    return replace(parts, left=parts.left.sources[0], right=parts.right.sources[0])


def unsigned(factor: Value) -> Value:
    """Return a left factor of quads as an unsigned one."""
    if factor.dtype is not int8:
        return factor
    return cast(binary("xor", factor, const(-OFFSET, int8)), uint8)


def repeated(element: Value, group: int) -> Value:
    """Return a pair or a quad of the left factor in all lanes, or an element."""
    if group == 1:
        return element
    mask = tuple(lane % group for lane in range(LANES * group))
    return value("shuffle", element.dtype, (element, element), mask, LANES * group)


def product_of(group: int) -> Callable[[Value, Value, Value], Value]:
    """Return what adds the products of a group of steps to a vector of totals."""
    return {1: multiply_add, PAIR: dot2, QUAD: dot4}[group]


def dot2(left: Value, right: Value, total: Value) -> Value:
    """Return float32 totals with the products of pairs of bfloat16 added."""
    return value("dot2", float32, (left, right, total), lanes=LANES)


def dot4(left: Value, right: Value, total: Value) -> Value:
    """Return int32 totals with the products of quads of bytes added."""
    return value("dot4", int32, (left, right, total), lanes=LANES)


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
        ones = broadcast(const(OFFSET, uint8), LANES * QUAD)

        right = [
            self.right.load(panel.index(), quad.index(), vector * LANES, LANES * QUAD)
            for vector in range(self.vectors)
        ]
        sums = Panel(self.registers, 1, self.vectors)
        body = sums.computed([ones], right, lambda inner: Loop(quad, inner, self.bound), None, dot4)
        body += sums.stored(self.sums, lambda _, vector: self.place(panel.index(), vector))
        return Loop(panel, tuple(body))

    def place(self, panel: Index, vector: int) -> Index:
        return (panel * self.vectors + vector) * LANES

    def taken_off(self, start: Value, panel: Index, vector: int) -> Value:
        return binary("sub", start, load(self.sums, self.place(panel, vector), lanes=LANES))
