"""Blocked matrix product for the host.

A group computes a tile of the output. Slices of both factors are packed so that the inner loop
reads memory in order (compiler.kernel.host.products.packing). Packing evaluates operations fused
into a factor once per element and tile. A left factor with a suitable layout is read in place. The
inner loop multiplies a panel of a few rows by one of a few vectors of columns into totals that stay
in registers. Elements outside a factor are not written, and totals made of them are not stored.

Rows, columns and depth may each be several ranges walked as one
(compiler.kernel.host.nest): a convolution is the product of its weights and of windows that are
laid out during packing. The sizes of tiles and panels come from a cost model
(compiler.kernel.host.products.tiles).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ugpu.compiler.dtype import int8, int32
from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    substitute,
    walk,
)
from ugpu.compiler.kernel.choices import Space, Tile
from ugpu.compiler.kernel.host.nest import (
    Nest,
    Panel,
    Walk,
    blocks,
    filled,
    rolled,
    round_up,
)
from ugpu.compiler.kernel.host.products import amx
from ugpu.compiler.kernel.host.products.ends import Ends
from ugpu.compiler.kernel.host.products.grouped import (
    Correction,
    product_of,
    repeated,
    unsigned,
)
from ugpu.compiler.kernel.host.products.packing import (
    LINE,
    QUAD,
    Again,
    Direct,
    Factor,
    Packed,
    Packing,
)
from ugpu.compiler.kernel.host.products.results import in_lanes
from ugpu.compiler.kernel.host.products.sides import Sides
from ugpu.compiler.kernel.host.products.tiles import Problem
from ugpu.compiler.kernel.host.rows import ROWS
from ugpu.compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Prefetch,
    Statement,
    Store,
    guarded,
    nested,
)
from ugpu.compiler.kernel.shared.spread import runs_along
from ugpu.compiler.pattern.contraction import LONGER, SMALLEST, Contraction
from ugpu.hcq.state.target import TargetSpec

DOTS = 4  # rows up to which sums along both factors' memory are as fast as tiles


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tile: Tile | None = None
) -> Kernel:
    """Return the blocked kernel; its grid is (column tiles, row tiles, batch). tile: of a group, by
    default the best by the cost model."""
    return _Blocked(computation, parts, target, tile).kernel()


def problem(computation: Computation, parts: Contraction, target: TargetSpec) -> Problem:
    """Return the cost model's description of a product."""
    return Sides(computation, parts, target).problem(target)


def space(computation: Computation, parts: Contraction, target: TargetSpec) -> Space:
    """Return the space of all tiles that fit the caches and leave registers for the totals."""
    asked = problem(computation, parts, target)
    tiles = list(asked.tiles())
    options: dict[str, tuple[int, ...]] = {}
    if asked.panel is None:
        options["height"] = tuple(sorted({*range(4, 29, 2), *(tile.height for tile in tiles)}))
        options["vectors"] = (1, 2, 3, 4)
    options["rows"] = tuple(sorted({tile.rows for tile in tiles}))
    options["columns"] = tuple(sorted({tile.columns for tile in tiles}))
    return Space(asked.best(), options, asked.fits)


def pays(parts: Contraction) -> bool:
    """Return whether tiles are faster for a short side. They are not if plain loops read long
    factors in order, each element once for all rows (compiler.kernel.host.loops)."""
    rows, column, depth = elements(parts.all_rows), parts.all_columns[-1], parts.all_depths[-1]
    if rows >= SMALLEST:
        return True
    if runs_along([parts.right], column, depth):
        return rows > ROWS
    deep = depth.size >= LONGER and runs_along([parts.left], depth, parts.all_rows[-1])
    return not deep or rows > DOTS


class _Blocked(Sides):
    """Sizes and memories of one kernel."""

    def __init__(
        self, computation: Computation, parts: Contraction, target: TargetSpec, tile: Tile | None
    ) -> None:
        super().__init__(computation, parts, target)
        asked = self.problem(target)
        tile = tile or asked.best()
        assert self.tiles is None or (tile.height, tile.vectors) == amx.PANEL, tile
        self.apart, self.in_place = asked.apart(tile), asked.in_place(tile)
        self.ahead = asked.row > 0
        self.again = asked.again(tile)
        self.height, self.vectors = tile.height, tile.vectors
        self.width = tile.vectors * self.lanes
        rows, columns = self.sides
        count = min(tile.columns, columns.main.size) if self.apart else tile.columns
        nest = Nest(computation, self.batch, (columns, count), (rows, tile.rows))
        self.nest, (self.columns, self.rows) = nest, nest.sides
        self.tall = round_up(self.rows.whole, self.height)
        self.wide = round_up(self.columns.whole - self.apart, self.width)
        self.pack(target)
        # whether to compute results from a panel's totals while these are in the first-level cache
        alone = self.tall == self.height and rows.main.size == tile.rows  # rows are constants then
        flat = self.flat or (alone and self.in_order_across)
        self.by_panels = self.once and flat
        self.pitch = self.width if self.by_panels else self.wide
        tall = self.height if self.by_panels else self.tall
        self.tile = Memory("tile", self.dtype, tall * self.pitch, "local")
        totals = Memory("totals", self.dtype, self.height * self.vectors, "register", self.lanes)
        self.totals = Panel(totals, self.height, self.vectors)
        self.ends: Ends | None = None
        if self.apart:
            sides = self.tall, self.height, self.apart
            self.ends = Ends(self.left, self.right, self.wide // self.width, sides,
                             self.slice.whole, self.lanes, self.dtype)  # fmt: skip

    def pack(self, target: TargetSpec) -> None:
        """Lay out the slices of both factors."""
        parts, depth, block = self.parts, self.slice, 1 if self.tiles is None else self.tiles.steps
        quads = self.group == QUAD and self.tiles is None
        self.packing = packing = Packing(
            self.lanes, depth, self.nest.batch, self.group, self.plain, quads, self.direct,
            target.caches.second // 2, block,
        )  # fmt: skip
        self.excess: Correction | None = None
        self.left: Factor
        self.right: Factor
        self.halves: tuple[list[Packed], list[Packed]] = [], []
        if self.tiles is not None:
            self.pack_for(self.tiles)
            return
        self.right = (
            Direct(substitute(parts.right, self.nest.batch), self.columns, depth, self.width)
            if self.in_place else packing.right([parts.right], self.columns, self.width)[0]
        )  # fmt: skip
        left = unsigned(parts.left) if quads else parts.left
        if self.again and isinstance(self.right, Packed):
            self.left = Again(self.right, self.rows.start, self.height, self.width)
        else:
            self.left = packing.left(left, self.rows, self.height)
        if quads and parts.left.dtype is int8:
            panels, count = self.wide // self.width, depth.whole // QUAD
            assert isinstance(self.right, Packed)  # holds whenever steps are taken together
            self.excess = Correction(self.right, panels, self.vectors, count, self.steps_bound())

    def pack_for(self, tiles: amx.Tiles) -> None:
        """Lay out the halves of both factors for tile registers."""
        left, right = (tiles.parted(factor) for factor in (self.parts.left, self.parts.right))
        row = self.row_panels().index()
        lefts = self.packing.in_blocks(left, self.rows, self.height, row)
        rights = self.packing.right(right, self.columns, self.width)
        self.left, self.right, self.halves = lefts[0], rights[0], (lefts, rights)

    def kernel(self) -> Kernel:
        left = self.left.statements if self.tiles is None else ()
        body = [*left, *self.right.statements]
        body += [] if self.excess is None else [self.excess.statement()]
        body += [] if self.ends is None else self.ends.copy(self.steps_bound())
        slices = Loop(Range("slice", self.slices), (*body, self.multiply()))
        body = [*nested(self.outer, slices)]
        if not self.once:
            cleared = [] if self.ends is None else [self.ends.clear()]
            body = [filled("clear", self.tile, self.zero()), *cleared, *body]
        body += [] if self.by_panels else [*self.all_exact(), self.finish()]
        body += [] if self.ends is None else [self.finish_ends(self.ends)]
        if self.mirrored:
            body = [*guarded(self.above(constant(0), constant(self.columns.whole)), *body)]
        return self.nest.kernel(body)

    def zero(self) -> Value:
        return broadcast(const(0, self.dtype), self.lanes)

    def multiply(self) -> Statement:
        """Compute tile += left slice * right slice, panel by panel."""
        if self.tiles is None:
            return self.by_panel("", self.panel_and_ends)
        rows, columns = self.row_panels(), Range("column_panel", self.wide // self.width)
        panel = self.panel_in_tiles(self.tiles, rows.index(), columns.index())
        inside = Loop(columns, panel, blocks(self.columns.bound(), self.width))
        body = (*self.left.statements, inside)
        return Loop(rows, body, blocks(self.rows.bound(), self.height))

    def row_panels(self, name: str = "") -> Range:
        return Range(f"row_panel{name}", self.tall // self.height)

    def by_panel(
        self, name: str, of: Callable[[Index, Index, int], Sequence[Statement]]
    ) -> Statement:
        """Return the loops over panels that are computed, given their numbers, and the vector of
        each from which on it is: not those wholly outside the output, nor what is wholly below the
        diagonal of a symmetric product, panels or the first half of their vectors."""
        rows = self.row_panels(name)
        columns = Range(f"column_panel{name}", self.wide // self.width)
        row, column = rows.index(), columns.index()
        panel = tuple(of(row, column, 0))
        if self.mirrored:
            half, top = self.vectors // 2, row * self.height
            middle, end = column * self.width + half * self.lanes, (column + 1) * self.width
            if half:
                below = at_least_zero(-self.columns_after(top, middle) - 1)
                rest = guarded(both(below, self.above(top, end)), *of(row, column, half))
                panel = (*guarded(self.above(top, middle), *panel), *rest)
            else:
                panel = guarded(self.above(top, end), *panel)
        inside = Loop(rows, panel, blocks(self.rows.bound(), self.height))
        return Loop(columns, (inside,), blocks(self.columns.bound(), self.width))

    def above(self, row: Index, column: Index) -> Validity:
        """Return whether a row of the tile is above the diagonal of the output somewhere before a
        column."""
        return at_least_zero(self.columns_after(row, column))

    def columns_after(self, row: Index, column: Index) -> Index:
        """Return the number of columns of the output between its diagonal in a row of the tile and
        a column of the tile."""
        return self.columns.start + column - 1 - self.rows.start - row

    def panel_and_ends(self, row: Index, column: Index, begin: int) -> tuple[Statement, ...]:
        """Multiply a panel, and after the last one of a row the columns behind it."""
        panel = self.panel(row, column, begin)
        if self.ends is None:
            return panel
        is_last = at_least_zero(column - (self.wide // self.width - 1))
        ends = tuple(self.ends.multiply(row, self.once, self.steps_bound()))
        return (*panel, *guarded(is_last, *ends))

    def panel(self, row: Index, column: Index, begin: int) -> tuple[Statement, ...]:
        """Multiply a panel, given the numbers of its row panel and its column panel, and its first
        vector."""
        step = Range("step", self.slice.whole // self.group)
        lanes, each = self.lanes, self.lanes * self.group
        right = [
            self.right.load(column, step.index(), vector * lanes, each)
            for vector in range(begin, self.vectors)
        ]
        left = [
            repeated(self.left.load(row, step.index(), down, self.group), self.group)
            for down in range(self.height)
        ]
        totals = replace(self.totals, width=self.vectors - begin)
        first = self.first(row, column) + begin * lanes

        def place(down: int, vector: int) -> Index:
            return first + self.place(constant(down), constant(vector * lanes))

        def start(down: int, vector: int) -> Value:
            total = self.zero() if self.once else load(self.tile, place(down, vector), lanes=lanes)
            return total if self.excess is None else self.excess.taken_off(total, column, vector)

        ahead = (*self.next_rows(row, step), *self.next_columns(row, column, step))

        def loop(inner: tuple[Statement, ...]) -> Loop:
            return Loop(step, (*ahead, *inner), self.steps_bound())

        body = totals.computed(left, right, loop, start, product_of(self.group))
        kept = totals.stored(self.tile, place)
        if not self.by_panels:
            return (*body, *kept)
        down = self.rows.panel("row_ahead", row * self.height, self.height, self.tall)
        line = LINE // self.dtype.itemsize
        across = self.columns.panel("ahead", column * self.width, self.width, self.wide, line)
        others = (*kept, *self.panel_finished(row, column, begin))
        return (*self.prefetched(down, across), *body, *self.lines(row, column, others))

    def lines(
        self, row: Index, column: Index, others: tuple[Statement, ...]
    ) -> tuple[Statement, ...]:
        """Return the stores of a panel's results from registers, if they can be computed as
        vectors, and where columns end inside the panel, or they cannot, the `others`."""
        top, left = row * self.height, column * self.width
        stores: list[Statement] = []
        left_rows = self.rows.panel("row", top, self.height, self.tall).loops[0][1]
        for down, vector, slot in self.totals.each():
            here = self.nest.batch | self.rows.places(top + down)
            first = left + vector * self.lanes
            store = in_lanes(
                self.nest.computation, self.parts.reduce, here, self.columns, first, slot
            )  # fmt: skip
            if store is None or self.mirrored:
                return others
            inside = () if left_rows is None else at_least_zero(left_rows - (down + 1))
            stores += guarded(inside, store)
        return self.complete(column, stores, others)

    def complete(
        self, column: Index, stores: Sequence[Statement], others: Sequence[Statement]
    ) -> tuple[Statement, ...]:
        """Return the stores of a panel that has all columns, and the others where it has not."""
        ((_, bound),) = self.panel_columns("column", column * self.width).loops
        if bound is None:
            return tuple(stores)
        short = bound - self.width
        return (
            If(at_least_zero(short), tuple(stores)), If(at_least_zero(-short - 1), tuple(others))
        )  # fmt: skip

    def next_rows(self, row: Index, step: Range) -> tuple[Statement, ...]:
        """Begin to bring a part of the next panel of a left factor that is read in place into the
        caches, at each step: few steps of many rows are what no prefetcher foresees."""
        if not isinstance(self.left, Direct) or not self.far:
            return ()
        line = LINE // self.dtype.itemsize
        rows = min(line, 1 << (self.height - 1).bit_length(), self.rows.axis.main.size)
        at = step.index()
        return (self.left.prefetch(row, at % line % rows, rows, at // line * line),)

    def next_columns(self, row: Index, column: Index, step: Range) -> Iterator[Prefetch]:
        """Begin to bring a part of the next panel of a far right factor that is read in place near,
        at each step: rows that are far apart are what no prefetcher foresees. Of one that is packed
        next, bring it to the second level."""
        rows, at = self.tall // self.height, step.index()
        if isinstance(self.right, Direct) and self.ahead:
            yield from self.right.ahead(row, rows, (column + 1) * self.width, at)
        elif self.soon:
            factor = substitute(self.parts.right, self.nest.batch)
            lines = Direct(factor, self.columns, self.slice, self.width)
            yield from lines.ahead(row, rows, column * self.width + self.columns.axis.size, at, 2)

    def prefetched(self, down: Walk, across: Walk) -> Iterator[Statement]:
        """Begin to bring what the panel's results need and where they go into the caches: parts of
        many rows, which no prefetcher foresees."""
        computation = self.nest.computation
        places = {**self.nest.batch, **down.places, **across.places}
        moving = set(self.columns.axis.ranges)
        accesses = [(computation.output, computation.position)]
        accesses += [(each.arg.memory, each.arg.index) for each in walk(self.results[0])
                     if each.op == "load" and not each.arg.conditions]  # fmt: skip
        for memory, index in accesses:
            if moving & index.ranges():
                near = Prefetch(memory, index.substitute(places))
                yield down.around(across.around(near))

    def panel_in_tiles(self, tiles: amx.Tiles, row: Index, column: Index) -> tuple[Statement, ...]:
        """Multiply a panel in tile registers."""
        block = Range("block", self.slice.whole // tiles.steps)
        bound = blocks(self.slice.bound(), tiles.steps) if self.slices > 1 else None
        ahead: tuple[Statement, ...] = ()
        if self.far and self.parts.left.op == "load" and not self.parts.left.arg.conditions:
            # a panel of columns begins to bring some rows of the next panel near
            rows = -(-self.height // (self.wide // self.width))
            first = (row + 1) * self.height + column * rows
            step = block.index() * tiles.steps
            left = self.parts.left
            ahead = tuple(self.packing.ahead(left, self.rows, range(rows), first, step))
        body = tiles.multiply(
            *self.halves, self.tile, self.first(row, column), self.pitch, self.once, (row, column),
            block, lambda inner: Loop(block, (*inner, *ahead), bound),
        )  # fmt: skip
        if not self.by_panels:
            return body
        down = self.rows.panel("exact_row", row * self.height, self.height, self.tall)
        across = self.panel_columns("exact_column", column * self.width)
        return (*body, *self.exact(down, across), *self.panel_in_vectors(row, column))

    def all_exact(self) -> tuple[Statement, ...]:
        """Return the same for the whole tile."""
        down, across = self.rows.steps("exact_row"), self.columns.steps("exact_column")
        return self.exact(down, across)

    def exact(self, down: Walk, across: Walk) -> tuple[Statement, ...]:
        """Return the statements that compute totals of halves again in float32 if one is NaN."""
        if self.tiles is None or self.tiles.halves == 1:
            return ()
        step = self.slice.axis.whole.steps("exact_step")
        places = {**self.nest.batch, **down.places, **across.places, **step.places}
        left, right = (
            cast(substitute(factor, places), self.dtype)
            for factor in (self.parts.left, self.parts.right)
        )
        place = self.place(down.position, across.position)
        total, flag, at = load(self.tile, place), Memory("again", int32, 1, "register"), constant(0)
        unordered = binary("or", load(flag, at), cast(binary("ne", total, total), int32))
        zero = across.around(Store(self.tile, place, const(0, self.dtype)))
        added = across.around(Store(self.tile, place, multiply_add(left, right, total)))
        return (
            Store(flag, at, const(0, int32)),
            rolled(down.around(across.around(Store(flag, at, unordered)))),
            If(at_least_zero(lookup(load(flag, at), 2) - 1),
               (rolled(down.around(zero, step.around(added))),)),
        )  # fmt: skip

    def panel_in_vectors(self, row: Index, column: Index) -> Sequence[Statement]:
        """Return the stores of a panel's results from its tile, as vectors where they can be
        computed so and the panel is complete."""
        others, left = self.panel_finished(row, column), column * self.width
        down = self.rows.panel("row", row * self.height, self.height, self.tall)
        stores = []
        for vector in range(self.vectors):
            place = self.place(down.position, constant(vector * self.lanes))
            total = load(self.tile, self.first(row, column) + place, lanes=self.lanes)
            store = in_lanes(
                self.nest.computation, self.parts.reduce, self.nest.batch | down.places,
                self.columns, left + vector * self.lanes, total, True,
            )  # fmt: skip
            if store is None:
                return others
            stores.append(store)
        return self.complete(column, (down.around(*stores),), others)

    def steps_bound(self) -> Index | None:
        bound, depth = self.slice.bound(), self.slice.axis
        if self.group == 1 or bound is None:
            return bound
        left = constant(depth.main.size + self.group - 1) - self.slice.start
        return left // self.group * depth.unit

    def finish(self) -> Statement:
        """Return epilogue and stores for the part of the tile inside the output."""
        if self.mirrored:
            return self.by_panel("1", self.panel_finished)
        columns = self.columns.walk("column", *self.results)
        if self.apart:
            columns = self.columns.line("column", self.wide)
        return self.finished(self.rows.walk("row", *self.results), columns)

    def finish_ends(self, ends: Ends) -> Statement:
        row, column = self.rows.steps("end_row"), self.columns.line("end", self.apart, self.wide)
        total = ends.total(row.position, column.position)
        return self.nest.finish(row, column, total, self.parts.reduce)

    def finished(self, row: Walk, column: Walk, first: Index | int = 0) -> Statement:
        total = load(self.tile, self.place(row.position, column.position) + first)
        return self.nest.finish(row, column, total, self.parts.reduce)

    def panel_finished(self, row: Index, column: Index, begin: int = 0) -> list[Statement]:
        """Return the same for a panel from a vector on, and for the elements that mirror its
        own."""
        begin *= self.lanes
        top, left, width = row * self.height, column * self.width + begin, self.width - begin
        first = self.first(row, column) + begin
        down = self.rows.panel("row", top, self.height, self.tall)
        across = self.panel_columns("column", left, width)
        stores = [self.finished(down, across, first)]
        if self.mirrored:
            down = self.rows.panel("row1", top, self.height, self.tall)
            across = self.columns.panel("column1", left, width, self.wide)
            (i, j), (x, y) = (side.main for side in self.sides), (down.places, across.places)
            total = load(self.tile, self.place(down.position, across.position) + first)
            swapped = replace(across, places={i: y[j]}), replace(down, places={j: x[i]})
            stores.append(self.nest.finish(*swapped, total, self.parts.reduce))
        return stores

    def panel_columns(self, name: str, first: Index, width: int = 0) -> Walk:
        """Return the loop over a panel's columns, by default all."""
        width = width or self.width
        if self.apart:  # each panel is complete
            return self.columns.line(name, width, first)
        return self.columns.panel(name, first, width, self.wide)

    def first(self, row: Index, column: Index) -> Index:
        """Return where the tile has a panel's totals."""
        if self.by_panels:
            return constant(0)
        return self.place(row * self.height, column * self.width)

    def place(self, row: Index, column: Index) -> Index:
        """Return where the tile has a total."""
        return row * self.pitch + column
