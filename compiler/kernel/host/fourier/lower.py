"""Fourier transforms on the host: a vector of signals side by side.

    ping, pong   [place][part][signal of the vector]: what one pass reads and the next one writes

A pass of radix r combines r elements a r-th of the (rest of the) length apart and multiplies by
turns. Its results go where those of the next pass are neighbours, so that the last pass leaves all
elements in their order (the autosort method of T. Stockham, 1966). The signals of a vector are
neighbours in memory, or each lies along memory: such are transposed as they are read and written,
tile by tile of as many numbers as a vector has.

2 n real numbers are transformed as n complex ones, from whose transform, read from both ends, that
of the even and that of the odd numbers are taken apart.
"""

from __future__ import annotations

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import Memory, Value, binary, broadcast, load, substitute, value
from ugpu.compiler.graph.fourier import Axes
from ugpu.compiler.kernel.host.abreast import Abreast
from ugpu.compiler.kernel.host.fourier.butterflies import (
    Complex,
    add,
    negative,
    number,
    quarter,
    scaled,
    sub,
    times,
    transform,
    turned,
)
from ugpu.compiler.kernel.host.fourier.turns import factors
from ugpu.compiler.kernel.host.nest import Rows
from ugpu.compiler.kernel.host.products.packing import transpose
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store
from ugpu.hcq.state.target import TargetSpec

INNER = {16: 4, 12: 4, 10: 5, 9: 3, 8: 4, 6: 3}  # the inner factor of a radix that is a product


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation of transforms."""
    return _Transform(computation, target).kernel()


class _Transform:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, target: TargetSpec) -> None:
        self.computation = computation
        _, self.axes, _ = computation.value.arg
        self.signals = self.axes.signals
        sources = [ops.expand(each) for each in computation.value.sources]
        self.body, self.turns, *self.factors = sources
        dtype = computation.output.dtype
        self.lanes = lanes = max(4, target.vector_bytes // dtype.itemsize)
        self.radices = factors(self.signals.size) or ()
        room = (self.signals.size + (self.signals.real != "")) * 2 * lanes
        self.ping, self.pong = (Memory(name, dtype, room, "local") for name in ("ping", "pong"))
        most = max(self.radices)
        self.held = Memory("held", dtype, 2 * most, "register", lanes)
        self.across = self.signals.inner > 1
        together = self.signals.inner if self.across else self.signals.count
        blocks = -(-together // lanes)
        total = blocks * (self.signals.count if self.across else 1)
        self.vectors = Rows(computation, total, self.signals.size * lanes)
        number = self.vectors.number
        self.row: Index | None = number // blocks if self.across else None
        block = number % blocks if self.across else number
        self.rows = Abreast(together, lanes, block * lanes)

    def kernel(self) -> Kernel:
        steps: list[Statement] = self.rows.whole(self._taken(), self._taken_apart())
        if self.signals.real == "back":
            steps += self._mirrored(1)
        self._passes(steps)
        if self.signals.real == "forward":
            steps += self._mirrored(-1)
        steps += self.rows.whole(self._given(), self._given_apart())
        return self.vectors.kernel(steps)

    # ---- between the arrays and the vectors ----------------------------------------------------

    def _places(self, lane: Index) -> dict[Range, Index]:
        """Return the row and column of a signal of the vector."""
        axes, at = self.axes, self.rows.first + lane
        if self.row is not None:
            return {axes.row: self.row, axes.column: at}
        return {axes.row: at, axes.column: constant(0)}

    def _taken(self) -> list[Statement] | None:
        """Read all signals of the vector; None if memory does not run along signals or elements."""
        axes = self.axes
        if self.body.op != "load" or self.body.arg.conditions:
            return None
        index: Index = self.body.arg.index
        along = axes.column if self.across else axes.place
        steps = index.linear(along, axes.part) if along.size > 1 else None
        if steps != (2, 1):
            return None

        def read(row: int, place: Index, column: int) -> Value:
            at = self._places(constant(row + column)) | {axes.place: place, axes.part: constant(0)}
            return load(self.body.arg.memory, index.substitute(at), (), self.lanes)

        lanes, half = self.lanes, self.lanes // 2
        if self.across:
            place = self.rows.range(self.signals.given)
            pair = (read(0, place.index(), 0), read(0, place.index(), half))
            masks = [tuple(range(part, 2 * lanes, 2)) for part in (0, 1)]
            both = [value("shuffle", pair[0].dtype, pair, mask, lanes) for mask in masks]
            return [Loop(place, tuple(self._put(self.ping, place.index(), (both[0], both[1]))),
                         rolled=True)]  # fmt: skip

        def tile(place: Index) -> tuple[Statement, ...]:
            vectors = transpose([read(row, place, 0) for row in range(lanes)])
            return tuple([
                Store(self.ping, place * (2 * lanes) + i * lanes, each)
                for i, each in enumerate(vectors)
            ])  # fmt: skip

        return self.rows.tiles(self.signals.given, half, tile)

    def _taken_apart(self) -> Statement:
        """Read element by element; signals beyond the last are read as others."""
        lane, part = self.rows.range(self.lanes), self.rows.range(2)
        place = self.rows.range(self.signals.given)
        axes, main = self.axes, self.axes.column if self.across else self.axes.row
        at = self._places(lane.index())
        at[main] = at[main] % self.rows.count
        element = substitute(self.body, at | {axes.place: place.index(), axes.part: part.index()})
        to = (place.index() * 2 + part.index()) * self.lanes + lane.index()
        return self.rows.apart([place, part], lane, Store(self.ping, to, element))

    def _given(self) -> list[Statement] | None:
        """Write all results of the vector."""
        lanes, output = self.lanes, self.computation.output
        signals = self.signals
        if self.row is not None or signals.together > 1:
            if signals.together % lanes and self.row is None:
                return None
            place = self.rows.range(signals.wanted)
            at = self._places(constant(0)) | {self.axes.place: place.index()}
            pair = self._multiplied(self._get(self.ping, place.index()), at)
            to = self._to(at)
            mixed = [each for i in range(lanes) for each in (i, lanes + i)]
            both = tuple(mixed[:lanes]), tuple(mixed[lanes:])
            stores = [
                Store(output, to + i * lanes, value("shuffle", pair[0].dtype, pair, mask, lanes))
                for i, mask in enumerate(both)
            ]
            return [Loop(place, tuple(stores), rolled=True)]

        def tile(place: Index) -> tuple[Statement, ...]:
            pairs = [self._scaled(self._get(self.ping, place + i)) for i in range(lanes // 2)]
            vectors = transpose([part for pair in pairs for part in pair])
            start = self.rows.first * (2 * signals.wanted) + place * 2
            return tuple([
                Store(output, start + row * (2 * signals.wanted), each)
                for row, each in enumerate(vectors)
            ])  # fmt: skip

        return self.rows.tiles(signals.wanted, lanes // 2, tile)

    def _given_apart(self) -> Statement:
        lane, place = (self.rows.range(n) for n in (self.lanes, self.signals.wanted))
        at = self._places(lane.index()) | {self.axes.place: place.index()}
        first = place.index() * (2 * self.lanes) + lane.index()
        found = load(self.ping, first), load(self.ping, first + self.lanes)
        real, imaginary = self._multiplied(found, at)
        output, to = self.computation.output, self._to(at)
        stores = Store(output, to, real), Store(output, to + 1, imaginary)
        return Loop(place, (Loop(lane, stores, self.rows.left),))

    def _to(self, at: dict[Range, Index]) -> Index:
        """Return where the result for a row, a place and a column goes."""
        signals, axes = self.signals, self.axes
        row, place, column = (at[each] for each in (axes.row, axes.place, axes.column))
        if signals.together > 1:
            row, column = row // signals.together, row % signals.together
        line: Index = row * signals.wanted + place
        to: Index = (line * (signals.inner * signals.together) + column) * 2
        return to

    def _multiplied(self, x: Complex, at: dict[Range, Index]) -> Complex:
        """Return results for a row, a place, and columns from one on, scaled and multiplied by
        their factors."""
        for factor in self.factors:
            cosine, sine = (
                substitute(factor, at | {self.axes.part: constant(part)}) for part in (0, 1)
            )
            if x[0].lanes > 1:
                access = cosine.arg, sine.arg
                cosine, sine = (load(a.memory, a.index, (), self.lanes) for a in access)
            x = times(x, (cosine, sine))
        return self._scaled(x)

    def _scaled(self, x: Complex) -> Complex:
        return x if self.signals.scale == 1 else scaled(x, self.signals.scale)

    # ---- passes ---------------------------------------------------------------------------------

    def _get(self, memory: Memory, place: Index) -> Complex:
        at = place * (2 * self.lanes)
        return load(memory, at, (), self.lanes), load(memory, at + self.lanes, (), self.lanes)

    def _put(self, memory: Memory, place: Index, x: Complex) -> list[Statement]:
        at = place * (2 * self.lanes)
        return [Store(memory, at, x[0]), Store(memory, at + self.lanes, x[1])]

    def _turn(self, number: Index, sign: int) -> Complex:
        """Return a turn of the table, for all signals."""
        axes: Axes = self.axes
        both = [substitute(self.turns, {axes.turn: number * 2 + part}) for part in (0, 1)]
        cosine, sine = (broadcast(each, self.lanes) for each in both)
        return cosine, sine if sign < 0 else negative(sine)

    def _passes(self, steps: list[Statement]) -> None:
        """Add all passes; the results are in `ping`."""
        together, left, start = 1, self.signals.size, 1
        for radix in self.radices:
            rest = left // radix
            p, q = self.rows.range(rest), self.rows.range(together)
            from_, to = p.index() * together + q.index(), p.index() * (together * radix) + q.index()
            xs = [self._get(self.ping, from_ + r * (together * rest)) for r in range(radix)]
            body, results = self._combined(xs)
            for c, each in enumerate(results):
                if c and rest > 1:
                    turn = self._turn(p.index() * (radix - 1) + (start + c - 1), self.signals.sign)
                    each = times(each, turn)
                body += self._put(self.pong, to + c * together, each)
            inner = Loop(q, tuple(body), rolled=True)
            steps.append(Loop(p, (inner,), rolled=True))
            start += rest * (radix - 1) if rest > 1 else 0
            together, left = together * radix, rest
            self.ping, self.pong = self.pong, self.ping

    def _combined(self, xs: list[Complex]) -> tuple[list[Statement], list[Complex]]:
        """Transform numbers; of a product of factors, the results of the inner one are held."""
        radix, sign = len(xs), self.signals.sign
        inner = INNER.get(radix, radix)
        outer = radix // inner
        if outer == 1:
            return [], transform(xs, sign)
        steps: list[Statement] = []
        for r in range(outer):
            for k, each in enumerate(transform(xs[r::outer], sign)):
                for part, half in enumerate(turned(each, r * k, radix, sign)):
                    steps.append(Store(self.held, constant(2 * (r * inner + k) + part), half))
        results: list[Complex] = [xs[0]] * radix
        for k in range(inner):
            rows = [self._held(r * inner + k) for r in range(outer)]
            results[k::inner] = transform(rows, sign)
        return steps, results

    def _held(self, place: int) -> Complex:
        both = [load(self.held, constant(2 * place + part), (), self.lanes) for part in (0, 1)]
        return both[0], both[1]

    # ---- real signals ---------------------------------------------------------------------------

    @property
    def _first_turn(self) -> int:
        """Return where the turns of real signals are in the table."""
        count, left = 1, self.signals.size
        for radix in self.radices:
            left //= radix
            count += left * (radix - 1) if left > 1 else 0
        return count

    def _mirrored(self, sign: int) -> list[Statement]:
        """From the transform of pairs to that of the numbers, or with sign 1 back, times two: from
        both ends to the middle."""
        size = self.signals.size
        zero, end = self._get(self.ping, constant(0)), constant(size)
        last = zero[1] if sign < 0 else self._get(self.ping, end)[0]
        both = binary("add", zero[0], last), binary("sub", zero[0], last)
        nothing = number(zero[0], 0.0)
        starts = [(constant(0), both)]
        if sign < 0:
            starts = [(constant(0), (both[0], nothing)), (end, (both[1], nothing))]
        steps = [store for place, each in starts for store in self._put(self.pong, place, each)]
        if size > 1:
            k = self.rows.range(size // 2)
            low, high = k.index() + 1, constant(size - 1) - k.index()
            one, other = self._get(self.ping, low), self._get(self.ping, high)
            other = other[0], negative(other[1])
            turn = self._turn(low + self._first_turn, sign)
            even, odd = add(one, other), quarter(times(sub(one, other), turn), sign)
            if sign < 0:
                even, odd = scaled(even, 0.5), scaled(odd, 0.5)
            mirror = sub(even, odd)
            body = [*self._put(self.pong, low, add(even, odd)),
                    *self._put(self.pong, high, (mirror[0], negative(mirror[1])))]  # fmt: skip
            steps.append(Loop(k, tuple(body), rolled=True))
        self.ping, self.pong = self.pong, self.ping
        return steps
