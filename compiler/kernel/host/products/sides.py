"""The sides of a matrix product on the host, slices of its depth, and what its cost model needs."""

from __future__ import annotations

from math import gcd

from ugpu.compiler.expression.accumulate import replace as with_reduction
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Value, const, substitute
from ugpu.compiler.kernel.host.nest import Axis, Part, deep, joined, round_up, share
from ugpu.compiler.kernel.host.products import amx
from ugpu.compiler.kernel.host.products.grouped import is_plain, narrowed, steps_together
from ugpu.compiler.kernel.host.products.packing import along_depth, direct_height, in_lines
from ugpu.compiler.kernel.host.products.rates import rates_of, row_cost
from ugpu.compiler.kernel.host.products.tiles import (
    Problem,
    few_registers,
    slice_steps,
    vector_registers,
)
from ugpu.compiler.kernel.shared.spread import unit_stride
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

NARROW = 256  # columns up to which panels of a left factor are read few times
SIDE = 384  # elements of a side from which on one range is enough


class Sides:
    """The sides of a product and the slices of its depth, whatever its tile. group: steps of the
    depth that are multiplied at once; tiles: how, if in tile registers."""

    def __init__(self, computation: Computation, parts: Contraction, target: TargetSpec) -> None:
        self.dtype = parts.reduce.dtype
        self.lanes = max(2, target.vector_bytes // self.dtype.itemsize)
        rows, columns = joined(parts.all_rows, SIDE), joined(parts.all_columns, SIDE)
        most = slice_steps(target)
        depth = deep(parts.all_depths, most)
        self.plain = is_plain(parts, rows, columns)
        self.tiles = amx.find_tiles(parts, depth, self.plain, target)
        together = steps_together(parts, depth, self.plain, target)
        self.group = together if self.tiles is None else self.tiles.group
        self.parts = narrowed(parts) if self.group > 1 else parts
        self.sides, joint = (rows, columns), {*rows.ranges, *columns.ranges}
        self.batch = [r for r in computation.ranges if r not in joint]
        self.outer = [r for r in parts.reduce.arg[1] if r not in depth.ranges]
        main, most = depth.main.size, max(1, most * self.group // depth.unit)
        if self.tiles is not None:
            most = main if main <= self.tiles.once else self.tiles.slice
        self.mirrored = self.group == 1 and _is_symmetric(self.parts, rows, columns)
        if self.mirrored and main > most:  # a panel of each side is in the nearest cache
            most //= 3
        steps = share(main, most)
        steps = round_up(steps, self.group if self.tiles is None else self.tiles.steps)
        if depth.size % self.lanes == 0 and self.tiles is None:  # slices of whole vectors
            steps = min(main, round_up(steps, self.lanes // gcd(self.lanes, depth.unit)))
        self.slices = -(-main // steps)
        self.slice = Part(depth, Range("slice", self.slices).index() * steps, steps)
        self.once = self.slices == 1 and not self.outer
        # whether the left factor comes from beyond the second-level cache, a row in order; panels
        # of few registers do not prefetch it, but read it packed if they are many
        size, second = rows.size * depth.size * self.dtype.itemsize, target.caches.second
        few = few_registers(target)
        far = size > second // 16 and not few
        self.far = far and along_depth(self.parts.left, rows.whole, self.slice)
        near = second // 4 if columns.size <= NARROW else 0
        # whether panels prefetch the next slice: of a symmetric product, which multiplies it least
        right = self.parts.right
        self.soon = (
            self.mirrored and self.slices > 1 and in_lines(right, columns, self.slice)
            and right.arg.memory.count * self.dtype.itemsize > second // 2
        )  # fmt: skip
        packed = self.group > 1 or (few and size > second and columns.size > NARROW)
        self.direct = 0 if packed else direct_height(self.parts.left, rows, self.slice, near)
        epilogue = with_reduction(computation.value, parts.reduce, const(0, self.dtype))
        self.results = known = epilogue, computation.position
        self.in_order_across = columns.whole.is_flat(*known)
        self.flat = rows.whole.is_flat(*known) and self.in_order_across
        whole = depth.size % self.lanes == self.slice.whole % self.lanes == 0
        vectors = self.dtype.is_float and (whole or (self.once and depth.size >= self.lanes))
        self.by_dots = (
            self.group == 1 and vectors and self.flat and not self.mirrored
            and along_depth(self.parts.left, rows.whole, self.slice)
        )  # fmt: skip

    def problem(self, target: TargetSpec) -> Problem:
        """Return the cost model's description."""
        (rows, columns), parts, depth = self.sides, self.parts, self.slice.axis
        in_order = self.in_order(parts.left, rows), self.in_order(parts.right, columns)
        slice_, rates = self.slice.whole // self.group, rates_of(target)
        if self.tiles is not None:
            slice_, rates = slice_ * self.tiles.halves, self.tiles.rates(rates)
        steps = -(-depth.size // self.group) * elements(self.outer)
        return Problem(
            rows, columns, elements(self.batch), steps, slice_,
            self.dtype.itemsize, self.lanes, vector_registers(target), target.compute_units,
            rates, *in_order, self.direct, None if self.tiles is None else amx.PANEL,
            self.by_dots, self.group == 1 and in_lines(parts.right, columns, self.slice),
            self.mirrored, self.tiles is not None and self.once and self.flat,
            row_cost(target, columns.size * depth.size * self.dtype.itemsize),
        )  # fmt: skip

    def in_order(self, factor: Value, axis: Axis) -> bool:
        """Return whether a factor is packed in order of memory, along the axis or the depth."""
        last = axis.ranges[-1]
        long = last.size >= 2 * self.lanes or axis.whole.is_flat(factor)
        return (unit_stride(factor, last) and long) or along_depth(factor, axis.whole, self.slice)


def _is_symmetric(parts: Contraction, rows: Axis, columns: Axis) -> bool:
    """Return whether the right factor is the left one transposed: then so is the product."""
    if rows.size != columns.size or len(parts.all_rows) > 1 or len(parts.all_columns) > 1:
        return False
    return substitute(parts.left, {rows.main: columns.main.index()}) is parts.right
