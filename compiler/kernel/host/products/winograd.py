"""Convolutions of 3 x 3 and 4 x 4 windows by Winograd's tiles on the host, in one kernel.

    before   out[o, y, x] = "tiled sum" over c, i, j of w[o, c, i, j] * image[c, y + i, x + j]
    after    for some rows of tiles (of n x n results, from 6 x 6 elements of the image; n is 4, or
             3 for windows of 4 x 4):
             image    for each c: stage[j][r % n][tile] = image[c, n * down + r, n * across + j],
                      its padding too; tiles[k][c][tile], k: 36 places, by sums along both axes
             for a panel of o:
             weights  weights[k][o][c], by sums along both axes
             products[k][o][tile] = sum over c of weights[k][o][c] * tiles[k][c][tile], in panels
                      whose totals stay in registers
             results  n * n of each tile from 36 products, then the epilogue, in order of memory

All transforms compute a vector of tiles (or of channels) at a time. What a group holds
stays in the second-level cache. The sums are those of compiler.methods.winograd's matrices (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4.2), pairs of rows that
differ only in signs computed together. Rows and columns are interchangeable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
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
)
from ugpu.compiler.kernel.host.lines import separated
from ugpu.compiler.kernel.host.nest import Nest, Panel, blocks, round_up, share
from ugpu.compiler.kernel.host.products.packing import LINE
from ugpu.compiler.kernel.host.products.rates import rates_of
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.host.windows import coupled
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import result
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.contraction import ranges_of
from ugpu.hcq.state.target import TargetSpec

WINDOWS = (3, 4)
AROUND = 6  # elements of the image in a row of a tile
LEAST = 4  # rows of a panel, however large its weights
PLACES = AROUND * AROUND
APART = LINE // float32.itemsize  # elements between planes, which thus share no cache set

Lines = Callable[[Sequence[Value]], list[Value]]


@dataclass(frozen=True)
class Tiled:
    """The parts. out, row, column: the output's ranges; channel, down, across: those reduced, of
    which image rows row + down and columns column + across."""

    reduce: Value
    image: Value
    weight: Value
    out: Range
    row: Range
    column: Range
    channel: Range
    down: Range
    across: Range

    @property
    def window(self) -> int:
        return self.down.size

    @property
    def tile(self) -> int:
        """Results in a row of a tile."""
        return AROUND + 1 - self.window


def find_tiled(computation: Computation) -> Tiled | None:
    """Return the convolution of a computation that requests tiles, or None."""
    reduce = computation.reduction
    if (
        reduce is None
        or computation.others
        or reduce.arg[0] != cost.TILED
        or reduce.sources[0].op != "mul"
    ):
        return None
    over, factors = reduce.arg[1], reduce.sources[0].sources
    for image, weight in (factors, factors[::-1]):
        inside = [
            (r, each) for r in computation.ranges for each, stride in coupled(image, r, over)
            if stride == 1 and each.size in WINDOWS
        ]  # fmt: skip
        if len(inside) != 2 or len({each for _, each in inside}) != 2 or len(over) != 3:
            continue
        (row, down), (column, across) = inside
        if down.size != across.size:
            continue
        rest = [r for r in over if r not in (down, across)]
        used = ranges_of(weight)
        outs = [r for r in computation.ranges if r in used]
        apart = len(rest) == len(outs) == 1 and outs[0] not in ranges_of(image)
        if apart and row not in used and column not in used:
            return Tiled(reduce, image, weight, outs[0], row, column, rest[0], down, across)
    return None


def convolution(computation: Computation, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute some rows of tiles of some channels."""
    tiled = find_tiled(computation)
    assert tiled is not None
    return _Convolution(computation, tiled, target).kernel()


class _Convolution:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, tiled: Tiled, target: TargetSpec) -> None:
        self.parts, self.lanes = tiled, target.vector_bytes // float32.itemsize
        self.tile, self.window = tiled.tile, tiled.window
        self.wide, tall = -(-tiled.column.size // self.tile), -(-tiled.row.size // self.tile)
        depth, out = tiled.channel.size, tiled.out.size
        batch = [r for r in computation.ranges if r not in (tiled.out, tiled.row, tiled.column)]
        rates, each = rates_of(target), PLACES * depth * float32.itemsize  # of a tile, or a row
        count = share(tall, max(1, rates.right_bytes // each // self.wide))
        groups = -(-tall // count) * elements(batch)
        parts = min(-(-target.compute_units // groups), -(-out // self.lanes))
        tiles = Range("tile_row", tall)
        self.nest = Nest(computation, batch, (tiles, count), (tiled.out, -(-out // parts)))
        self.tiles, self.outs = self.nest.sides
        self.across = round_up(count * self.wide, self.lanes)  # elements of a row of tiles
        registers, vectors = vector_registers(target), self.across // self.lanes
        least = max(LEAST, rates.left_bytes // each)
        self.height, self.vectors = rates.panel(registers, self.outs.count, vectors, least)
        self.pitch = round_up(depth, self.lanes) | APART
        self.plane = (count + 1) * self.wide
        self.stage = self.memory("stage", AROUND * self.tile * self.plane + self.across)
        self.kept = self.memory("kept", self.window**2 * round_up(depth, self.lanes))
        self.apart = depth * self.across + APART, self.height * self.across + APART
        self.image = self.memory("tiles", PLACES * self.apart[0])
        self.weights = self.memory("weights", PLACES * self.height * self.pitch)
        self.products = self.memory("products", PLACES * self.apart[1])
        self.results = self.memory("results", self.tile**2 * self.across)
        self.middle = Memory("middle", float32, PLACES, "register", self.lanes)
        count = self.height * self.vectors
        self.totals = Memory("totals", float32, count, "register", self.lanes)

    @staticmethod
    def memory(name: str, count: int) -> Memory:
        return Memory(name, float32, count, "local")

    def kernel(self) -> Kernel:
        channel = Range("channel", self.parts.channel.size)
        image = Loop(channel, (self.staged(channel.index()), self.in_tiles(channel.index())))
        panel = Range("panel", -(-self.outs.count // self.height))
        first = self.outs.start + panel.index() * self.height
        rows = self.outs.elements() - panel.index() * self.height
        bound = blocks(self.outs.bound(), self.height)
        body = (self.weighted(first, rows), self.multiply(), self.finish(first, rows))
        return self.nest.kernel((image, Loop(panel, body, bound)))

    # ---- factors -------------------------------------------------------------------------------

    def staged(self, channel: Index) -> Statement:
        """Copy the elements of all tiles of a channel: [column % 6][row % n][tile]."""
        parts, step, more = self.parts, self.tile, self.window - 1
        line = Range("line", self.tiles.count * step + more)
        row = self.tiles.start * step + line.index()
        at = line.index() % step * self.plane + line.index() // step * self.wide
        body: list[Statement] = []
        for across in range(AROUND):
            tile = Range(f"tile{across}", self.wide)
            column = tile.index() * step + across
            places = {**self.nest.batch, parts.channel: channel}
            places |= {parts.row: row, parts.down: constant(0)}
            places |= {parts.column: column, parts.across: constant(0)}
            # beyond the image's last window there is nothing
            last = [(row, parts.row.size), (column, parts.column.size)]
            inside = tuple(
                end for place, size in last if (end := constant(size + more - 1) - place).low < 0
            )
            image = substitute(parts.image, places)
            image = gate(inside, guard(image, inside), const(0, float32))
            body += separated(image, tile, self.stage, at + across * step * self.plane)
        return Loop(line, tuple(body), self.tiles.left * step + more, rolled=True)

    def in_tiles(self, channel: Index) -> Statement:
        """Transform the tiles of a channel, a vector of them at a time."""
        block = Range("block", self.across // self.lanes)
        at, step = block.index() * self.lanes, self.tile
        loads = []
        for down, across in product(range(AROUND), range(AROUND)):
            place = (across * step + down % step) * self.plane + down // step * self.wide
            loads.append(load(self.stage, at + place, lanes=self.lanes))
        first = channel * self.across + at
        body = self.both(loads, AROUND, _of_image, self.image, lambda k: first + k * self.apart[0])
        return Loop(block, tuple(body), self.bound(self.lanes), rolled=True)

    def weighted(self, first: Index, rows: Index) -> Statement:
        """Transform the weights of a panel, a vector of channels at a time."""
        parts, side = self.parts, self.window
        row, channel = Range("row", self.height), Range("weight", parts.channel.size)
        whole = round_up(parts.channel.size, self.lanes)
        places = {parts.out: first + row.index(), parts.channel: channel.index()}
        copies = []
        for k in range(side**2):
            here = {parts.down: constant(k // side), parts.across: constant(k % side)}
            weight = substitute(parts.weight, {**self.nest.batch, **places, **here})
            copies.append(Store(self.kept, channel.index() + k * whole, weight))
        block = Range("block", whole // self.lanes)
        at = block.index() * self.lanes
        loads = [load(self.kept, at + k * whole, lanes=self.lanes) for k in range(side**2)]
        to = row.index() * self.pitch + at
        body = self.both(
            loads, side, _of_weights, self.weights, lambda k: to + k * self.height * self.pitch
        )
        inside = (Loop(channel, tuple(copies)), Loop(block, tuple(body), rolled=True))
        return Loop(row, inside, rows, rolled=True)

    def both(
        self, given: Sequence[Value], size: int, lines: Lines, memory: Memory,
        place: Callable[[int], Index],
    ) -> Iterator[Statement]:  # fmt: skip
        """Transform [size][size] vectors along the first axis, then the second; store them."""
        along = [lines(given[across::size]) for across in range(size)]
        count = len(along[0])
        middle = [load(self.middle, constant(k), lanes=self.lanes) for k in range(count * size)]
        for across, down in product(range(size), range(count)):
            yield Store(self.middle, constant(down * size + across), along[across][down])
        for down in range(count):
            for across, each in enumerate(lines(middle[down * size : (down + 1) * size])):
                yield Store(memory, place(down * count + across), each)

    # ---- products ------------------------------------------------------------------------------

    def multiply(self) -> Statement:
        """Multiply the panel's weights by all tiles, place by place."""
        place, width = Range("place", PLACES), self.vectors * self.lanes
        whole, rest = divmod(self.across // self.lanes, self.vectors)
        block = Range("columns", whole)
        first = block.index() * width
        panel = tuple(self.panel_of(place.index(), first, self.vectors))
        inside = [Loop(block, panel, self.bound(width))]
        last = self.panel_of(place.index(), constant(whole * width), rest) if rest else []
        return Loop(place, (*inside, *last), rolled=True)

    def bound(self, width: int) -> Index | None:
        """Return the number of blocks of `width` tiles, if the last group has fewer."""
        bound = self.tiles.bound()
        return blocks(None if bound is None else bound * self.wide, width)

    def panel_of(self, place: Index, column: Index, vectors: int) -> list[Statement]:
        """Compute the products of all rows of the panel and some vectors of tiles."""
        step = Range(f"step{vectors}", self.parts.channel.size)
        first = place * self.apart[0] + step.index() * self.across + column
        right = [load(self.image, first + v * self.lanes, lanes=self.lanes) for v in range(vectors)]
        row = place * (self.height * self.pitch) + step.index()
        left = [load(self.weights, row + down * self.pitch) for down in range(self.height)]
        panel, to = Panel(self.totals, self.height, vectors), place * self.apart[1] + column
        return [
            *panel.computed(left, right, lambda body: Loop(step, body)),
            *panel.stored(self.products, lambda i, j: to + (i * self.across + j * self.lanes)),
        ]

    # ---- results -------------------------------------------------------------------------------

    def finish(self, first: Index, rows: Index) -> Statement:
        """Compute results from products, row by row of the panel, then the epilogue."""
        parts, row = self.parts, Range("out", self.height)
        block = Range("block", self.across // self.lanes)
        at = block.index() * self.lanes
        line = row.index() * self.across + at
        loads = [load(self.products, line + k * self.apart[1], lanes=self.lanes)
                 for k in range(PLACES)]  # fmt: skip
        step = self.tile
        body = self.both(loads, AROUND, partial(_of_results, step), self.results,
                         lambda k: at + k * self.across)  # fmt: skip
        tile_row, down = Range("tile_line", self.tiles.count), Range("down", step)
        tile = Range("tile", max(1, parts.column.size // step))
        y = (self.tiles.start + tile_row.index()) * step + down.index()

        def store(number: Index, across: int) -> Statement:
            place = down.index() * (step * self.across) + tile_row.index() * self.wide + number
            total = load(self.results, place + across * self.across)
            x = number * step + across
            places = {parts.out: first + row.index(), parts.row: y, parts.column: x}
            return result(self.nest.computation, {**self.nest.batch, **places}, total, parts.reduce)

        whole, rest = divmod(parts.column.size, step)
        lines: list[Statement] = [store(constant(whole), across) for across in range(rest)]
        if whole:
            lines.append(Loop(tile, tuple(store(tile.index(), across) for across in range(step))))
        left = constant(parts.row.size) - (self.tiles.start + tile_row.index()) * step
        inside = Loop(tile_row, (Loop(down, tuple(lines), left),), self.tiles.left, rolled=True)
        transform = Loop(block, tuple(body), self.bound(self.lanes), rolled=True)
        return Loop(row, (transform, inside), rows, rolled=True)


def _add(factor: float, value: Value, total: Value) -> Value:
    return multiply_add(broadcast(const(factor, float32), value.lanes), value, total)


def _times(factor: float, value: Value) -> Value:
    return binary("mul", broadcast(const(factor, float32), value.lanes), value)


def _pair(even: Value, odd: Value) -> list[Value]:
    """Return the sum and the difference."""
    return [binary("add", even, odd), binary("sub", even, odd)]


def _of_image(d: Sequence[Value]) -> list[Value]:
    """Transform six elements of an image to six places of a tile."""
    wide, near = _add(-4, d[1], d[3]), _times(2, binary("sub", d[3], d[1]))
    first, last = _add(4, d[0], _add(-5, d[2], d[4])), _add(4, d[1], _add(-5, d[3], d[5]))
    return [
        first,
        *_pair(_add(-4, d[2], d[4]), wide),
        *_pair(binary("sub", d[4], d[2]), near),
        last,
    ]


def _of_weights(g: Sequence[Value]) -> list[Value]:
    """Transform three or four weights to six places of a tile."""
    ends, near = _times(-1 / 6, binary("add", g[0], g[2])), _add(1 / 24, g[0], _times(1 / 6, g[2]))
    middle, far = _times(-1 / 6, g[1]), _times(1 / 12, g[1])
    if len(g) == 4:
        middle, far = _add(-1 / 6, g[3], middle), _add(1 / 3, g[3], far)
    return [_times(1 / 4, g[0]), *_pair(ends, middle), *_pair(near, far), g[-1]]


def _of_results(count: int, m: Sequence[Value]) -> list[Value]:
    """Transform six places of a tile to three or four results."""
    near, far = _pair(m[1], m[2]), _pair(m[3], m[4])
    results = [binary("add", binary("add", m[0], near[0]), far[0])]
    for power in range(1, count):
        base, more = near[power % 2], far[power % 2]
        base = binary("add", m[5], base) if power == count - 1 else base
        results.append(_add(2**power, more, base))
    return results
