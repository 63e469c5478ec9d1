"""Sums that select one term: a one-hot factor becomes an index.

before: sum over k of (k == v) * f(k), with v the same for all k: n terms, all but one of them zero.
after: f(v) where 0 <= v < n, else zero: one term, read at index v (compiler.expression.lookup).

A table times one-hot rows is then a gather, and a comparison of two ranges under a sum is a plain
index. Terms that are not selected count as zero, whatever f is there (even infinite or NaN).
"""

from __future__ import annotations

from functools import partial, reduce

from ugpu.compiler.dtype import int64
from ugpu.compiler.expression.algebra import NEVER, Index, Range, within
from ugpu.compiler.expression.elementary import expand
from ugpu.compiler.expression.lookup import guard, lookup, reduces
from ugpu.compiler.expression.value import (
    Value,
    binary,
    cast,
    const,
    gate,
    indices_of,
    substitute,
    value,
)


def pick(body: Value, counter: Range) -> Value | None:
    """Return the sum of `body` over the counter if it selects one term; otherwise None."""
    factors = _factors(body)
    for place, factor in enumerate(factors):
        found = _one_hot(factor, counter)
        if found is None:
            continue
        wanted, number, offset = found
        rest = [*factors[:place], wanted, *factors[place + 1 :]]
        if any(map(reduces, (*rest, number))):
            return None
        return _term(reduce(partial(binary, "mul"), rest), counter, number, offset)
    return None


def _term(root: Value, counter: Range, number: Value, offset: Index) -> Value:
    """Return `root` where the counter plus the offset is the number, or zero if it never is."""
    nothing = const(0, root.dtype)
    if number.op == "index":
        position = number.arg - offset
        inside = within(position, 0, counter.size)
        if inside == NEVER:
            return nothing
        return gate(inside, guard(substitute(root, {counter: position}), inside), nothing)
    wide = binary("sub", cast(number, int64), value("index", int64, (), offset))
    picked = substitute(root, {counter: lookup(expand(wide), counter.size)})
    low, high = binary("le", const(0, int64), wide), binary("lt", wide, const(counter.size, int64))
    return value("where", root.dtype, (binary("and", low, high), picked, nothing))


def _factors(root: Value) -> list[Value]:
    if root.op != "mul":
        return [root]
    return [factor for source in root.sources for factor in _factors(source)]


def _one_hot(factor: Value, counter: Range) -> tuple[Value, Value, Index] | None:
    """Return the selected value, the number that selects it, and the offset of the counter in the
    comparison. The factor is a comparison as a number, or a choice between a value and zero."""
    if factor.op == "cast" and factor.sources[0].op == "eq":
        test, wanted = factor.sources[0], const(1, factor.dtype)
    elif factor.op == "where" and factor.sources[0].op == "eq" and _is_zero(factor.sources[2]):
        test, wanted = factor.sources[0], factor.sources[1]
    else:
        return None
    for one, two in (test.sources, test.sources[::-1]):
        if one.op != "index" or not one.dtype.is_integer or two.dtype.name == "uint64":
            continue
        offset = one.arg - counter.index()
        depends = any(counter in index.ranges() for index in (offset, *indices_of(two)))
        if one.arg.coefficient(counter) == 1 and not depends:
            return wanted, two, offset
    return None


def _is_zero(node: Value) -> bool:
    return node.op == "const" and node.arg == 0
