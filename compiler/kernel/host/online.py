"""The largest element of a long row and the sum of its weights in one pass (pattern.online).

    before   M = max over k of x[k];  S = sum over k of (w[k] = exp(x[k] - M));  .. w[k] ..
    after    for each block of k:  before = M;  M = max(M, the block's);  S *= exp(before - M)
                                   S += sum of (w[k] = exp(x[k] - M));  scale[block] = M
             scale[block] = exp(scale[block] - M);  .. w[k] * scale[block] ..

A block is read from memory once, for its maximum. The weights lie in the result, whose elements the
last pass replaces; where they cannot, later passes compute them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import advanced, combine, ended, identity
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.functions import exp_below
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    const,
    load,
    substitute,
    value,
    walk,
)
from ugpu.compiler.kernel.ir import Loop, Statement, Store
from ugpu.compiler.pattern.chain import Chain, held_values
from ugpu.compiler.pattern.cost import HELD_BYTES
from ugpu.compiler.pattern.online import FINITE_LOWEST, weight_of, weighted

BLOCK = 4096  # elements of a block: they stay in the first cache
BLOCKS = 4096  # most blocks of a row
ZERO = constant(0)
BEFORE, LARGEST, PART = (
    Memory(name, float32, 1, "register") for name in ("before", "largest", "part")
)


class Online:
    """The pass. weight: the expression of w. factor: of weights in the sum, None for 1. held: the
    result, if it holds the weights."""

    def __init__(self, chain: Chain, factor: Value | None, held: Memory | None) -> None:
        best, self.total, *_ = chain.stages
        (self.along,), self.score, self.factor = best.ranges, best.body, factor
        self.weight = weight_of(best.body, best.total)
        later = any(node is self.weight for _, root in chain.passes()[2:] for node in walk(root))
        self.held = held if later else None
        size = self.along.size
        count = max(BLOCK, -(-size // BLOCKS))
        self.block, self.each = Range("block", -(-size // count)), Range("each", count)
        self.first = self.block.index() * count
        self.left = constant(size) - self.first if size % count else None
        self.scales = Memory("scales", float32, self.block.size, "local")
        self.memories = (BEFORE, LARGEST, PART, *((self.scales,) if self.held is not None else ()))

    def here(self, places: Mapping[Range, Index]) -> dict[Range, Index]:
        """Return the places of a row's element in a block."""
        return {**places, self.along: self.first + self.each.index()}

    def around(self, *inside: Statement) -> Loop:
        """Return the loop over a block."""
        return Loop(self.each, inside, self.left)

    def totals(
        self, best: Memory, total: Memory, place: Index, places: Mapping[Range, Index]
    ) -> Iterator[Statement]:
        """Compute both totals of the row at `places`. place: of a weight in the result."""
        at = self.here(places)
        score = substitute(ops.expand(self.score), at)
        largest = load(LARGEST, ZERO)
        weight = exp_below(binary("sub", score, largest))
        stored: list[Statement] = []
        term = weight
        if self.held is not None:
            stored.append(Store(self.held, place.substitute(at), weight))
            term = load(self.held, place.substitute(at))
        if self.factor is not None:
            term = binary("mul", weight, substitute(ops.expand(self.factor), at))
        lowest = const(FINITE_LOWEST, float32)
        highest = combine("max", ended("max", float32, load(best, ZERO)), lowest)
        scale = exp_below(binary("sub", load(BEFORE, ZERO), largest))
        inside: list[Statement] = [
            Store(BEFORE, ZERO, largest),
            self.around(Store(best, ZERO, advanced("max", load(best, ZERO), score))),
            Store(LARGEST, ZERO, highest),
            Store(PART, ZERO, const(0, float32)),
            self.around(*stored, Store(PART, ZERO, combine("sum", load(PART, ZERO), term))),
            Store(total, ZERO, value("fma", float32, (load(total, ZERO), scale, load(PART, ZERO)))),
        ]
        yield Store(best, ZERO, identity("max", best.dtype))
        yield Store(total, ZERO, identity("sum", total.dtype))
        yield Store(LARGEST, ZERO, lowest)
        if self.held is None:
            yield Loop(self.block, tuple(inside))
            return
        here = self.block.index()
        yield Loop(self.block, (*inside, Store(self.scales, here, largest)))
        scale = exp_below(binary("sub", load(self.scales, here), largest))
        yield Loop(self.block, (Store(self.scales, here, scale),))

    def again(self, below: Value, place: Index) -> Value:
        """Return a weight in a later pass. below: the exponent."""
        if self.held is None:
            return exp_below(below)
        return binary("mul", load(self.held, place), load(self.scales, self.block.index()))


def find_online(chain: Chain, held: Memory | None) -> Online | None:
    """Return the pass, if rows are longer than a block, and their first two totals are a maximum
    and a sum of weights. Not if they are held on the stack with other values. held: the result, if
    it may hold the weights."""
    fits = chain.length * float32.itemsize <= HELD_BYTES
    if len(chain.stages) < 2 or (fits and chain.length <= BLOCK):
        return None
    best, total, *_ = chain.stages
    if (best.operation, total.operation) != ("max", "sum") or best.ranges != total.ranges:
        return None
    if len(best.ranges) != 1 or best.body.dtype is not float32 or total.body.dtype is not float32:
        return None
    weight = weight_of(best.body, best.total)
    if fits and any(each.value is not weight for each in held_values(chain, loads=False)):
        return None
    totals = frozenset(stage.total for stage in chain.stages)
    split = weighted(total.body, best.body, best.total, totals, best.ranges[0])
    return None if split is None or split[1] is not None else Online(chain, split[0], held)
