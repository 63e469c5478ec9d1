"""Reductions over small windows on the host: depthwise convolutions and pooling.

    before   out[c, y, x] = sum over i, j of w[c, i, j] * image[c, s*y + i, s*x + j]
    after    for each c, a block of rows at a time:
             stage    the part of the image that is needed, padding included: [phase][row][column],
                      columns and rows that are `s` apart side by side
             totals   total[p] = w[c, 0, 0] * stage[p] + w[c, 0, 1] * stage[p + 1] + ...
             results  out[c, y, x] = total[y * pitch + x]

Each element of the image is evaluated once, with its padding and the operations fused into it. All
places of a window are unrolled. Rows of results are computed as one: the places between two rows
are computed too, and not stored. Images of 7 or 14 columns thus fill vectors as large ones do.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.expression.accumulate import combine, identity, multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, const, load, own_indices, substitute, walk
from ugpu.compiler.kernel.host.lines import chunks, parted, staged
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_of
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.contraction import ranges_of
from ugpu.hcq.state.target import TargetSpec

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
    found = _coupled(image, last, over)
    if found is None:
        return None
    across, stride = found
    below = None if row is None else _coupled(image, row, over)
    if below is None or below[0] is across or below[1] != stride:
        window = Window(reduce, image, weight, last, across, None, None, stride)
    else:
        window = Window(reduce, image, weight, last, across, row, below[0], stride)
    down = 1 if window.down is None else window.down.size
    columns = (last.size - 1) * stride + across.size
    phases = stride * (1 if window.row is None else stride)
    return window if cost.in_windows(down, across.size, columns, phases) else None


def _coupled(image: Value, out: Range, over: tuple[Range, ...]) -> tuple[Range, int] | None:
    """Return the reduced range that a value depends on only in a sum with an output's range, and
    how many of its steps are one of the output's."""
    for each in reversed(over):
        steps = {_step(index, out, each) for node in walk(image) for index in own_indices(node)}
        steps.discard(0)
        if len(steps) == 1 and (step := steps.pop()) > 0:
            return each, step
    return None


def _step(index: Index, out: Range, over: Range) -> int:
    """Return how many steps of range `over` are one of `out`: 0 if the index has neither, -1 if it
    has them other than in such a sum."""
    one, other = index.coefficient(out), index.coefficient(over)
    rest = index - out.index() * one - over.index() * other
    if not rest.ranges().isdisjoint((out, over)):
        return -1
    if not one and not other:
        return 0
    return one // other if other and one % other == 0 and one // other > 0 else -1


def reduction(computation: Computation, window: Window, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute blocks of rows of an image."""
    return _Windows(computation, window, target).kernel()


class _Windows:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, window: Window, target: TargetSpec) -> None:
        self.abreast = vector_registers(target) - SPARE
        self.vector_bytes = target.vector_bytes
        self.computation, self.window = computation, window
        reduce, row, down = window.reduce, window.row, window.down
        stride = window.stride
        self.tall = 1 if down is None else down.size
        self.height = 1 if row is None else row.size
        self.pitch = window.last.size + -(-window.across.size // stride) - 1
        phases = stride * (1 if row is None else stride)
        line = self.pitch * phases * window.image.dtype.itemsize
        most = max(1, STAGED // line - self.tall // stride)
        self.rows = -(-self.height // -(-self.height // most))
        outer = tuple(r for r in computation.ranges if r not in (window.last, row))
        self.grid = (-(-self.height // self.rows), elements(outer), 1)
        self.start = group_range(0, self.grid[0]).index() * self.rows
        self.bound = constant(self.height) - self.start
        self.around = groups_at(outer, 1)
        self.lines = self.rows - 1 + -(-self.tall // stride)
        self.plane = self.lines * self.pitch
        # memory behind the last line is read for results that are not stored
        spare = -(-window.across.size // stride) + WHOLE
        dtype = window.image.dtype
        self.stage = Memory("stage", dtype, self.plane * phases + spare, "local")
        count = (self.rows - 1) * self.pitch + window.last.size
        count = -(-count // WHOLE) * WHOLE
        self.totals = Memory("totals", reduce.dtype, count, "local")
        self.others = tuple(
            r for r in window.reduce.arg[1] if r not in (window.across, window.down)
        )  # fmt: skip
        self.early = self.is_early()

    def is_early(self) -> bool:
        """Return whether the epilogue is the same for all results of an image, and is applied while
        totals are still in vectors."""
        window, computation = self.window, self.computation
        nothing = const(0, self.totals.dtype)
        rest = ranges_of(replace(computation.value, window.reduce, nothing))
        alike = computation.value.dtype is self.totals.dtype
        return alike and not self.others and rest.isdisjoint({window.last, window.row})

    def kernel(self) -> Kernel:
        at = {r: r.index() for r in self.others}
        body: tuple[Statement, ...] = (*self.fill(at), *self.add(at))
        for counter in reversed(self.others):  # one image after the other, if several are summed
            body = (Loop(counter, body),)
        if self.others:
            body = (self.clear(), *body)
        memories = (self.stage, self.totals)
        return kernel_of(self.computation, memories, self.grid, 1, (*body, self.finish()))

    def clear(self) -> Statement:
        counter = Range("clear", self.totals.count)
        first = identity(self.window.reduce.arg[0], self.totals.dtype)
        return Loop(counter, (Store(self.totals, counter.index(), first),))

    def fill(self, at: dict[Range, Index]) -> list[Statement]:
        """Copy the part of the image, separated by phases of rows and columns."""
        window, stride = self.window, self.window.stride
        whole = self.whole_lines(at)
        if whole:
            return whole
        statements: list[Statement] = []
        for vertical in range(stride if window.row is not None else 1):
            for phase in range(stride):
                lines = self.rows - 1 + -(-(self.tall - vertical) // stride)
                columns = window.last.size - 1 + -(-(window.across.size - phase) // stride)
                if self.tall <= vertical or window.across.size <= phase:
                    continue
                suffix = f"{vertical}{phase}"
                line, column = Range("line" + suffix, lines), Range("column" + suffix, columns)
                here = {**self.around, **at, window.last: constant(0)}
                here[window.across] = column.index() * stride + phase
                if window.row is not None and window.down is not None:
                    here[window.row] = self.start
                    here[window.down] = line.index() * stride + vertical
                place = line.index() * self.pitch + column.index() + self.first(vertical, phase)
                body = self.copied(substitute(window.image, here), place, column)
                statements.append(Loop(line, body, self.bound + (lines - self.rows)))
        return statements

    def whole_lines(self, at: dict[Range, Index]) -> list[Statement]:
        """Copy the same by vectors, columns of all phases at once, if a line is contiguous in
        memory; otherwise return nothing."""
        window, stride = self.window, self.window.stride
        if window.row is None or window.down is None or stride > 2 or self.tall < stride:
            return []
        statements: list[Statement] = []
        column = Range("column", (window.last.size - 1) * stride + window.across.size)
        for vertical in range(stride):
            lines = self.rows - 1 + -(-(self.tall - vertical) // stride)
            line = Range(f"line{vertical}", lines)
            here = {**self.around, **at, window.last: constant(0), window.row: self.start}
            here[window.across] = column.index()
            here[window.down] = line.index() * stride + vertical
            firsts = [
                line.index() * self.pitch + self.first(vertical, phase) for phase in range(stride)
            ]
            lanes = self.vector_bytes // self.stage.dtype.itemsize
            body = staged(substitute(window.image, here), column, self.stage, firsts, lanes)
            if not body:
                return []
            statements.append(Loop(line, body, self.bound + (lines - self.rows)))
        return statements

    def copied(self, image: Value, place: Index, column: Range) -> tuple[Statement, ...]:
        """Copy a line of the image. Padding is written first, then the elements inside, without a
        test for each."""
        line = parted(image, column)
        if not line.padded:
            return (Loop(column, (Store(self.stage, place, image),)),)
        inside, outside, low, high, others = line
        around = Loop(column, (Store(self.stage, place, outside),))
        if low >= high:
            return (around,)
        middle = Range(column.name + "in", high - low)
        at = {column: middle.index() + low}
        store = Store(self.stage, place.substitute(at), substitute(inside, at))
        copy: Statement = Loop(middle, (store,))
        return around, If(tuple(others), (copy,)) if others else copy

    def first(self, vertical: int, phase: int) -> int:
        """Return where the plane of a phase begins."""
        return (vertical * self.window.stride + phase) * self.plane

    def add(self, at: dict[Range, Index]) -> list[Statement]:
        """Add all places of a window, for each result of the block: as many at a time as there are
        registers for their weights. Totals of a single image start from zero."""
        window, stride = self.window, self.window.stride
        operation = window.reduce.arg[0]
        places = [(y, x) for y in range(self.tall) for x in range(window.across.size)]
        loops: list[Statement] = []
        for first in range(0, len(places), self.abreast):
            step = Range(f"j{first}", self.totals.count)
            total = load(self.totals, step.index())
            if not self.others and first == 0:
                total = identity(operation, self.totals.dtype)
            for down, across in places[first : first + self.abreast]:
                place = down // stride * self.pitch + across // stride
                place += self.first(down % stride, across % stride)
                term = load(self.stage, step.index() + place)
                if window.weight is None:
                    total = combine(operation, total, term)
                    continue
                here = {**self.around, **at, window.across: constant(across)}
                if window.down is not None:
                    here[window.down] = constant(down)
                total = multiply_add(substitute(window.weight, here), term, total)
            if self.early and first + self.abreast >= len(places):
                total = replace(
                    substitute(self.computation.value, self.around),
                    substitute(window.reduce, self.around),
                    total,
                )
            loops.append(Loop(step, (Store(self.totals, step.index(), total),)))
        return loops

    def finish(self) -> Statement:
        """Return epilogue and stores."""
        window, computation = self.window, self.computation
        if self.early and (stores := self.finished_lines()):
            return stores
        line, column = Range("r", self.rows), Range("c", window.last.size)
        here = {**self.around, window.last: column.index()}
        if window.row is not None:
            here[window.row] = self.start + line.index()
        known = load(self.totals, line.index() * self.pitch + column.index())
        root = substitute(computation.value, here)
        result = known if self.early else replace(root, substitute(window.reduce, here), known)
        store = Store(computation.output, computation.position.substitute(here), result)
        return Loop(line, (Loop(column, (store,)),), self.bound)

    def finished_lines(self) -> Statement | None:
        """Return stores of whole lines by vectors, if they are contiguous in memory."""
        window, computation = self.window, self.computation
        line = Range("r", self.rows)
        here = dict(self.around)
        if window.row is not None:
            here[window.row] = self.start + line.index()
        position = computation.position.substitute(here)
        if position.coefficient(window.last) != 1:
            return None
        first = position.substitute({window.last: constant(0)})
        if position - window.last.index() != first:
            return None
        lanes = self.vector_bytes // self.totals.dtype.itemsize
        width, starts = chunks(0, window.last.size, lanes)
        stores = [
            Store(
                computation.output,
                first + start,
                load(self.totals, line.index() * self.pitch + start, lanes=width),
            )
            for start in starts
        ]
        return Loop(line, tuple(stores), self.bound)
