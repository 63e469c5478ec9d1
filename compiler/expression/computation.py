"""Computation of one kernel: an expression for the element at the output ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, Validity, constant, flatten, unflatten
from ugpu.compiler.expression.once import Answers
from ugpu.compiler.expression.value import Memory, Value, walk


@dataclass(frozen=True)
class Chosen:
    """Additional facts of a computation whose indices select the elements to write.

    allowed: an element is written only where it holds. ordered: further ranges that may write the
    same element, and must do so in order. coordinate: a number below `size` that differs for
    elements written independently, so that the work can be shared by it.
    """

    allowed: Validity = ()
    ordered: tuple[Range, ...] = ()
    coordinate: Index = field(default_factory=lambda: constant(0))
    size: int = 1


@dataclass(frozen=True)
class Computation(Answers):
    """Computation of one kernel: output[flatten(ranges)] = value, for all values of the ranges.

    ranges: of sizes above 1, the last is the fastest. value: may contain "reduce" and "function";
    or goes "along" one of the ranges (compiler.graph.along).
    others: further outputs over the same ranges; then the value is the "results" of all.
    """

    output: Memory
    inputs: tuple[Memory, ...]
    ranges: tuple[Range, ...]
    value: Value
    origin: str
    place: Index | None = None  # where the element goes, if not to its row-major position
    others: tuple[Memory, ...] = ()
    chosen: Chosen | None = None
    pieces: tuple[Computation, ...] = ()  # instead of a value: parts computed separately

    @property
    def outputs(self) -> tuple[Memory, ...]:
        return (self.output, *self.others)

    def results(self, root: Value) -> list[tuple[Memory, Value]]:
        """Return each output, and its part of `root`, a form of `value`."""
        parts = root.sources if root.op == "results" else (root,)
        return list(zip(self.outputs, parts, strict=True))

    @property
    def position(self) -> Index:
        """Return where the element goes."""
        if self.place is not None:
            return self.place
        return flatten([r.index() for r in self.ranges], [r.size for r in self.ranges])

    @property
    def reduction(self) -> Value | None:
        """Return the reduce inside the value, the innermost first."""
        return next(iter(self.reductions), None)

    @cached_property
    def reductions(self) -> tuple[Value, ...]:
        """Return every reduce inside the value, each after those inside it."""
        return tuple([node for node in walk(self.value) if node.op == "reduce"])

    @cached_property
    def plain(self) -> Computation:
        """Return it without elementary functions: operations alone. The caller holds
        compiler.expression.value.interning."""
        pieces = tuple([piece.plain for piece in self.pieces])
        return replace(self, value=ops.expand(self.value), pieces=pieces)


def elements(ranges: Sequence[Range]) -> int:
    return prod(r.size for r in ranges)


def places_at(ranges: Sequence[Range], position: Index) -> dict[Range, Index]:
    """Return the value of each range at a row-major position of all of them."""
    return dict(zip(ranges, unflatten(position, tuple(r.size for r in ranges)), strict=True))
