"""A factor of a product, element by element along the depth, as vectors.

Its loads have consecutive elements along the depth (weights, codes of quantised weights), or one
element for a unit of consecutive steps (scales of groups). The operations on them become operations
on vectors. What is the same in a unit is taken out of its sum:

    sum of left * (scale * code + least)  =  scale * (sum of left * code) + least * (sum of left)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add, mul

from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import (
    Value,
    binary,
    broadcast,
    cast,
    const,
    indices_of,
    load,
    rebuild,
    substitute,
    value,
    walk,
)
from ugpu.compiler.kernel.host.nest import Part

OPERATIONS = frozenset(("add", "sub", "mul", "neg", "and", "or", "xor"))
FOLDED = {"add": add, "mul": mul}  # operations on known indices
VECTORS = 8  # maximum vectors of a unit
# of one without scale: the sum of its products is added to a total at once, as a step waits for the
# one before
ABREAST = (4, 2, 1)


@dataclass(frozen=True)
class Unit:
    """scale * inner + least, for `size` steps of a depth, or without scale or least. inner is
    computed in vectors, the others once in a unit."""

    size: int
    inner: Value
    scale: Value | None = None
    least: Value | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the factor is an array of floats."""
        return self.inner.op == "load" and self.scale is self.least is None


def in_order(factor: Value, depths: Sequence[Range]) -> list[Range]:
    """Return the ranges of a depth in the order in which memory has them."""
    indices = [node.arg.index for node in walk(factor) if node.op == "load"]
    return sorted(depths, key=lambda r: -max((i.coefficient(r) for i in indices), default=0))


def find_unit(factor: Value, depth: Part, lanes: int) -> Unit | None:
    """Return a unit of the depth: of one vector or some if all elements are consecutive, otherwise
    the largest one. The depth is a whole number of units, unless these are vectors. None if the
    factor cannot be computed in vectors."""
    if _follows(factor, depth, lanes, lanes):
        counts = (1,) if factor.op == "load" else ABREAST
        return next(
            Unit(lanes * n, factor) for n in counts if depth.whole % (lanes * n) == 0 or n == 1
        )
    for count in reversed(range(VECTORS.bit_length())):
        size = lanes << count
        if depth.whole % size == 0:
            unit = _parted(factor, depth, size)
            if _follows(unit.inner, depth, size, lanes):
                return unit
    return None


def _parted(factor: Value, depth: Part, size: int) -> Unit:
    """Take out of a factor what is the same in a unit."""
    if factor.op in ("add", "mul"):
        for kept, other in (factor.sources, factor.sources[::-1]):
            if not _same(other, depth, size) or _same(kept, depth, size):
                continue
            unit = _parted(kept, depth, size)
            least = unit.least
            if factor.op == "add":
                added = other if least is None else binary("add", least, other)
                return Unit(size, unit.inner, unit.scale, added)
            scale = other if unit.scale is None else binary("mul", unit.scale, other)
            return Unit(
                size, unit.inner, scale, None if least is None else binary("mul", least, other)
            )
    return Unit(size, factor)


def _steps(factor: Value, depth: Part, size: int, first: int, lanes: int) -> set[int | None]:
    """Return how far loads and indices move along `lanes` elements of each unit; None if in another
    way, or if the factor cannot be computed in vectors."""
    block, lane = Range("unit", -(-depth.whole // size)), Range("lane", lanes)
    here = _placed(factor, depth.places(block.index() * size + first + lane.index()))
    if not all(_is_vector(node) for node in walk(here)):
        return {None}
    moved = [index.linear(lane) for index in indices_of(here)]
    return {None if step is None else step[0] for step in moved}


def _same(factor: Value, depth: Part, size: int) -> bool:
    return _steps(factor, depth, size, 0, size) <= {0}


def _follows(factor: Value, depth: Part, size: int, lanes: int) -> bool:
    """Return whether each vector of a unit has consecutive elements alone."""
    return all(_steps(factor, depth, size, n, lanes) == {1} for n in range(0, size, lanes))


def _placed(factor: Value, places: Mapping[Range, Index]) -> Value:
    """Return a factor at places, where indices that are known are constants."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "index" and node.arg.is_constant:
            return const(node.arg.constant, node.dtype)
        if not sources or node.dtype.is_float or any(each.op != "const" for each in sources):
            return None
        if node.op == "cast":
            return cast(sources[0], node.dtype)
        if node.op in FOLDED:
            return const(FOLDED[node.op](*(each.arg for each in sources)), node.dtype)
        return None

    return rebuild(substitute(factor, places), change)


def _is_vector(node: Value) -> bool:
    if node.op == "load":
        return not node.arg.conditions
    if node.op == "cast":
        return node.dtype.is_float or not node.sources[0].dtype.is_float
    if node.op in ("shl", "shr"):
        amount = node.sources[1]
        return amount.op == "const" and 0 <= amount.arg < node.dtype.bits
    return node.op == "const" or node.op in OPERATIONS


def vector(factor: Value, depth: Part, first: Index, lanes: int) -> Value:
    """Return `lanes` elements of a factor, from an element of the depth on."""
    lane = Range("lane", lanes)

    def change(node: Value, sources: tuple[Value, ...]) -> Value:
        if node.op != "load":
            return value(node.op, node.dtype, sources, node.arg, lanes)
        return load(node.arg.memory, node.arg.index.substitute({lane: constant(0)}), (), lanes)

    return rebuild(_placed(factor, depth.places(first + lane.index())), change)


def repeated(factor: Value, depth: Part, first: Index, lanes: int) -> Value:
    """Return a value that is the same in a unit, in all lanes."""
    return broadcast(substitute(factor, depth.places(first)), lanes)
