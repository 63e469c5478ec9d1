"""Discrete Fourier transforms of complex numbers, whose parts lie on a last axis of two. Only hosts
lower them; on other devices `ugpu.fft` uses matrix products."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.expression.algebra import Index, Range, Validity
from ugpu.compiler.expression.value import Value, value
from ugpu.compiler.graph.node import Kind, Node, Trace


@dataclass(frozen=True)
class Signals:
    """Transforms of `count` x `inner` signals of `size` complex numbers each, by powers of
    exp(sign 2 pi i / size), times `scale`.

    real: "" complex to complex. "forward": the signals are 2 size real numbers, two of them in each
    complex one, and the first size + 1 elements of their transform are wanted. "back": the inverse
    of that, where parts that a real signal cannot have count as zero. together: neighbouring
    signals (inner is 1, count a multiple) of which equal elements of the results lie side by side.
    """

    count: int
    size: int
    inner: int
    sign: int
    real: str
    scale: float
    together: int = 1

    @property
    def given(self) -> int:
        """Complex numbers of a signal in the source."""
        return self.size + (self.real == "back")

    @property
    def wanted(self) -> int:
        """Complex numbers of a signal in the result."""
        return self.size + (self.real == "forward")

    def __str__(self) -> str:
        kind = f"{self.real or 'complex'} {self.sign:+}"
        kind += f" by {self.together}" if self.together > 1 else ""
        return f"{self.count} x {self.size} x {self.inner} {kind}"


@dataclass(frozen=True)
class Axes:
    """Ranges of the sources: signals [row, place, column, part], turns [turn], factors
    [part, place, column]."""

    signals: Signals
    row: Range
    place: Range
    column: Range
    part: Range
    turn: Range

    def __str__(self) -> str:
        return str(self.signals)


def fourier(source: Node, turns: Node, signals: Signals, *factors: Node) -> Node:
    """Return transforms [count, wanted, inner, 2] of signals [count, given, inner, 2]; of those
    together, [count / together, wanted, together, 2]. turns: what
    compiler.kernel.host.fourier.turns lists for `signals`, flat. factors: complex numbers [2,
    wanted, inner] to multiply all results by, if any."""
    count, together = signals.count // signals.together, signals.inner * signals.together
    assert source.shape == (signals.count, signals.given, signals.inner, 2), source.shape
    shape = (count, signals.wanted, together, 2)
    return Node("fourier", source.dtype, shape, (source, turns, *factors), signals)


def _expressed(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    """Return the root of a kernel: an element of each source, by the ranges of `Axes`."""
    names = ("row", "place", "column", "part", "turn")
    first, second, *factors = node.sources
    counts = (*first.shape, *second.shape)
    row, place, column, part, turn = (
        Range(f"{name}_", size) for name, size in zip(names, counts, strict=True)
    )
    inside = tuple([each.index() for each in (row, place, column, part)])
    sources = [trace.value(first, inside, valid), trace.value(second, (turn.index(),), valid)]
    factor = part.index(), place.index(), column.index()
    sources += [trace.value(each, factor, valid) for each in factors]
    own = tuple([each for index in at for each in index.ranges()])
    axes = Axes(node.arg, row, place, column, part, turn)
    return value("along", node.dtype, sources, (node.op, axes, own))


Kind(
    "fourier",
    _expressed,
    stored=True,
    lowerings={"host": "ugpu.compiler.kernel.host.fourier.lower"},
)
