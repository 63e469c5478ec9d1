"""A row's running maximum and sums, over one block of keys after the other.

scale = exp(largest - max(largest, scores));  largest = max(largest, scores)
sum = sum * scale + weights, each times a factor if the sum has one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.functions import exp_below
from ugpu.compiler.expression.value import Memory, Value, binary, const, load, substitute
from ugpu.compiler.kernel.gpu.join import larger
from ugpu.compiler.kernel.ir import Statement, Store
from ugpu.compiler.pattern.online import FINITE_LOWEST, Online

ZERO = constant(0)


def placed(root: Value, places: Mapping[Range, Index]) -> Value:
    """Return a value at places, with its functions expanded."""
    return substitute(ops.expand(root), places)


class Running:
    """The state of `count` rows, each in registers of a thread, or side by side in local memory.

    Attributes:
        largest: the largest score so far.
        scale: of what was summed before the last block.
        sums: of weights, as the attention has them.
    """

    def __init__(
        self, parts: Online, suffix: str = "", count: int = 1, space: str = "register"
    ) -> None:
        names = ["largest", "scale", *(f"sum{number}" for number in range(len(parts.sums)))]
        memories = [Memory(name + suffix, float32, count, space) for name in names]
        self.parts = parts
        self.largest, self.scale, *self.sums = memories

    def begin(self) -> list[Statement]:
        clear: list[Statement] = [Store(memory, ZERO, const(0, float32)) for memory in self.sums]
        return [Store(self.largest, ZERO, const(FINITE_LOWEST, float32)), *clear]

    def raised(self, scores: Sequence[Value], *join: Statement) -> list[Statement]:
        """Raise the maximum to that of more scores. join: what makes it that of all threads of the
        row."""
        largest, scale = load(self.largest, ZERO), load(self.scale, ZERO)
        return [
            Store(self.scale, ZERO, largest),
            Store(self.largest, ZERO, reduce(larger, scores, largest)),
            *join,
            Store(self.scale, ZERO, exp_below(binary("sub", scale, largest))),
        ]

    def weight(self, score: Value) -> Value:
        return exp_below(binary("sub", score, load(self.largest, ZERO)))

    def added(
        self, weights: Sequence[Value], factor: Callable[[Value, int], Value]
    ) -> Iterator[Store]:
        """Add weights to the sums. factor: a sum's factor at the key of a weight's number."""
        for memory, (_, extra) in zip(self.sums, self.parts.sums, strict=True):
            total = binary("mul", load(memory, ZERO), load(self.scale, ZERO))
            for number, weight in enumerate(weights):
                term = weight if extra is None else binary("mul", weight, factor(extra, number))
                total = binary("add", total, term)
            yield Store(memory, ZERO, total)

    def finished(self, output: Value, at: Index = ZERO) -> Value:
        """Return the result of a row from its sum of weighted values."""
        totals = {self.parts.largest: load(self.largest, at), self.parts.output: output}
        sums = zip(self.parts.sums, self.sums, strict=True)
        totals |= {memory: load(own, at) for (memory, _), own in sums}
        return ops.expand(self.parts.finished(totals))
