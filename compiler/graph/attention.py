"""The gradients of an attention as one operation, which hosts lower as one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Index, Range, Validity
from ugpu.compiler.expression.value import Value, value
from ugpu.compiler.graph.movement import reshape, shrink
from ugpu.compiler.graph.node import Kind, Node, Trace

LANES = 16  # most elements of a host's vector: rows of gradients are padded to whole ones
UNIT = 8  # keys that are computed together, at most
KEYS = 64  # most keys of a block: gradients have whole blocks of them


@dataclass(frozen=True)
class Sizes:
    """Of an attention: its rows, keys, depth of keys and columns of values.

    causal: keys up to i are visible to row i. mask: "seen" for a mask of bools, "added" for one of
    floats that is added to the scores, or "". The gradients lie one after the other: those of
    queries as [batch][tall][deep], of keys as [batch][long][deep], of values as
    [batch][long][wide].
    """

    rows: int
    keys: int
    depth: int
    columns: int
    scale: float
    causal: bool
    mask: str

    @property
    def tall(self) -> int:
        return -(-self.rows // LANES) * LANES

    @property
    def block(self) -> int:
        """Keys of a block."""
        each = -(-self.keys // -(-self.keys // KEYS))
        return -(-each // UNIT) * UNIT

    @property
    def long(self) -> int:
        return -(-self.keys // self.block) * self.block

    @property
    def deep(self) -> int:
        return -(-self.depth // LANES) * LANES

    @property
    def wide(self) -> int:
        return -(-self.columns // LANES) * LANES

    @property
    def parts(self) -> tuple[int, int, int]:
        """Elements of the three gradients of an element of the batch."""
        return self.tall * self.deep, self.long * self.deep, self.long * self.wide


@dataclass(frozen=True)
class Axes:
    """Ranges of the sources: query [row, depth], key [key, depth], value [key, column], result and
    gradient [row, column], mask [row, key]."""

    sizes: Sizes
    row: Range
    key: Range
    depth: Range
    column: Range

    def __str__(self) -> str:
        return str(self.sizes)


def attention_gradients(given: Sequence[Node], causal: bool, scale: float) -> list[Node]:
    """Return the gradients of query, key and value, in float32. given: query, key, value, result,
    its gradient, and a mask if there is one, all of one batch shape. Only hosts lower the
    operation."""
    query, key, *_ = given
    mask = given[5] if len(given) > 5 else None
    *batch, rows, depth = query.shape
    kind = "" if mask is None else "added" if mask.dtype.is_float else "seen"
    sizes = Sizes(rows, key.shape[-2], depth, given[2].shape[-1], scale, causal, kind)
    sources = tuple([reshape(each, (math.prod(batch), *each.shape[-2:])) for each in given])
    packed = Node(
        "attention gradients", float32, (math.prod(batch), sum(sizes.parts)), sources, sizes
    )
    flat = reshape(packed, (packed.size,))
    found, start = [], 0
    for size, pitch, shape in zip(
        sizes.parts, (sizes.deep, sizes.deep, sizes.wide),
        ((rows, depth), (sizes.keys, depth), (sizes.keys, sizes.columns)), strict=True,
    ):  # fmt: skip
        end = start + packed.shape[0] * size
        lines = reshape(shrink(flat, [(start, end)]), (*batch, size // pitch, pitch))
        found.append(shrink(lines, [(0, count) for count in (*batch, *shape)]))
        start = end
    return found


def _expressed(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    """Return the root of a kernel: an element of each source, by the ranges of `Axes`."""
    sizes: Sizes = node.arg
    counts = (sizes.rows, sizes.keys, sizes.depth, sizes.columns)
    names = ("row", "key", "depth", "column")
    axes = Axes(sizes, *(Range(f"{n}_", size) for n, size in zip(names, counts, strict=True)))
    row, key, depth, column = (
        each.index() for each in (axes.row, axes.key, axes.depth, axes.column)
    )
    places = ((row, depth), (key, depth), (key, column), (row, column), (row, column), (row, key))
    sources = [
        trace.value(source, (at[0], *place), valid)
        for source, place in zip(node.sources, places, strict=False)
    ]
    return value("along", node.dtype, sources, (node.op, axes, tuple(at[-1].ranges())))


Kind(
    "attention gradients", _expressed, stored=True, repeats=True,
    lowerings={"host": "ugpu.compiler.kernel.attention.gradients"},
)  # fmt: skip
