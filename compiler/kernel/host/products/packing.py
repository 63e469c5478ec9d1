"""Layout of the slices of a matrix product's factors in local memory, and their packing.

    direct      -                          plain memory that each panel reads in place: of the left
                                           factor along the depth, or along the rows if a cache
                                           holds the slice; of the right one along the columns, of
                                           which all panels are complete, for few panels of rows,
                                           or more where it comes from beyond the second level
    again       -                          left factors that are the right one transposed, all of
                                           which is packed
    blocks      [block][row][step]         one panel of the left factor, for tile registers
    rows        [element][step]            other left factors whose memory runs along the depth;
                                           rows are padded so that they share no cache set
    panels      [panel][group][element][n] factors that are read along the other side
    transposed  [panel][group][element][n] right factors whose memory runs along the depth
    wide        [group][element][n]        several ranges walked as one with divisions

A group is the n steps of the depth that one instruction multiplies: one, or more where the
processor can (compiler.kernel.host.products.grouped); in rows they lie side by side anyway. For
"transposed" a few columns are first copied in their own layout ("stage"), then transposed in blocks
of one vector by one vector. Reading single elements from places far apart would cost as much as
multiplying them. Neighbours that are two elements apart (a stride of 2) are shuffled from vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant, flatten
from ugpu.compiler.expression.value import Memory, Value, const, load, substitute, value
from ugpu.compiler.kernel.host.lines import every_second
from ugpu.compiler.kernel.host.nest import Axis, Part, Walk, rolled, round_up
from ugpu.compiler.kernel.ir import Loop, Prefetch, Statement, Store, guarded
from ugpu.compiler.kernel.shared.spread import runs_along

LINE = 64  # bytes of a cache line
SETS = 4096  # bytes from which on lines share a set of the first-level cache
ABREAST = 6  # lines of a set that may be read concurrently: of eight, some are for the other factor
PAIR, QUAD = 2, 4  # steps that one instruction multiplies
GROUPS = {PAIR: "pair", QUAD: "quad"}
AHEAD = 2048  # bytes of a factor between what is packed and what is prefetched for it
SHORT = 8  # consecutive elements that make it worthwhile to follow memory


@dataclass(frozen=True)
class Packed:
    """A packed slice: its memory, the statements that fill it, and the position of an element:
    panel * panel_step + step * step_step + element * element_step."""

    memory: Memory
    statements: tuple[Statement, ...]
    panel_step: int
    step_step: int
    element_step: int

    def load(self, panel: Index, step: Index, element: Index | int, lanes: int) -> Value:
        at = panel * self.panel_step + step * self.step_step + element * self.element_step
        return load(self.memory, at, lanes=lanes)


@dataclass(frozen=True)
class Again:
    """A left factor of panels of `height` rows, the first at `start`, that is read from the packed
    right factor, whose panels have `width` columns, a multiple."""

    right: Packed
    start: Index
    height: int
    width: int

    statements: tuple[Statement, ...] = ()

    def load(self, panel: Index, step: Index, element: int, lanes: int) -> Value:
        first = self.start + panel * self.height
        return self.right.load(first // self.width, step, first % self.width + element, lanes)


@dataclass(frozen=True)
class Direct:
    """A factor that is read in place: `value` at a place across and a step of the depth; panels
    have `size` elements.

    Panels that reach beyond the last element read some earlier elements again; no result uses them.
    """

    value: Value
    across: Part
    depth: Part
    size: int

    statements: tuple[Statement, ...] = ()

    def load(self, panel: Index, step: Index, element: int, lanes: int) -> Value:
        """Return an element, or `lanes` of them in the order of memory."""
        axis, place = self.across.axis, panel * self.size + element
        beyond = (self.across.start * axis.unit + place) // axis.size
        places = self.across.places(place - beyond * self.size)
        access = substitute(self.value, {**places, **self.depth.places(step)}).arg
        return load(access.memory, access.index, (), lanes)

    def prefetch(self, panel: Index, row: Index, rows: int, step: Index) -> Prefetch:
        """Begin to bring an element of the next panel near, of one of its first rows; of some row
        after the last panel."""
        main = self.across.axis.main
        first = (self.across.start + (panel + 1) * self.size) % (main.size - rows + 1)
        place = first + row
        access = substitute(self.value, {main: place, **self.depth.places(step)}).arg
        return Prefetch(access.memory, access.index)

    def ahead(
        self, row: Index, rows: int, place: Index, step: Index, level: int = 1
    ) -> Iterator[Prefetch]:
        """Yield prefetches of a step of a panel of columns that begins `place` elements after the
        start, of which each of `rows` panels of rows takes a share. Behind all columns there are
        those of the next slice; with a level of the caches other than the first, also where slices
        do not fill the depth, and beyond its end."""
        axis, depth = self.across.axis, self.depth
        line = LINE // self.value.dtype.itemsize
        lines = -(-self.size // line)
        share = -(-lines // rows)
        place = self.across.start * axis.unit + place
        if depth.axis.main.size % depth.count == 0 or level > 1:
            start = depth.start + place // axis.size * depth.count
            depth = replace(depth, start=start % depth.axis.main.size)
        for number in range(share):
            first = place + (row * share + number) % lines * line
            places = axis.whole.places(first % axis.size)
            access = substitute(self.value, {**places, **depth.places(step)}).arg
            yield Prefetch(access.memory, access.index, level)


Factor = Packed | Again | Direct


def in_lines(factor: Value, across: Axis, depth: Part) -> bool:
    """Return whether a right factor may be read in place."""
    if factor.op != "load" or factor.arg.conditions or not depth.is_flat(factor):
        return False
    walk = across.whole.walk("column", factor)
    index = factor.arg.index.substitute(walk.places)
    return across.whole.is_flat(factor) and index.linear(walk.last) == (1,)


def direct_height(factor: Value, across: Axis, depth: Part, near: int = 0) -> int:
    """Return the maximum panel rows that may be read in place; 0 if the factor is packed. near:
    bytes of memory with a slice that may be read line by line, one for each step."""
    plain = factor.op == "load" and not factor.arg.conditions
    if not plain or across.unit > 1 or not depth.is_flat(factor):
        return 0
    walk = depth.walk("step", factor)
    index = factor.arg.index.substitute(walk.places)
    pitch, step = index.linear(across.main, walk.last) or (0, 0)
    if pitch == 1 and 1 < step <= near // (depth.whole * factor.dtype.itemsize):
        return across.size
    if step != 1 or pitch <= 0:
        return 0
    return min(across.size, ABREAST * (SETS // gcd(SETS, pitch * factor.dtype.itemsize)))


@dataclass(frozen=True)
class Packing:
    """Common properties of the slices of both factors. batch: values of the other ranges. together:
    steps of the depth's main range that are multiplied at once and lie side by side; an incomplete
    group at the end ends with zeros. plain: each side is one range. in_rows: the left factor is
    always in rows. direct: see `direct_height`. far: bytes of an array from which on it comes from
    beyond the second-level cache. block: steps to multiples of which zeros are added at the end of
    the depth."""

    lanes: int
    depth: Part
    batch: Mapping[Range, Index]
    together: int
    plain: bool
    in_rows: bool
    direct: int
    far: int
    block: int = 1

    @property
    def total(self) -> int:
        """Steps of the main range."""
        return self.depth.axis.main.size

    @property
    def end(self) -> int:
        """Where the incomplete group begins in the last slice, in steps of the main range."""
        return (self.total - 1) % self.depth.count + 1

    def left(self, factor: Value, across: Part, height: int) -> Packed | Direct:
        if height <= self.direct:
            return Direct(substitute(factor, self.batch), across, self.depth, height)
        apart = self.together > 1 and not self.plain
        if self.in_rows or (not apart and along_depth(factor, across, self.depth)):
            return self.rows("left", factor, across, height)
        return self.by_steps("left", [factor], across, height)[0]

    def right(self, factors: Sequence[Value], across: Part, width: int) -> list[Packed]:
        """Pack a right factor, or the numbers that its elements are sums of, each apart; the first
        has the statements of all."""
        factor = factors[0]
        turns = self.lanes & (self.lanes - 1) == 0 and across.is_flat(factor)
        if self.together > 1:
            turns = self.plain and (self.together == PAIR or self.block > 1)
        turns = turns and along_depth(factor, across, self.depth)
        pack = self.transposed if turns else self.by_steps
        first, *others = pack("right", factors, across, width)
        return [replace(first, statements=tuple(map(rolled, first.statements))), *others]

    def by_steps(
        self, name: str, factors: Sequence[Value], across: Part, width: int
    ) -> list[Packed]:
        """Pack in panels; a side that one counter cannot walk as one wide panel."""
        factor, together, steps = factors[0], self.together, self.depth.whole // self.together
        flat = across.is_flat(factor) if together == 1 else self.plain
        whole = round_up(across.whole, width)
        panel = Range(name + "_panel", whole // width if flat else 1)
        if flat:
            pitch, panel_step = width, steps * width
            if together == PAIR or (together == 1 and width * factor.dtype.itemsize % LINE):
                # a line of each panel is written several times: panels share no cache set
                panel_step = self.pitch(factor, panel_step)
            first = panel.index() * width
            element = across.panel(name + "_element", first, width, whole)
        else:
            pitch, panel_step = self.pitch(factor, whole), width
            element = across.walk(name, factor)
        each = panel_step * together if flat else self.depth.whole * pitch
        memories = [
            Memory(part, factor.dtype, panel.size * each, "local") for part in names(name, factors)
        ]

        # a few columns at a time, each along memory
        by_panels = flat and along_depth(factor, across, self.depth)

        def by_groups(groups: Walk, count: int) -> Statement:
            place = panel.index() * panel_step + groups.position * pitch + element.position
            stores = [
                store for memory, each in zip(memories, factors, strict=True)
                for store in self.group(memory, place, each, element, groups, count)
            ]  # fmt: skip
            inside = self.copied(element, stores)
            if by_panels:
                return Loop(panel, (groups.around(*inside),))
            soon = self.soon(factor, across, element, groups) if flat and together == 1 else ()
            return groups.around(*([Loop(panel, (*soon, *inside))] if flat else inside))

        statements, rest = [by_groups(self.groups(name, factor), together)], self.total % together
        if rest:  # the incomplete group at the end of the depth
            statements += self.at_end(by_groups(self.groups(name, factor, True), rest))
        ended, padded = -(-self.end // together), round_up(self.end, self.block) // together
        if ended < padded:  # groups of zeros
            zeros = Range(name + "_zeros", (padded - ended) * pitch * together)
            place = panel.index() * panel_step * together + ended * pitch * together
            fill = tuple(
                Store(memory, place + zeros.index(), const(0, factor.dtype)) for memory in memories
            )
            statements += self.at_end(Loop(panel, (Loop(zeros, fill),)), self.block)
        return packed(memories, statements, panel_step * together, pitch * together, together)

    def rows(self, name: str, factor: Value, across: Part, height: int) -> Packed:
        pitch, count = self.pitch(factor, self.depth.whole), round_up(across.whole, height)
        memory = Memory(name, factor.dtype, count * pitch, "local")
        row, step = across.walk(name + "_row", factor), self.depth.walk(name + "_step", factor)
        here = self.element(factor, row, step)
        fill = Store(memory, row.position * pitch + step.position, here)
        statements = [row.around(step.around(fill))]
        if factor.dtype.is_float:  # of integers, the other factor's zeros are enough
            end = Range(name + "_end", count)
            place = end.index() * pitch + self.end
            statements += self.at_end(Loop(end, (Store(memory, place, const(0, factor.dtype)),)))
        return Packed(memory, tuple(statements), height * pitch, self.together, pitch)

    def in_blocks(
        self, factors: Sequence[Value], across: Part, height: int, panel: Index
    ) -> list[Packed]:
        """Pack one panel of the left factor, or of the numbers that its elements are sums of, in
        blocks of steps; the first has the statements of all."""
        whole, steps, dtype = round_up(across.whole, height), self.block, factors[0].dtype
        block = Range("left_block", self.depth.whole // steps)
        pitch = self.pitch(factors[0], height * steps)
        memories = [
            Memory(part, dtype, block.size * pitch, "local") for part in names("left", factors)
        ]
        row = across.panel("left_row", panel * height, height, whole)

        def line(name: str, number: Index, count: int) -> Statement:
            step = self.depth.line(name, count, number * steps)
            place = number * pitch + row.position * steps + step.position
            return step.around(*(
                Store(memory, place, self.element(factor, row, step))
                for memory, factor in zip(memories, factors, strict=True)
            ))  # fmt: skip

        bound = self.depth.bound()
        full = None if bound is None else bound // steps
        lines: tuple[Statement, ...] = (
            Loop(block, (line("left_step", block.index(), steps),), full),
        )
        zeros: tuple[Statement, ...] = ()
        if rest := self.end % steps:
            last, zero = constant(self.end // steps), Range("left_zero", height * steps)
            place = last * pitch + zero.index()
            fill = tuple(Store(memory, place, const(0, dtype)) for memory in memories)
            zeros = self.at_end(Loop(zero, fill), steps)
            lines += self.at_end(line("left_end", last, rest), steps)
        statements = (*zeros, row.around(*lines))
        return packed(memories, statements, 0, pitch // (steps // self.together), steps)

    def ahead(
        self, factor: Value, across: Part, places: range, first: Index, step: Index
    ) -> Iterator[Prefetch]:
        """Yield prefetches of a step of some elements of a factor that is read in place or packed
        again and again: of `places` behind `first`; behind the end those at the start."""
        axis = across.axis
        for place in places:
            here = (across.start + first + place) % axis.size
            wanted = {**self.batch, axis.main: here, **self.depth.places(step)}
            access = substitute(factor, wanted).arg
            yield Prefetch(access.memory, access.index)

    def soon(self, factor: Value, across: Part, element: Walk, steps: Walk) -> tuple[Loop, ...]:
        """Return the loop that begins to bring the same elements of some steps behind near: a
        processor's own prefetching ends with a row of the part, or with a page."""
        if factor.op != "load" or factor.arg.conditions or len(steps.loops) > 1:
            return ()
        size, main, (counter, _) = factor.dtype.itemsize, self.depth.axis.main, element.loops[-1]
        line = Range(counter.name + "_line", -(-counter.size * size // LINE))
        ahead = -(-AHEAD // (min(across.whole, across.axis.size) * size))
        behind = {**steps.places, main: steps.places[main] + ahead}
        access = substitute(factor, {**self.batch, **element.places, **behind}).arg
        if access.memory.count * size < self.far or access.index.linear(counter) != (1,):
            return ()
        first = {counter: line.index() * (LINE // size)}
        return (Loop(line, (Prefetch(access.memory, access.index.substitute(first)),)),)

    def transposed(
        self, name: str, factors: Sequence[Value], across: Part, width: int
    ) -> list[Packed]:
        lanes, count, factor = self.lanes, round_up(across.whole, width) // width, factors[0]
        wide = lanes * self.together
        steps = round_up(self.depth.whole, wide)
        pitch = self.pitch(factor, steps)
        size, part_names = count * steps * width, names(name, factors)
        memories = [Memory(each, factor.dtype, size, "local") for each in part_names]
        stages = [
            Memory(each + "_stage", factor.dtype, lanes * pitch, "local") for each in part_names
        ]
        panel, part = Range(name + "_panel", count), Range(name + "_part", width // lanes)
        first = panel.index() * width + part.index() * lanes
        column = across.panel(name + "_column", first, lanes, count * width)
        step = self.depth.walk(name + "_step", factor)
        row = column.position * pitch
        copied = (
            Store(stage, row + step.position, self.element(each, column, step))
            for stage, each in zip(stages, factors, strict=True)
        )
        zero = Range(name + "_zeros", max(1, round_up(self.end, self.block) - self.end))
        end = (
            Store(stage, row + self.end + zero.index(), const(0, factor.dtype)) for stage in stages
        )
        end_of = max(self.together, self.block)
        zeros = self.at_end(Loop(zero, tuple(end)), end_of)
        copy = column.around(step.around(*copied), *zeros)
        block = Range(name + "_block", steps // wide)
        to = panel.index() * (steps * width) + block.index() * (wide * width) + part.index() * wide
        turned: list[Statement] = []
        for memory, stage in zip(memories, stages, strict=True):
            places = (block.index() * wide + row * pitch for row in range(lanes))
            rows = [load(stage, place, lanes=wide) for place in places]
            stores = turn(memory, to, width * self.together, rows, self.together)
            turned.append(Loop(block, stores))
        statement = Loop(panel, (Loop(part, (copy, *turned)),))
        apart = steps * width, width * self.together, self.together
        return packed(memories, (statement,), *apart)

    def groups(self, name: str, factor: Value, end: bool = False) -> Walk:
        """Return the loops over the complete groups of steps, or the incomplete one at the end;
        the places are those of the first step."""
        if self.together == 1:
            return self.depth.walk(name + "_step", factor)
        axis = self.depth.axis
        counters = [Range(f"{name}_{GROUPS[self.together]}", self.depth.count // self.together)]
        counters += [Range(f"{name}_step{i}", r.size) for i, r in enumerate(axis.inner)]
        indices = [counter.index() for counter in counters]
        if end:
            indices[0] = constant(self.end // self.together)
        places = dict(zip(axis.ranges, indices, strict=True))
        places[axis.main] = self.depth.start + indices[0] * self.together
        rest = constant(self.total) - self.depth.start
        bound = rest // self.together if self.total % self.depth.count else None
        loops = ((counters[0], bound), *((counter, None) for counter in counters[1:]))
        return Walk(loops[end:], flatten(indices, [c.size for c in counters]), places)

    def group(
        self, memory: Memory, place: Index, factor: Value, across: Walk, groups: Walk, count: int
    ) -> tuple[Store, ...]:
        """Return the stores of `count` steps of a group, and of zeros for the others."""
        values = [self.element(factor, across, groups, step) for step in range(count)]
        values += [const(0, factor.dtype)] * (self.together - count)
        return tuple(
            Store(memory, place * self.together + step, each) for step, each in enumerate(values)
        )

    def copied(self, element: Walk, stores: Sequence[Store]) -> tuple[Statement, ...]:
        """Return the loops over elements around stores, or around vectors of them if neighbours are
        two apart in memory (a convolution with a stride)."""
        (*outer, (column, bound)), (store, *others) = element.loops, stores
        if bound is not None or others:
            return (element.around(*stores),)
        line = every_second(store, column, self.lanes)
        if not line or not outer:
            return line or (element.around(*stores),)
        return (replace(element, loops=tuple(outer)).around(*line),)

    def at_end(self, statement: Statement, group: int = 0) -> tuple[Statement, ...]:
        """Return the statement for the last slice of a depth that ends inside a group only. group:
        number of steps, by default those that are multiplied at once."""
        if self.total % (group or self.together) == 0:
            return ()
        return guarded(at_least_zero(self.depth.start - (self.total - self.end)), statement)

    def pitch(self, factor: Value, elements: int) -> int:
        """Return the distance of rows in elements: an odd number of whole lines."""
        line = LINE // factor.dtype.itemsize
        return (-(-elements // line) | 1) * line

    def element(self, factor: Value, across: Walk, depth: Walk, step: int = 0) -> Value:
        """Return the element at two walks' places, or some steps of the depth behind them."""
        main = self.depth.axis.main
        behind = {**depth.places, main: depth.places[main] + step}
        return substitute(factor, {**self.batch, **across.places, **behind})


def names(name: str, factors: Sequence[Value]) -> list[str]:
    """Return the names of the memories of the numbers that a factor's elements are sums of."""
    return [name, f"{name}_low"][: len(factors)]


def packed(
    memories: Sequence[Memory], statements: Sequence[Statement], *steps: int
) -> list[Packed]:
    """Return slices packed by the same statements, which the first has. steps: of an element's
    position."""
    first, *others = (Packed(memory, (), *steps) for memory in memories)
    return [replace(first, statements=tuple(statements)), *others]


def along_depth(factor: Value, across: Part, depth: Part) -> bool:
    """Return whether a factor's memory runs along the depth and not along the other side."""
    step = depth.walk("step", factor)
    walked = substitute(factor, step.places)
    return step.last.size >= SHORT and runs_along([walked], step.last, across.axis.ranges[-1])


def turn(
    memory: Memory, to: Index, pitch: int, rows: list[Value], unit: int = 1
) -> tuple[Store, ...]:
    """Return the stores of transposed vectors, `pitch` elements apart."""
    columns = enumerate(transpose(rows, unit))
    return tuple([Store(memory, to + row * pitch, vector) for row, vector in columns])


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
