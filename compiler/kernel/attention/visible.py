"""The keys that an attention's mask can let a block of rows see, from comparisons of ranges.

    before   score[r, k] = where(k <= r + offset, s[r, k], -inf), for every tile of keys
    after    a bound for the loop over tiles, and conditions that a bound cannot express: tiles in
             which no row of the block sees a key are not computed

A score of minus infinity has weight zero, and zero times a value adds nothing, so leaving its key
out gives exactly the same numbers. Results differ only if a hidden key's score or value is not
finite: such a key then has no part in the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ugpu.compiler.expression.algebra import (
    Div,
    Index,
    Mod,
    Opaque,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
)
from ugpu.compiler.expression.value import Value
from ugpu.compiler.kernel.ir import Loop, Statement, guarded


def needed(score: Value) -> Validity:
    """Return conditions that hold if a score is more than minus infinity."""
    if score.op == "where":
        condition, yes, no = score.sources
        if _is_lowest(no):
            return both(_when(condition, True), needed(yes))
        if _is_lowest(yes):
            return both(_when(condition, False), needed(no))
        return _common(needed(yes), needed(no))
    if score.op == "gate":
        inside, outside = score.sources
        if _is_lowest(outside):
            return both(score.arg, needed(inside))
        return _common(needed(inside), needed(outside))
    if score.op in ("add", "min"):
        return both(needed(score.sources[0]), needed(score.sources[1]))
    if score.op == "sub" or (score.op == "cast" and score.dtype.is_float):
        return needed(score.sources[0])
    if score.op in ("mul", "div"):
        scaled, scale = score.sources
        if _is_positive(scale):
            return needed(scaled)
        if score.op == "mul" and _is_positive(scaled):
            return needed(scale)
    return ()


def _is_lowest(root: Value) -> bool:
    while root.op == "cast" and root.sources[0].dtype.is_float:
        root = root.sources[0]
    return root.op == "const" and root.arg == float("-inf")


def _is_positive(root: Value) -> bool:
    return root.op == "const" and 0 < root.arg < float("inf")


def _common(left: Validity, right: Validity) -> Validity:
    return tuple(condition for condition in left if condition in right)


def _when(condition: Value, outcome: bool) -> Validity:
    """Return conditions that hold if a bool has this outcome."""
    op, sources = condition.op, condition.sources
    if op == ("and" if outcome else "or"):
        return both(_when(sources[0], outcome), _when(sources[1], outcome))
    if op == "xor":
        for source, other in (sources, sources[::-1]):
            if other.op == "const":
                return _when(source, outcome != other.arg)
    if op in ("lt", "le"):
        left, right = (_index(source) for source in sources)
        if left is None or right is None:
            return ()
        if outcome:
            return at_least_zero(right - left - (op == "lt"))
        return at_least_zero(left - right - (op == "le"))
    if op == ("eq" if outcome else "ne"):
        left, right = (_index(source) for source in sources)
        if left is not None and right is not None:
            return both(at_least_zero(left - right), at_least_zero(right - left))
    return ()


def _index(root: Value) -> Index | None:
    if root.op == "index":
        found: Index = root.arg
        return found
    if root.op == "const" and root.dtype.is_integer:
        return constant(root.arg)
    return None


def most(index: Index, free: Set[Range]) -> Index:
    """Return an upper bound of an index for all values of the `free` ranges, over the others."""
    total = constant(index.constant)
    for atom, factor in index.terms:
        total = total + _extreme(atom, free, factor > 0) * factor
    return total


def _extreme(atom: Range | Div | Mod | Opaque, free: Set[Range], high: bool) -> Index:
    if isinstance(atom, Range):
        if atom not in free:
            return atom.index()
        return constant(atom.high if high else atom.low)
    whole = Index(((atom, 1),), 0)
    if whole.ranges().isdisjoint(free):
        return whole
    if isinstance(atom, Div):
        inside = most(atom.value, free) if high else -most(-atom.value, free)
        return inside // atom.divisor
    return constant(atom.high if high else atom.low)


def seen(score: Value, places: Mapping[Range, Index], free: Set[Range]) -> Validity:
    """Return conditions that hold if a tile has a key that a row of the block may see. places: of
    the score's ranges, with the free ones counting the rows of a block and the keys of a tile."""
    found: Validity = ()
    for condition in needed(score):
        found = both(found, at_least_zero(most(condition.substitute(places), free)))
    return found


def bounded(conditions: Validity, counter: Range) -> tuple[Index | None, Validity]:
    """Return the bound below which a counter must be where all conditions hold, if one of them
    gives it, and the other conditions."""
    bound: Index | None = None
    rest: Validity = ()
    for condition in conditions:
        step = -condition.coefficient(counter)
        others = condition + counter.index() * step
        if bound is None and step > 0 and counter not in others.ranges():
            bound = others // step + 1
        else:
            rest = both(rest, (condition,))
    return bound, rest


def loop_over(tile: Range, conditions: Validity, body: Sequence[Statement]) -> Loop:
    """Return a loop over the tiles for which the conditions hold."""
    bound, rest = bounded(conditions, tile)
    return Loop(tile, guarded(rest, *body), bound)
