"""The sides of a matrix product on the host: one range, or several walked as one.

A convolution's columns are an image's rows and columns; its depth is channels and the places of a
window. A tile takes `count` steps of the `main` range and, inside each, all of the inner ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ugpu.compiler.expression.algebra import (
    Div,
    Index,
    Mod,
    Opaque,
    Range,
    constant,
    flatten,
    unflatten,
)
from ugpu.compiler.expression.value import Value, indices_of, substitute
from ugpu.compiler.kernel.ir import Loop, Statement


@dataclass(frozen=True)
class Axis:
    """Ranges of which a tile takes a part of the first and all of the others."""

    main: Range
    inner: tuple[Range, ...] = ()

    @cached_property
    def unit(self) -> int:
        """Number of elements in a step of the main range."""
        return prod(r.size for r in self.inner)

    @property
    def size(self) -> int:
        return self.main.size * self.unit

    @property
    def ranges(self) -> tuple[Range, ...]:
        return (self.main, *self.inner)


@dataclass(frozen=True)
class Part:
    """`count` steps of an axis, from `start` on: the part in a tile or a slice."""

    axis: Axis
    start: Index
    count: int

    @property
    def whole(self) -> int:
        """Number of elements; the last part may have fewer."""
        return self.count * self.axis.unit

    def bound(self) -> Index | None:
        """Return the number of elements if it varies, otherwise None."""
        main = self.axis.main
        if main.size % self.count == 0:
            return None
        return (constant(main.size) - self.start) * self.axis.unit

    def bound_from(self, first: Index) -> Index | None:
        """Return the bound counted from element `first` on."""
        bound = self.bound()
        return None if bound is None else bound - first

    def places(self, position: Index) -> dict[Range, Index]:
        """Return the values of the ranges at an element of the part."""
        unit = self.axis.unit
        if unit == 1:
            return {self.axis.main: self.start + position}
        sizes = tuple(r.size for r in self.axis.inner)
        inner = unflatten(position % unit, sizes)
        main = self.start + position // unit
        return {self.axis.main: main, **dict(zip(self.axis.inner, inner, strict=True))}

    def is_flat(self, *roots: Value | Index) -> bool:
        """Return whether one counter walks all elements without a division."""
        if self.axis.unit == 1:
            return True
        counter = Range("flat", self.whole)
        places = self.places(counter.index())
        for root in roots:
            if isinstance(root, Index):
                indices = [root.substitute(places)]
            else:
                indices = list(indices_of(substitute(root, places)))
            if any(_divides(index, counter) for index in indices):
                return False
        return True

    def walk(self, name: str, *roots: Value | Index) -> Walk:
        """Return the loops over all elements: one loop if it needs no divisions in `roots`."""
        if self.is_flat(*roots):
            counter = Range(name, self.whole)
            position = counter.index()
            return Walk(((counter, self.bound()),), position, self.places(position))
        counters = [Range(name, self.count)]
        counters += [Range(f"{name}{i}", r.size) for i, r in enumerate(self.axis.inner)]
        main = self.axis.main
        bound = None if main.size % self.count == 0 else constant(main.size) - self.start
        indices = [counter.index() for counter in counters]
        places = dict(zip(self.axis.ranges, indices, strict=True))
        places[main] = self.start + indices[0]
        loops = [(counters[0], bound), *((counter, None) for counter in counters[1:])]
        return Walk(tuple(loops), flatten(indices, [c.size for c in counters]), places)


@dataclass(frozen=True)
class Walk:
    """Loops, outermost first, with their bounds; the current element; the values of the ranges."""

    loops: tuple[tuple[Range, Index | None], ...]
    position: Index
    places: dict[Range, Index]

    @property
    def last(self) -> Range:
        return self.loops[-1][0]

    def around(self, *body: Statement) -> Statement:
        for counter, bound in reversed(self.loops):
            body = (Loop(counter, body, bound),)
        (statement,) = body
        return statement


def joined(ranges: Sequence[Range], wanted: int) -> Axis:
    """Return the last ranges, as many as needed to have `wanted` elements."""
    first = len(ranges) - 1
    while first and prod(r.size for r in ranges[first:]) < wanted:
        first -= 1
    return Axis(ranges[first], tuple(ranges[first + 1 :]))


def deep(ranges: Sequence[Range], most: int) -> Axis:
    """Return the longest range, and others that together have at most `most` elements."""
    main = max(ranges, key=lambda r: r.size)
    inner: tuple[Range, ...] = ()
    for each in reversed(ranges):
        if each is not main and each.size * prod(r.size for r in inner) <= most:
            inner = (each, *inner)
    return Axis(main, inner)


def _divides(index: Index, counter: Range) -> bool:
    """Return whether an index divides the counter, or uses it to look up a value."""
    for atom, _ in index.terms:
        if isinstance(atom, Opaque):
            if any(counter in inner.ranges() for inner in atom.indices()):
                return True
        elif isinstance(atom, Div | Mod) and counter in atom.value.ranges():
            return True
    return False
