"""Reductions over small windows on the host: depthwise convolutions and pooling.

    before   out[c, y, x] = sum over i, j of w[c, i, j] * image[c, s*y + i, s*x + j]
    after    for each c, a block of rows at a time:
             stage    the part of the image that is needed, padding included: [phase][row][column],
                      columns and rows that are `s` apart side by side
             totals   total[p] = w[c, 0, 0] * stage[p] + w[c, 0, 1] * stage[p + 1] + ...
             results  out[c, y, x] = total[y * pitch + x]
    or       for a vector of x and some rows y at a time, in registers, if results can be computed
             as vectors: an element of the stage is loaded once for all rows that it adds to

Each element of the image is evaluated once, with its padding and the operations fused into it. All
places of a window are unrolled. Rows of results are computed as one: the places between two rows
are computed too, and not stored. Images of 7 or 14 columns thus fill vectors as large ones do. A
group computes several images; their padding is written once, if it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import combine, identity, multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
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
from ugpu.compiler.kernel.host.nest import Axis, Nest, nested, round_up, share
from ugpu.compiler.kernel.host.products.packing import LINE
from ugpu.compiler.kernel.host.products.results import in_lanes
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Prefetch, Statement, Store
from ugpu.compiler.kernel.shared.kernels import result
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.contraction import ranges_of
from ugpu.hcq.state.target import TargetSpec

GROUPS = 4  # minimum groups for each thread
FEWEST = 4  # columns from which on lines are vectors
TALL, MOST = 2, 4  # rows of a block: totals that registers have room for; more gain nothing
SPARE = 4  # registers that do not hold weights
WHOLE = 64  # elements: whole vectors, as many as loops take at once
STAGED = 16 << 10  # approximate image bytes that a group holds: half of a first-level cache


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
        window = Window(reduce, image, weight, last, across, None, None, stride)
    else:
        window = Window(reduce, image, weight, last, across, row, below[0], stride)
    down = 1 if window.down is None else window.down.size
    columns = (last.size - 1) * stride + across.size
    phases = stride * (1 if window.row is None else stride)
    return window if cost.in_windows(down, across.size, columns, phases) else None


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
    by_vectors = _Windows(computation, window, target, True).kernel()
    return by_vectors or _Windows(computation, window, target, False).whole_lines()


class _Windows:
    """Sizes and memories of one kernel. aligned: whether copies of lines are to begin where vectors
    do, with room between them; if not, lines follow each other."""

    def __init__(
        self, computation: Computation, window: Window, target: TargetSpec, aligned: bool
    ) -> None:
        self.abreast = vector_registers(target) - SPARE
        self.vector_bytes = target.vector_bytes
        self.window, stride = window, window.stride
        row = window.row or Range("row", 1)
        self.tall = 1 if window.down is None else window.down.size
        dtype = window.image.dtype
        self.pitch = window.last.size + -(-window.across.size // stride) - 1
        lanes = target.vector_bytes // dtype.itemsize
        self.lanes = min(lanes, 1 << (window.last.size.bit_length() - 1)) if aligned else 1
        self.pitch = round_up(self.pitch, self.lanes)
        phases = stride * (1 if window.row is None else stride)
        most = STAGED // (self.pitch * phases * dtype.itemsize) - self.tall // stride
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
        self.far = size > target.caches.second // 2
        self.nest.batch |= self.image.places
        self.plane = (self.rows.count - 1 + -(-self.tall // stride)) * self.pitch + self.lanes - 1
        self.plane = round_up(self.plane, self.lanes)
        self.starts = self.line_starts()
        # memory behind the last line is read for results that are not stored, or seems to be
        spare = -(-window.across.size // stride) + window.last.size + WHOLE
        self.stage = Memory("stage", dtype, self.plane * phases + spare, "local")
        count = round_up((self.rows.count - 1) * self.pitch + window.last.size, WHOLE)
        self.totals = Memory("totals", window.reduce.dtype, count, "local")
        self.others = [r for r in window.reduce.arg[1] if r not in (window.across, window.down)]
        self.around = {**self.nest.batch, **{r: r.index() for r in self.others}}
        # whether the epilogue is the same for all results of an image, and is applied while totals
        # are still in vectors
        rest = ranges_of(replace(computation.value, window.reduce, const(0, self.totals.dtype)))
        alike = computation.value.dtype is self.totals.dtype
        self.early = alike and not self.others and rest.isdisjoint({window.last, window.row})

    def line_starts(self) -> list[int]:
        """Return for each phase of columns where a line begins, so that what is not padding begins
        at a whole vector."""
        window, stride = self.window, self.window.stride
        column = Range("column", (window.last.size - 1) * stride + window.across.size)
        here = {window.last: constant(0), window.across: column.index()}
        low = first_inside(substitute(window.image, here), column)
        places = [(low + (phase - low) % stride) // stride for phase in range(stride)]
        return [-place % self.lanes for place in places]

    def kernel(self) -> Kernel | None:
        """Return the kernel whose totals stay in registers, if results fill vectors."""
        registers = None if self.others else self.in_registers()
        if registers is None:
            return None
        padding = self.padding()
        fill = self.fill(padding is not None)
        return self.around_images((*fill, *registers[1]), [self.stage, *registers[0]], padding)

    def whole_lines(self) -> Kernel:
        """Return the kernel whose totals are in memory."""
        padding = self.padding()
        # one image after the other, if several are summed
        body = nested(self.others, *self.fill(padding is not None), *self.add())
        body = (*((self.clear(),) if self.others else ()), *body, self.finish())
        return self.around_images(body, [self.stage, self.totals], padding)

    def around_images(
        self, body: tuple[Statement, ...], memories: list[Memory], padding: Value | None
    ) -> Kernel:
        whole = [self.image.around(*body)]
        if padding is not None:
            counter = Range("around", self.stage.count)
            whole.insert(0, Loop(counter, (Store(self.stage, counter.index(), padding),)))
        return self.nest.kernel(memories, whole)

    def padding(self) -> Value | None:
        """Return the padding that all images of a group have at the same places, or None."""
        window, column = self.window, Range("column", self.window.across.size)
        if self.images.count == 1 or self.vectors == 0:
            return None
        here = substitute(window.image, {window.last: constant(0), window.across: column.index()})
        return padding(here, column, frozenset({self.images.axis.main, *self.others}))

    def clear(self) -> Statement:
        counter = Range("clear", self.totals.count)
        first = identity(self.window.reduce.arg[0], self.totals.dtype)
        return Loop(counter, (Store(self.totals, counter.index(), first),))

    @property
    def vectors(self) -> int:
        """Elements of the vectors by which lines are copied; 0 if one by one."""
        by_rows = self.window.row is not None and self.tall >= self.window.stride
        return self.vector_bytes // self.stage.dtype.itemsize if by_rows else 0

    def fill(self, padded: bool) -> Iterator[Statement]:
        """Copy the part of the image, separated by phases of rows and columns. padded: its padding
        is there."""
        window, stride, rows = self.window, self.window.stride, self.rows
        for vertical in range(min(stride, self.tall)):
            lines = rows.count - 1 + -(-(self.tall - vertical) // stride)
            line = Range(f"line{vertical}", lines)
            size = (window.last.size - 1) * stride + window.across.size
            column = Range(f"column{vertical}", size)
            here = {**self.around, window.last: constant(0), window.across: column.index()}
            if window.row is not None and window.down is not None:
                here |= {window.row: rows.start, window.down: line.index() * stride + vertical}
            planes = [
                (vertical * stride + phase) * self.plane + self.starts[phase]
                for phase in range(stride)
            ]
            firsts = [line.index() * self.pitch + plane for plane in planes]
            image = substitute(window.image, here)
            body = copied(image, column, self.stage, firsts, self.vectors, padded)
            yield Loop(line, body, rows.left + (lines - rows.count))

    # ---- totals in registers -------------------------------------------------------------------

    def in_registers(self) -> tuple[list[Memory], list[Statement]] | None:
        """Return the statements that compute totals and results of an image as vectors, and their
        memory; None if results do not fill vectors. A line that is shorter than a vector is stored
        with what is behind it, which the next line overwrites; the last one is stored in two
        parts."""
        size, dtype = self.window.last.size, self.totals.dtype
        lanes = self.vector_bytes // dtype.itemsize
        if dtype is not float32 or self.stage.dtype is not float32 or size < FEWEST:
            return None
        width, starts = chunks(0, size, lanes)
        if size < lanes:
            width, starts = 1 << (size - 1).bit_length(), [0]
        whole = max(1, size // width)  # vectors of a line but an overlapping last one
        places = self.tall * self.window.across.size
        most = max(TALL, min(self.abreast - places, MOST))
        tall = max(n for n in range(1, most + 1) if self.rows.count % n == 0)
        totals = Memory("lines", dtype, tall, "register", width)
        block, left = Range("block", self.rows.count // tall), self.rows.left
        vector = Range("vector", max(whole, len(starts)))
        start = vector.index() * width
        if whole < vector.size:  # the last one overlaps
            start = vector.index() % whole * width + vector.index() // whole * starts[-1]

        def lines(first: Index, count: int) -> list[Statement] | None:
            made = self.line(first, count, start, totals)
            return None if made is None else [Loop(vector, tuple(made))]

        blocks = lines(block.index() * tall, tall)
        over = self.rows.axis.main.size % self.rows.count  # rows of the last group
        rest = Range("rest", over % tall) if over % tall else None
        if blocks is None:
            return None
        body: list[Statement] = [Loop(block, tuple(blocks), left // tall)]
        if rest is not None:
            last = lines(constant(over - rest.size) + rest.index(), 1)
            if last is None:
                return None
            alone = at_least_zero(constant(self.rows.count - 1) - left)
            body.append(If(alone, (Loop(rest, tuple(last)),)))
        return [totals], body

    def line(
        self, first: Index, count: int, start: Index, totals: Memory
    ) -> list[Statement] | None:
        """Compute a vector of results of some rows; None if they do not fill vectors."""
        size, stores = self.window.last.size, []
        for row in range(count):
            store = self.store(first + row, start, totals, row)
            if store is None:
                return None
            if size < totals.lanes and any(map(_reads, walk(store.value))):
                return None  # it would read behind the end of an array
            stores.append(store)
        last = _in_parts(stores[-1], size) if size < totals.lanes else stores[-1:]
        ahead = self.ahead(first, count, start, totals.lanes) if self.far else ()
        return [*ahead, *self.totals_of(first, count, start, totals), *stores[:-1], *last]

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

    def store(self, row: Index, start: Index, totals: Memory, number: int) -> Store | None:
        """Return the store of a vector of results of a row."""
        lane, computation = Range("lane", totals.lanes), self.nest.computation
        places = {**self.nest.batch, self.window.last: start + lane.index()}
        places |= self.rows.places(row)
        total = load(self.totals, lane.index())
        one = result(computation, places, total, self.window.reduce)
        return in_lanes(one, lane, total, load(totals, constant(number), lanes=totals.lanes))

    def totals_of(self, first: Index, count: int, start: Index, totals: Memory) -> Iterator[Store]:
        """Compute totals of some rows of a block. Each vector of the stage is loaded once."""
        window, stride, lanes = self.window, self.window.stride, totals.lanes
        operation = window.reduce.arg[0]
        fresh = set(range(count))
        for line in range((count - 1) * stride + self.tall):
            for across in range(window.across.size):
                place = (first + line // stride) * self.pitch + across // stride + start
                place += (line % stride * stride + across % stride) * self.plane
                place += self.starts[across % stride]
                term = load(self.stage, place, lanes=lanes)
                for row in range(count):
                    down = line - row * stride
                    if not 0 <= down < self.tall:
                        continue
                    slot = constant(row)
                    total = load(totals, slot, lanes=lanes)
                    if row in fresh:
                        total = broadcast(identity(operation, totals.dtype), lanes)
                        fresh.discard(row)
                    if window.weight is None:
                        yield Store(totals, slot, combine(operation, total, term))
                        continue
                    weight = broadcast(substitute(window.weight, self.place(down, across)), lanes)
                    yield Store(totals, slot, multiply_add(weight, term, total))

    def place(self, down: int, across: int) -> dict[Range, Index]:
        """Return the values of all ranges of a weight."""
        here = {**self.around, self.window.across: constant(across)}
        return here if self.window.down is None else {**here, self.window.down: constant(down)}

    # ---- totals in memory ----------------------------------------------------------------------

    def add(self) -> Iterator[Statement]:
        """Add all places of a window, for each result of the block: as many at a time as there are
        registers for their weights. Totals of a single image start from zero."""
        window, stride = self.window, self.window.stride
        operation = window.reduce.arg[0]
        places = list(product(range(self.tall), range(window.across.size)))
        for first in range(0, len(places), self.abreast):
            step = Range(f"j{first}", self.totals.count)
            total = load(self.totals, step.index())
            if not self.others and first == 0:
                total = identity(operation, self.totals.dtype)
            for down, across in places[first : first + self.abreast]:
                place = down // stride * self.pitch + across // stride
                place += (down % stride * stride + across % stride) * self.plane
                term = load(self.stage, step.index() + place)
                if window.weight is None:
                    total = combine(operation, total, term)
                    continue
                weight = substitute(window.weight, self.place(down, across))
                total = multiply_add(weight, term, total)
            if self.early and first + self.abreast >= len(places):
                root = substitute(self.nest.computation.value, self.around)
                total = replace(root, substitute(window.reduce, self.around), total)
            yield Loop(step, (Store(self.totals, step.index(), total),))

    def finish(self) -> Statement:
        """Return epilogue and stores: of whole lines by vectors, if they need no epilogue and are
        contiguous in memory."""
        nest, last = self.nest, self.window.last
        line, column = self.rows.steps("r"), Axis(last).whole.walk("c")
        at = line.position * self.pitch
        to = nest.computation.position.substitute({**nest.batch, **line.places})
        if self.early and to.linear(last) == (1,):
            width, starts = chunks(0, last.size, self.vector_bytes // self.totals.dtype.itemsize)
            stores = [
                Store(nest.computation.output, to - last.index() + start,
                      load(self.totals, at + start, lanes=width))
                for start in starts
            ]  # fmt: skip
            return line.around(*stores)
        total = load(self.totals, at + column.position)
        return nest.finish(line, column, total, None if self.early else self.window.reduce)


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
