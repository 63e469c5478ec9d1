"""Values that an element rarely needs, such as the reduction of huge angles: computed for the lines
of an element-wise kernel that have such an element, and left out of all others.

    before   for j: out[j] = f(slow(j) if rare(j) else fast(j))
    after    flag = whether rare(j) for any j
             if flag: the loop before;  else: for j: out[j] = f(fast(j))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import NamedTuple

from ugpu.compiler.dtype import int32
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.functions import RARE
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    cast,
    const,
    load,
    rebuild,
    substitute,
    walk,
)
from ugpu.compiler.kernel.host.nest import Walk
from ugpu.compiler.kernel.ir import If, Statement, Store

CHEAP = 16  # operations of a condition up to which it is computed twice
FLAG = Memory("rare", int32, 1, "register")


class Rare(NamedTuple):
    """Whether an element needs a rare value; what it is with such values, and without."""

    condition: Value
    whole: Value
    without: Value

    def branched(
        self, batch: Mapping[Range, Index], line: Callable[[str], Walk],
        loop: Callable[[str, Value], Statement],
    ) -> list[Statement]:  # fmt: skip
        """Return the loops over a line. line: by the name of its counter; loop: that over results
        of a value."""
        tested, at = line("_rare"), constant(0)
        here = cast(substitute(self.condition, {**batch, **tested.places}), int32)
        flag = lookup(load(FLAG, at), 2)
        return [
            Store(FLAG, at, const(0, int32)),
            tested.around(Store(FLAG, at, binary("or", load(FLAG, at), here))),
            If(at_least_zero(flag - 1), (loop("_whole", self.whole),)),
            If(at_least_zero(-flag), (loop("", self.without),)),
        ]


def find_rare(root: Value) -> Rare | None:
    """Return the rare values in a value, or None."""
    conditions: list[Value] = []
    for node in walk(root):
        if node.op == "where" and node.arg == RARE and node.sources[0] not in conditions:
            inside = list(walk(node.sources[0]))
            if len(inside) <= CHEAP and all(each.arg != RARE for each in inside):
                conditions.append(node.sources[0])
    if not conditions:
        return None

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        rare = node.op == "where" and node.arg == RARE and node.sources[0] in conditions
        return sources[2] if rare else None

    return Rare(reduce(partial(binary, "or"), conditions), root, rebuild(root, change))
