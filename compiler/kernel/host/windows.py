"""Reductions over small windows on the host: depthwise convolutions and pooling.

    before   out[c, y, x] = sum over i, j of w[c, i, j] * image[c, s*y + i, s*x + j]
    after    for each c, a block of rows at a time:
             stage    the part of the image that is needed, padding included: [phase][row][column],
                      columns and rows that are `s` apart side by side
             totals   total[y][x] = w[c, 0, 0] * stage[y][x] + w[c, 0, 1] * stage[y][x + 1] + ...
                      for a vector of x and some y at a time, in registers: an element of the
                      stage is loaded once for all rows that it adds to
             results  out[c, y, x] = total[y][x]

Each element of the image is evaluated once, with its padding and the operations fused into it. All
places of a window are unrolled, and all images that are summed. Totals become results as vectors if
what follows is short; otherwise they are stored, and a loop over the block computes results. A
group computes several images; their padding is written once, if it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from ugpu.compiler.dtype import bool_
from ugpu.compiler.expression.accumulate import combine, identity, multiply_add, replace
from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    at_least_zero,
    constant,
    flatten,
    unflatten,
)
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    broadcast,
    const,
    load,
    own_indices,
    substitute,
    value,
    walk,
)
from ugpu.compiler.kernel.host.lines import chunks, copied, first_inside, padding
from ugpu.compiler.kernel.host.nest import Axis, Nest, Part, filled, round_up, share
from ugpu.compiler.kernel.host.products.packing import LINE
from ugpu.compiler.kernel.host.products.rates import rates_of
from ugpu.compiler.kernel.host.products.results import in_lanes
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Prefetch, Statement, Store, nested
from ugpu.compiler.kernel.shared.kernels import result
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.contraction import ranges_of
from ugpu.hcq.state.target import TargetSpec

GROUPS = 4  # minimum groups for each thread
MOST = 4  # rows of a block: more gain nothing
BESIDE = 4  # registers that hold neither totals nor weights
WHOLE = 64  # elements: whole vectors, as many as loops take at once
STAGED = 16 << 10  # approximate image bytes that a group holds; more take longer in any cache


@dataclass(frozen=True)
class Window:
    """The parts. image: the factor that differs from result to result, or the whole reduced value;
    weight: the other one. last, row: the output's ranges along the image; across, down: the ranges
    reduced along them; stride: steps of `across` and `down` to the next result."""

    reduce: Value
    image: Value
    weight: Value | None
    last: Range
    across: Range
    row: Range | None
    down: Range | None
    stride: int

    @property
    def tall(self) -> int:
        """Places of the window in a column."""
        return 1 if self.down is None else self.down.size

    @property
    def columns(self) -> int:
        """Elements of the image that a row of results reads."""
        return (self.last.size - 1) * self.stride + self.across.size

    @property
    def phases(self) -> int:
        return self.stride * (1 if self.row is None else self.stride)


def find_window(computation: Computation) -> Window | None:
    """Return the window of a computation's only reduction; None for other kinds or large ones."""
    reduce = computation.reduction
    if reduce is None or not computation.ranges or elements(reduce.arg[1]) > cost.WINDOW:
        return None
    over, body = reduce.arg[1], reduce.sources[0]
    last = computation.ranges[-1]
    row = computation.ranges[-2] if len(computation.ranges) > 1 else None
    image, weight = body, None
    if reduce.arg[0] == "sum" and body.op == "mul":
        moving = [last in ranges_of(factor) for factor in body.sources]
        if moving.count(True) == 1:
            image, weight = body.sources if moving[0] else body.sources[::-1]
    if weight is not None and row is not None and row in ranges_of(weight):
        row = None
    found = next(coupled(image, last, over), None)
    if found is None:
        return None
    across, stride = found
    below = None if row is None else next(coupled(image, row, over), None)
    if below is None or below[0] is across or below[1] != stride:
        row = below = None
    down = None if below is None else below[0]
    window = Window(reduce, image, weight, last, across, row, down, stride)
    fits = cost.in_windows(window.tall, across.size, window.columns, window.phases)
    return window if fits else None


def coupled(image: Value, out: Range, over: tuple[Range, ...]) -> Iterator[tuple[Range, int]]:
    """Yield each reduced range that a value depends on only in a sum with an output's range, and
    how many of its steps are one of the output's."""
    for each in reversed(over):
        steps = {_step(index, out, each) for node in walk(image) for index in own_indices(node)}
        steps.discard(0)
        if len(steps) == 1 and (step := steps.pop()) > 0:
            yield each, step


def _step(index: Index, out: Range, over: Range) -> int:
    """Return how many steps of range `over` are one of `out`: 0 if the index has neither, -1 if it
    has them other than in such a sum."""
    one, other = index.linear(out, over) or (1, 0)
    if not one and not other:
        return 0
    return one // other if other and one % other == 0 and one // other > 0 else -1


def reduction(computation: Computation, window: Window, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute blocks of rows of an image."""
    return _Windows(computation, window, target).kernel()


class _Windows:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, window: Window, target: TargetSpec) -> None:
        self.vector_bytes = target.vector_bytes
        self.window, stride = window, window.stride
        row, dtype = window.row or Range("row", 1), window.image.dtype
        self.tall = window.tall
        self.others = [r for r in window.reduce.arg[1] if r not in (window.across, window.down)]
        self.summed = elements(self.others)
        self.size = window.last.size
        lanes = target.vector_bytes // dtype.itemsize
        self.lanes = min(lanes, 1 << (self.size.bit_length() - 1))
        self.pitch = round_up(self.size + -(-window.across.size // stride) - 1, self.lanes)
        line_bytes = self.pitch * window.phases * self.summed * dtype.itemsize
        most = STAGED // line_bytes - self.tall // stride
        outer = [r for r in computation.ranges if r not in (window.last, row)]
        image = outer.pop() if outer else Range("image", 1)
        tall = share(row.size, max(1, most))
        # parts of images are taken in the order of memory
        groups = elements(outer) if tall == row.size else 0
        images = share(image.size, max(1, image.size * groups // (GROUPS * target.compute_units)))
        self.nest = Nest(computation, outer, (row, tall), (image, images))
        self.rows, self.images = self.nest.sides
        self.image = self.images.steps("image")
        size = elements(computation.ranges) * stride * stride * dtype.itemsize
        self.far = not self.others and size > target.caches.second // 2
        self.nest.batch |= self.image.places
        self.around = {**self.nest.batch, **{r: r.index() for r in self.others}}
        self.plane = (self.rows.count - 1 + -(-self.tall // stride)) * self.pitch + self.lanes - 1
        self.plane = round_up(self.plane, self.lanes)
        self.planes = self.plane * window.phases  # elements of an image
        self.starts = self.line_starts()
        # memory behind the last line is read for results that are not stored, or seems to be
        spare = -(-window.across.size // stride) + self.size + WHOLE
        self.stage = Memory("stage", dtype, self.planes * self.summed + spare, "local")
        dtype = window.reduce.dtype
        # of bools, vectors are not contiguous in memory
        lanes = 1 if dtype is bool_ else target.vector_bytes // dtype.itemsize
        self.block = round_up(self.rows.count * self.size, WHOLE)
        self.totals = Memory("totals", dtype, self.block + self.size + lanes, "local")
        even = [n for n in range(1, MOST + 1) if self.rows.count % n == 0]
        tall = min(even, key=partial(self.cost, target))
        width, self.line_places = chunks(0, self.size, lanes)
        if self.size < lanes:
            width, self.line_places = 1 << (self.size - 1).bit_length(), [0]
        self.registers = Memory("lines", dtype, tall, "register", width)
        self.in_place = self.stores(constant(0), 1, constant(0)) is not None

    def cost(self, target: TargetSpec, rows: int) -> float:
        """Return the cost of a row of vectors of totals, of which so many are computed at once.
        Vectors of the stage begin anywhere in a line of cache. Weights are loaded for each total if
        instructions of these vectors take them from memory, or registers have no room."""
        window, places = self.window, elements(self.window.reduce.arg[1])
        lines = ((rows - 1) * window.stride + self.tall) * self.summed
        loads = lines * window.across.size * (1 + target.vector_bytes / LINE)
        held = 0 if window.weight is None else places
        if target.vector_bytes >= LINE or rows + held + BESIDE > vector_registers(target):
            loads += rows * held
        return rates_of(target).step(rows * places, loads) / rows

    def line_starts(self) -> list[int]:
        """Return for each phase of columns where a line begins, so that what is not padding begins
        at a whole vector."""
        window, stride = self.window, self.window.stride
        column = Range("column", window.columns)
        here = {window.last: constant(0), window.across: column.index()}
        low = first_inside(substitute(window.image, here), column)
        places = [(low + (phase - low) % stride) // stride for phase in range(stride)]
        return [-place % self.lanes for place in places]

    def kernel(self) -> Kernel:
        padding = self.padding()
        fill = nested(self.others, *self.fill(padding is not None))
        finish = () if self.in_place else self.finish()
        whole = [self.image.around(*fill, *self.lines(), *finish)]
        if padding is not None:
            whole.insert(0, filled("around", self.stage, padding))
        return self.nest.kernel(whole)

    def padding(self) -> Value | None:
        """Return the padding that all images of a group have at the same places, or None."""
        window, column = self.window, Range("column", self.window.columns)
        if self.images.count == 1:
            return None
        here = substitute(window.image, {window.last: constant(0), window.across: column.index()})
        return padding(here, column, frozenset({self.images.axis.main, *self.others}))

    def fill(self, padded: bool) -> Iterator[Statement]:
        """Copy the part of the image, separated by phases of rows and columns. padded: its padding
        is there."""
        window, stride, rows = self.window, self.window.stride, self.rows
        lanes = self.vector_bytes // self.stage.dtype.itemsize
        for vertical in range(min(stride, self.tall)):
            lines = rows.count - 1 + -(-(self.tall - vertical) // stride)
            line = Range(f"line{vertical}", lines)
            column = Range(f"column{vertical}", window.columns)
            here = {**self.around, window.last: constant(0), window.across: column.index()}
            if window.row is not None and window.down is not None:
                here |= {window.row: rows.start, window.down: line.index() * stride + vertical}
            number = flatten([r.index() for r in self.others], [r.size for r in self.others])
            planes = [
                number * self.planes + (vertical * stride + phase) * self.plane + self.starts[phase]
                for phase in range(stride)
            ]
            firsts = [line.index() * self.pitch + plane for plane in planes]
            image = substitute(window.image, here)
            body = copied(image, column, self.stage, firsts, lanes, padded)
            yield Loop(line, body, rows.left + (lines - rows.count))

    def lines(self) -> list[Statement]:
        """Return the loops that compute all rows of an image by vectors, some rows at a time."""
        tall, width, starts = self.registers.count, self.registers.lanes, self.line_places
        whole = max(1, self.size // width)  # vectors of a line but an overlapping last one
        block, left = Range("block", self.rows.count // tall), self.rows.left
        vector = Range("vector", max(whole, len(starts)))
        start = vector.index() * width
        if whole < vector.size:  # the last one overlaps
            start = vector.index() % whole * width + vector.index() // whole * starts[-1]

        def some(first: Index, count: int) -> Loop:
            ahead = self.ahead(first, count, start, width) if self.far else ()
            stores = self.stores(first, count, start) if self.in_place else None
            stores = stores or self.kept(first, count, start)
            return Loop(vector, (*ahead, *self.totals_of(first, count, start), *stores))

        body: list[Statement] = [Loop(block, (some(block.index() * tall, tall),), left // tall)]
        over = self.rows.axis.main.size % self.rows.count  # rows of the last group
        if over % tall:
            rest = Range("rest", over % tall)
            last = some(constant(over - rest.size) + rest.index(), 1)
            alone = at_least_zero(constant(self.rows.count - 1) - left)
            body.append(If(alone, (Loop(rest, (last,)),)))
        return body

    def kept(self, first: Index, count: int, start: Index) -> list[Store]:
        """Return the stores of a vector of totals of some lines. A line that is shorter than a
        vector is stored with what is behind it, which the next line overwrites."""
        return [
            Store(self.totals, (first + row) * self.size + start,
                  load(self.registers, constant(row), lanes=self.registers.lanes))
            for row in range(count)
        ]  # fmt: skip

    def stores(self, first: Index, count: int, start: Index) -> list[Store] | None:
        """Return the stores of a vector of results of some rows; None if they cannot be computed as
        vectors. Of a row that is shorter than a vector the last store is in two parts."""
        width, stores = self.registers.lanes, []
        for row in range(count):
            places = {**self.nest.batch, **self.rows.places(first + row)}
            vector = load(self.registers, constant(row), lanes=width)
            store = in_lanes(self.nest.computation, self.window.reduce, places,
                             Axis(self.window.last).whole, start, vector)  # fmt: skip
            # a vector behind the end of a row may be behind the end of an array
            if store is None or (self.size < width and any(map(_reads, walk(store.value)))):
                return None
            stores.append(store)
        if self.size < width:
            stores[-1:] = _in_parts(stores[-1], self.size)
        return stores

    def ahead(self, first: Index, count: int, start: Index, lanes: int) -> Iterator[Prefetch]:
        """Begin to bring the part of the image that the next block of rows, or the next image,
        needs: while it is copied, nothing is computed."""
        window, stride = self.window, self.window.stride
        for node in walk(window.image):
            if node.op != "load" or window.row is None or window.down is None:
                continue
            line = LINE // node.dtype.itemsize
            for row, down in product(range(count), range(stride)):
                places = {**self.around, window.last: start, window.down: constant(down)}
                places |= self.rows.places(first + (self.rows.count + row))
                for column in range(0, lanes * stride, line):
                    here = {**places, window.across: constant(column)}
                    yield Prefetch(node.arg.memory, node.arg.index.substitute(here))

    def totals_of(self, first: Index, count: int, start: Index) -> Iterator[Store]:
        """Compute totals of some lines of a block. Each vector of the stage is loaded once."""
        window, stride, lanes = self.window, self.window.stride, self.registers.lanes
        operation, dtype = window.reduce.arg[0], self.totals.dtype
        totals = {row: broadcast(identity(operation, dtype), lanes) for row in range(count)}
        lines, columns = (count - 1) * stride + self.tall, window.across.size
        for image, line, across in product(range(self.summed), range(lines), range(columns)):
            place = (first + line // stride) * self.pitch + across // stride + start
            place += (line % stride * stride + across % stride) * self.plane
            place += image * self.planes + self.starts[across % stride]
            term = load(self.stage, place, lanes=lanes)
            for row in range(count):
                down = line - row * stride
                if not 0 <= down < self.tall:
                    continue
                if window.weight is None:
                    total = combine(operation, totals[row], term)
                else:
                    weight = substitute(window.weight, self.place(image, down, across))
                    total = multiply_add(broadcast(weight, lanes), term, totals[row])
                yield Store(self.registers, constant(row), total)
                totals[row] = load(self.registers, constant(row), lanes=lanes)

    def place(self, image: int, down: int, across: int) -> dict[Range, Index]:
        """Return the values of all ranges of a weight."""
        images = unflatten(constant(image), tuple(r.size for r in self.others))
        here = {**self.around, **dict(zip(self.others, images, strict=True))}
        here[self.window.across] = constant(across)
        return here if self.window.down is None else {**here, self.window.down: constant(down)}

    def finish(self) -> Iterator[Statement]:
        """Yield epilogue and stores of totals that are in memory. An epilogue that is the same for
        all results of an image is applied to all totals first, also to those behind the last
        row: these are whole vectors."""
        nest, window, rows, root = self.nest, self.window, self.rows, self.nest.computation.value
        rest = replace(root, window.reduce, const(0, self.totals.dtype))
        early = ranges_of(rest).isdisjoint({window.last, window.row})
        early = early and root.dtype is self.totals.dtype
        if early:
            step = Range("step", self.block)
            total = load(self.totals, step.index())
            here, reduce = (substitute(each, nest.batch) for each in (root, window.reduce))
            store = Store(self.totals, step.index(), replace(here, reduce, total))
            yield Loop(step, (store,))
        block = Part(Axis(rows.axis.main, (window.last,)), rows.start, rows.count)
        each = block.walk("r", nest.computation.position, *([] if early else [rest]))
        total = load(self.totals, each.position)
        places, reduced = {**nest.batch, **each.places}, None if early else window.reduce
        yield each.around(result(nest.computation, places, total, reduced))


def _reads(node: Value) -> bool:
    """Return whether a value reads a vector of an array."""
    return node.op == "load" and node.lanes > 1 and node.arg.memory.space == "global"


def _in_parts(store: Store, size: int) -> tuple[Store, Store]:
    """Return the stores of the first `size` elements of a vector that has less than twice as
    many."""
    vector, half = store.value, store.value.lanes // 2
    parts = []
    for start in (0, size - half):
        mask = tuple(range(start, start + half))
        part = value("shuffle", vector.dtype, (vector, vector), mask, half)
        parts.append(Store(store.memory, store.index + start, part))
    return parts[0], parts[1]
