"""How slices of a matrix product's factors are laid out in local memory, and brought there.

    left, memory along the depth:   [row][step], rows a little apart so that they share no cache set
    left, otherwise:                [panel][step][row of the panel]
    right:                          [panel][step][column of the panel]

A right factor whose memory runs along the depth is first copied as it lies ("stage"), then
transposed in blocks of one vector by one vector: elements that arrive one by one at places far
apart would cost as much as multiplying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.dtype import DType
from compiler.index.algebra import Index, Range, constant
from compiler.kernel.ir import Loop, Memory, Statement, Store, Value, load, substitute, value
from compiler.kernel.spread import unit_stride

LINE = 64  # bytes of a cache line


@dataclass(frozen=True)
class Packed:
    """A packed slice: its memories, the statements that fill it, and where an element lies:
    panel * panel_step + step * step_step + element * element_step."""

    memory: Memory
    memories: tuple[Memory, ...]
    statements: tuple[Statement, ...]
    panel_step: int
    step_step: int
    element_step: int

    def load(self, panel: Index, step: Index, element: int, lanes: int) -> Value:
        at = panel * self.panel_step + step * self.step_step + element * self.element_step
        return load(self.memory, at, lanes=lanes)


@dataclass(frozen=True)
class Packing:
    """What the slices of both factors have in common. depth: the range summed over, of which
    `slice_size` steps from `slice_start` are packed. batch: where the other ranges are."""

    dtype: DType
    lanes: int
    depth: Range
    slice_size: int
    slice_start: Index
    batch: Mapping[Range, Index]

    def left(self, factor: Value, across: Range, start: Index, height: int, tall: int) -> Packed:
        """`tall` elements of `across` from `start`, in panels of `height`."""
        if not self.along_depth(factor, across):
            return self.panels("left", factor, across, start, height, tall)
        pitch = self.pitch()
        memory = Memory("left", self.dtype, tall * pitch, "local")
        row, step = Range("left_row", tall), Range("left_step", self.slice_size)
        at = row.index() * pitch + step.index()
        fill = Store(memory, at, self.element(factor, across, start + row.index(), step))
        statements = self.nest(fill, (row, bound(across.size, start, tall)), step)
        return Packed(memory, (memory,), statements, height * pitch, 1, pitch)

    def right(self, factor: Value, across: Range, start: Index, width: int, wide: int) -> Packed:
        """`wide` elements of `across` from `start`, in panels of `width`."""
        if not self.along_depth(factor, across) or self.lanes & (self.lanes - 1):
            return self.panels("right", factor, across, start, width, wide)
        return self.transposed("right", factor, across, start, width, wide)

    def along_depth(self, factor: Value, across: Range) -> bool:
        return unit_stride(factor, self.depth) and not unit_stride(factor, across)

    def pitch(self) -> int:
        """Elements from a row to the next: whole lines, an odd number of them."""
        line = LINE // self.dtype.itemsize
        return (-(-self.slice_size // line) | 1) * line

    def element(self, factor: Value, across: Range, place: Index, step: Range) -> Value:
        depth = self.slice_start + step.index()
        return substitute(factor, {**self.batch, across: place, self.depth: depth})

    def nest(
        self, body: Statement, outer: tuple[Range, Index | None], step: Range
    ) -> tuple[Statement, ...]:
        inner = Loop(step, (body,), bound(self.depth.size, self.slice_start, self.slice_size))
        return (Loop(outer[0], (inner,), outer[1]),)

    def panels(
        self, name: str, factor: Value, across: Range, start: Index, width: int, whole: int
    ) -> Packed:
        """[panel][step][element], element by element; memory is read along `across`."""
        memory = Memory(name, self.dtype, whole * self.slice_size, "local")
        panel, step = Range(name + "_panel", whole // width), Range(name + "_step", self.slice_size)
        element = Range(name + "_element", width)
        first = start + panel.index() * width
        at = (panel.index() * self.slice_size + step.index()) * width + element.index()
        body: Statement = Store(
            memory, at, self.element(factor, across, first + element.index(), step)
        )
        body = Loop(element, (body,), bound(across.size, first, whole))
        deep = bound(self.depth.size, self.slice_start, self.slice_size)
        statement = Loop(step, (Loop(panel, (body,)),), deep)
        return Packed(memory, (memory,), (statement,), self.slice_size * width, width, 1)

    def transposed(
        self, name: str, factor: Value, across: Range, start: Index, width: int, whole: int
    ) -> Packed:
        """[panel][step][element], from memory that runs along the depth."""
        lanes, pitch = self.lanes, self.pitch()
        blocks = -(-self.slice_size // lanes)
        panel_step = blocks * lanes * width
        memory = Memory(name, self.dtype, whole // width * panel_step, "local")
        stage = Memory(name + "_stage", self.dtype, lanes * max(pitch, blocks * lanes), "local")
        column, step = Range(name + "_column", lanes), Range(name + "_step", self.slice_size)
        panel, part = Range(name + "_panel", whole // width), Range(name + "_part", width // lanes)
        first = start + panel.index() * width + part.index() * lanes
        copy = Store(
            stage,
            column.index() * pitch + step.index(),
            self.element(factor, across, first + column.index(), step),
        )
        copies = self.nest(copy, (column, bound(across.size, first, whole)), step)
        block = Range(name + "_block", blocks)
        rows = [
            load(stage, block.index() * lanes + row * pitch, lanes=lanes) for row in range(lanes)
        ]
        to = panel.index() * panel_step + block.index() * (lanes * width) + part.index() * lanes
        stores = tuple(
            Store(memory, to + row * width, vector) for row, vector in enumerate(transpose(rows))
        )
        turn = Loop(block, stores)
        statement = Loop(panel, (Loop(part, (*copies, turn)),))
        return Packed(memory, (memory, stage), (statement,), panel_step, width, 1)


def transpose(rows: list[Value]) -> list[Value]:
    """n vectors of n lanes, n a power of two: vector i of the result has lane i of each."""
    count = len(rows)
    distance = 1
    while distance < count:
        low = tuple(j if not j & distance else count + j - distance for j in range(count))
        high = tuple(j + distance if not j & distance else count + j for j in range(count))
        turned = list(rows)
        for i in range(count):
            if not i & distance:
                pair = (rows[i], rows[i + distance])
                turned[i] = value("shuffle", pair[0].dtype, pair, low, count)
                turned[i + distance] = value("shuffle", pair[0].dtype, pair, high, count)
        rows = turned
        distance *= 2
    return rows


def bound(size: int, start: Index, step: int) -> Index | None:
    """The loop bound that keeps start + counter below `size`, where steps do not divide it."""
    return constant(size) - start if size % step else None
