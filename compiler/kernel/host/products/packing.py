"""Layout of the slices of a matrix product's factors in local memory, and their packing.

    direct      -                       left factors that are plain memory running along the depth:
                                        each panel reads them in place
    rows        [element][step]         other left factors whose memory runs along the depth; rows
                                        are padded so that they share no cache set
    panels      [panel][step][element]  factors that are read along the other side
    transposed  [panel][step][element]  right factors whose memory runs along the depth
    wide        [step][element]         several ranges walked as one with divisions

For "transposed" a few columns are first copied in their own layout ("stage"), then transposed in
blocks of one vector by one vector. Reading single elements from places far apart would cost as much
as multiplying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Memory, Value, load, substitute, value
from ugpu.compiler.kernel.host.products.axis import Axis, Part
from ugpu.compiler.kernel.ir import Loop, Statement, Store
from ugpu.compiler.kernel.shared.spread import runs_along

LINE = 64  # bytes of a cache line
SETS = 4096  # bytes from which on lines share a set of the first-level cache
ABREAST = 6  # lines of a set that may be read concurrently: of eight, some are for the other factor
SHORT = 8  # consecutive elements that make it worthwhile to follow memory


@dataclass(frozen=True)
class Packed:
    """A packed slice: its memories, the statements that fill it, and the position of an element:
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
class Direct:
    """A factor that is read in place: `value` at a place across and a step of the depth.

    Panels that reach beyond the last element read some earlier elements again; no result uses them.
    """

    value: Value
    across: Part
    depth: Part
    height: int

    memories: tuple[Memory, ...] = ()
    statements: tuple[Statement, ...] = ()

    def load(self, panel: Index, step: Index, element: int, lanes: int) -> Value:
        assert lanes == 1
        main = self.across.axis.main
        place = self.across.start + panel * self.height + element
        inside = place - (place // main.size) * self.height
        return substitute(self.value, {main: inside, **self.depth.places(step)})


def direct_height(factor: Value, across: Axis, depth: Part) -> int:
    """Return the maximum panel rows that may be read in place; 0 if the factor is packed."""
    plain = factor.op == "load" and not factor.arg.conditions
    if not plain or across.unit > 1 or depth.axis.unit > 1:
        return 0
    index: Index = factor.arg.index
    sides = (across.main, depth.axis.main)
    pitch, step = (index.coefficient(side) for side in sides)
    rest = index - across.main.index() * pitch - depth.axis.main.index() * step
    if step != 1 or pitch <= 0 or not rest.ranges().isdisjoint(sides):
        return 0
    return min(across.size, ABREAST * (SETS // gcd(SETS, pitch * factor.dtype.itemsize)))


@dataclass(frozen=True)
class Packing:
    """Common properties of the slices of both factors. batch: values of the other ranges."""

    dtype: DType
    lanes: int
    depth: Part
    batch: Mapping[Range, Index]

    def left(self, factor: Value, across: Part, height: int) -> Packed | Direct:
        if height <= direct_height(factor, across.axis, self.depth):
            return Direct(substitute(factor, self.batch), across, self.depth, height)
        if along_depth(factor, across, self.depth):
            return self.rows("left", factor, across, height)
        return self.by_steps("left", factor, across, height)

    def right(self, factor: Value, across: Part, width: int) -> Packed:
        turns = self.lanes & (self.lanes - 1) == 0 and across.is_flat(factor)
        if turns and along_depth(factor, across, self.depth):
            return self.transposed("right", factor, across, width)
        return self.by_steps("right", factor, across, width)

    def by_steps(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        flat = across.is_flat(factor)
        return (self.panels if flat else self.wide)(name, factor, across, width)

    def rows(self, name: str, factor: Value, across: Part, height: int) -> Packed:
        pitch = self.pitch(self.depth.whole)
        memory = Memory(name, self.dtype, round_up(across.whole, height) * pitch, "local")
        row, step = across.walk(name + "_row", factor), self.depth.walk(name + "_step", factor)
        here = self.element(factor, row.places, step.places)
        fill = Store(memory, row.position * pitch + step.position, here)
        return Packed(memory, (memory,), (row.around(step.around(fill)),), height * pitch, 1, pitch)

    def wide(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        pitch = self.pitch(round_up(across.whole, width))
        memory = Memory(name, self.dtype, self.depth.whole * pitch, "local")
        element, step = across.walk(name, factor), self.depth.walk(name + "_step", factor)
        here = self.element(factor, element.places, step.places)
        fill = Store(memory, step.position * pitch + element.position, here)
        return Packed(memory, (memory,), (step.around(element.around(fill)),), width, pitch, 1)

    def panels(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        count = round_up(across.whole, width) // width
        steps = self.depth.whole
        memory = Memory(name, self.dtype, count * steps * width, "local")
        panel, element = Range(name + "_panel", count), Range(name + "_element", width)
        first = panel.index() * width
        step = self.depth.walk(name + "_step", factor)
        here = self.element(factor, across.places(first + element.index()), step.places)
        at = panel.index() * (steps * width) + step.position * width + element.index()
        bound = limit(across, first, count * width)
        inner = Loop(panel, (Loop(element, (Store(memory, at, here),), bound),))
        return Packed(memory, (memory,), (step.around(inner),), steps * width, width, 1)

    def transposed(self, name: str, factor: Value, across: Part, width: int) -> Packed:
        lanes, count = self.lanes, round_up(across.whole, width) // width
        steps = round_up(self.depth.whole, lanes)
        pitch = self.pitch(steps)
        memory = Memory(name, self.dtype, count * steps * width, "local")
        stage = Memory(name + "_stage", self.dtype, lanes * pitch, "local")
        panel, part = Range(name + "_panel", count), Range(name + "_part", width // lanes)
        column, step = Range(name + "_column", lanes), self.depth.walk(name + "_step", factor)
        first = panel.index() * width + part.index() * lanes
        here = self.element(factor, across.places(first + column.index()), step.places)
        copy = step.around(Store(stage, column.index() * pitch + step.position, here))
        bound = limit(across, first, count * width)
        block = Range(name + "_block", steps // lanes)
        from_stage = block.index() * lanes
        rows = [load(stage, from_stage + row * pitch, lanes=lanes) for row in range(lanes)]
        to = panel.index() * (steps * width) + block.index() * (lanes * width)
        to = to + part.index() * lanes
        turned = tuple(
            Store(memory, to + row * width, vector) for row, vector in enumerate(transpose(rows))
        )
        both = (Loop(column, (copy,), bound), Loop(block, turned))
        statement = Loop(panel, (Loop(part, both),))
        return Packed(memory, (memory, stage), (statement,), steps * width, width, 1)

    def pitch(self, elements: int) -> int:
        """Return the distance of rows in elements: an odd number of whole lines."""
        line = LINE // self.dtype.itemsize
        return (-(-elements // line) | 1) * line

    def element(
        self, factor: Value, across: Mapping[Range, Index], depth: Mapping[Range, Index]
    ) -> Value:
        return substitute(factor, {**self.batch, **across, **depth})


def along_depth(factor: Value, across: Part, depth: Part) -> bool:
    """Return whether a factor's memory runs along the depth and not along the other side."""
    step = depth.walk("step", factor)
    walked = substitute(factor, step.places)
    return step.last.size >= SHORT and runs_along([walked], step.last, across.axis.ranges[-1])


def limit(part: Part, first: Index, whole: int) -> Index | None:
    """Return the number of elements from `first` on, where panels extend to `whole`."""
    if part.whole == whole:
        return part.bound_from(first)
    bound = part.bound()
    return (constant(part.whole) if bound is None else bound) - first


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def transpose(rows: list[Value], unit: int = 1) -> list[Value]:
    """Transpose n vectors of n elements of `unit` lanes each, n a power of two: vector i of the
    result has element i of each."""
    count = len(rows)
    lanes = count * unit
    distance = 1
    while distance < count:
        low = [j if not j & distance else count + j - distance for j in range(count)]
        high = [j + distance if not j & distance else count + j for j in range(count)]
        masks = [tuple(j * unit + k for j in mask for k in range(unit)) for mask in (low, high)]
        turned = list(rows)
        for i in range(count):
            if not i & distance:
                pair = (rows[i], rows[i + distance])
                for place, mask in zip((i, i + distance), masks, strict=True):
                    turned[place] = value("shuffle", pair[0].dtype, pair, mask, lanes)
        rows = turned
        distance *= 2
    return rows
