"""Products whose factors are first packed by separate kernels (NVIDIA, sm_90a).

before: a group that is a matrix product.
after: a kernel that packs each factor (kernel.nvidia.packed), and the product of the packed
factors, fed by bulk copies (kernel.nvidia.bulk). An array that several products of a run use in the
same way is packed once. A product whose results are one factor of one product, and used by no other
kernel, stores them packed: that factor then needs no packing kernel and no passes.

Packing reads and writes each factor once. Its saving grows with the product: the threads that
multiply no longer fetch factors, and factors that have to go through registers (computed ones, odd
strides, bytes and TensorFloat-32 that run across) do so once instead of once for each tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ugpu.compiler.expression.algebra import Opaque, Range, flatten, unflatten
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.lookup import atoms, guard
from ugpu.compiler.expression.text import format_value
from ugpu.compiler.expression.value import (
    Load,
    Memory,
    Value,
    const,
    gate,
    indices_of,
    interning,
    load,
    rebuild,
    substitute,
    value,
    walk,
)
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.gpu.matrix import narrow
from ugpu.compiler.kernel.matrix_units import GroupUnit, find_group_unit
from ugpu.compiler.kernel.nvidia.packed import BLOCK, Packed
from ugpu.compiler.kernel.nvidia.totals import RUN
from ugpu.compiler.kernel.shared.spread import unit_stride
from ugpu.compiler.pattern.chain import find_chain
from ugpu.compiler.pattern.contraction import Contraction, find_contraction, ranges_of
from ugpu.compiler.pattern.online import find_online
from ugpu.compiler.plan.attention import computed
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.state.target import TargetSpec

# Multiplications and additions in the time of moving a byte to or from memory. NVIDIA H200 Tensor
# Core GPU, data sheet: 989 TFLOP/s of dense 16-bit floats, 4.8 TB/s.
PER_BYTE = 989 / 4.8
# The same in the time from one kernel's end to the next one's results: 5 us. UNSURE: a measurement
# on a board may give 2 to 8.
PER_KERNEL = 5e-6 * 989e12
# Slowdown of a product whose factors are fetched by the threads that multiply. Shah et al.,
# FlashAttention-3 (2024), "Ablation": 661 TFLOP/s with a separate warp for fetching, 570 without.
# UNSURE: that is attention; `make hw` on an H200, or `ugpu tune`, settles it.
FETCHING = 661 / 570 - 1
# A factor that goes through registers: some 24 instructions for each 16 bytes instead of 3, of a
# tile's 384 rows of 8 chunks by 4 schedulers, beside the 1024 cycles of its products.
THROUGH_REGISTERS = 24 * 8 / 32 / 4 * 256 / 1024


@dataclass(frozen=True)
class Derived(Group):
    """A kernel that no nodes of the graph describe. Its root is a separate node for its result, or
    that of the group it comes from. own: whether it is a separate node. (It must not contain a
    reference cycle: references to nodes are counted.)"""

    computation: Computation = field(kw_only=True)
    own: bool = field(kw_only=True)


# From a product and its possible replacement to whether to replace it: None if unknown
Judge = Callable[[Computation, tuple[Computation, ...]], bool | None]


def nobody(plain: Computation, forms: tuple[Computation, ...]) -> bool | None:
    """Judge that never has an answer."""
    return None


def computation_of(group: Group) -> Computation:
    """Return the computation of a group's kernel. The caller holds
    compiler.expression.value.interning."""
    return group.computation if isinstance(group, Derived) else computed(group)


def packed(
    groups: Sequence[Group],
    target: TargetSpec,
    roots: Sequence[Node] = (),
    judge: Judge = nobody,
) -> list[Group]:
    """Return the schedule with products replaced by packing and products of packed factors, if the
    target has units for those and it pays. roots: requested results, which have to be stored in
    their own layout. judge: overrides the estimate for some products; called without
    `interning`."""
    if not has_units(target):
        return list(groups)
    run = _Run(groups, frozenset(map(id, roots)))
    for group in groups:
        with interning:
            product = _product(group, target, run)
            sides = () if product is None else _sides(product)
            forms = () if product is None else _forms(product, sides)
        worth = False
        if product is not None:
            sizes = product.parts.rows.size, product.parts.columns.size
            verdict = judge(product.computation, forms) if min(sizes) >= BLOCK // 2 else None
            free = tuple(side.is_free for side in sides)
            worth = verdict is True or (
                verdict is None and pays(product.parts, product.unit, (free[0], free[1]))
            )
        with interning:
            if product is None or not worth:
                run.add(group)
            else:
                product.split(sides)
    return run.found


def has_units(target: TargetSpec) -> bool:
    """Return whether a target has matrix units for data copied in bulk."""
    return target.abi == "ptx" and target.matrix == "sm_90a"


class _Run:
    """The schedule so far. known: packed arrays by content."""

    def __init__(self, groups: Sequence[Group], asked: frozenset[int]) -> None:
        self.found: list[Group] = []
        self.known: dict[tuple[Any, ...], Group] = {}
        self.readers = Counter(id(node) for group in groups for node in group.sources)
        self.asked = asked
        self.makers: dict[int, int] = {}  # by id of a root: the place of its kernel

    def add(self, group: Group) -> None:
        self.makers[id(group.root)] = len(self.found)
        self.found.append(group)

    def maker(self, node: Node) -> Group | None:
        """Return the kernel that computes a value read by only one kernel, or None."""
        place = self.makers.get(id(node))
        if place is None or id(node) in self.asked or self.readers[id(node)] != 1:
            return None
        return self.found[place]

    def replace(self, old: Group, new: Group) -> None:
        place = self.makers.pop(id(old.root))
        self.makers[id(new.root)] = place
        self.found[place] = new


def _product(group: Group, target: TargetSpec, run: _Run) -> _Product | None:
    """Return a product whose factors can be packed, or None."""
    if type(group) is not Group or group.in_place or group.others:
        return None
    kinds = [entry[0] for entry in group.key]
    if "reduce" not in kinds or "mul" not in kinds:
        return None
    computation = express(group)
    if computation.pieces:
        return None
    if find_online(computation) is not None or find_chain(computation) is not None:
        return None
    computation = computation.plain
    parts = find_contraction(computation)
    if parts is None or parts.outer or _looks_up(computation.value):
        return None
    unit = unit_of(parts, target)
    if unit is None:
        return None
    return _Product(group, computation, parts, unit, run)


def _sides(product: _Product) -> tuple[_Side, ...]:
    parts = product.parts
    left = _Side(product, parts.left, parts.rows)
    return left, _Side(product, parts.right, parts.columns)


def _forms(product: _Product, sides: Sequence[_Side]) -> tuple[Computation, ...]:
    """Return the computations of the packed form: packing of factors that are not free, and the
    product of those."""
    made = [computation_of(side.packing) for side in sides if not side.is_free]
    groups = [(side.packing, side.read(side.memory(place))) for place, side in enumerate(sides)]
    return *made, computation_of(product.product(groups))


def _looks_up(root: Value) -> bool:
    """Return whether indices depend on memory contents."""
    return any(isinstance(atom, Opaque) for index in indices_of(root) for atom in atoms(index))


def unit_of(parts: Contraction, target: TargetSpec) -> GroupUnit | None:
    """Return the unit that multiplies packed factors, or None."""
    sides = narrow(parts.left), narrow(parts.right)
    if sides[0] is None or sides[1] is None or sides[0].dtype is not sides[1].dtype:
        return None
    return find_group_unit(target.matrix, sides[0].dtype, parts.reduce.dtype)


# ---- whether it pays ---------------------------------------------------------------------------


def pays(parts: Contraction, unit: GroupUnit, free: tuple[bool, bool] = (False, False)) -> bool:
    """Return whether packing both factors costs less than it saves. free: for each factor, whether
    it is packed already, or by the kernel that computes it."""
    return saved(parts, unit) > cost(parts, unit, free)


def saved(parts: Contraction, unit: GroupUnit) -> float:
    """Return the saving of a product whose factors are packed, in multiplications and additions of
    16-bit floats."""
    rows, columns, depth = (r.size for r in (parts.rows, parts.columns, parts.depth))
    if min(rows, columns) < BLOCK or depth < unit.depth:
        return 0.0
    work = 2.0 * rows * columns * depth * elements(parts.batch) * unit.element.itemsize / 2
    share = FETCHING
    for side, across in ((parts.left, parts.rows), (parts.right, parts.columns)):
        if not _fetched(side, across, parts.depth, unit):
            share += THROUGH_REGISTERS
    return work * share


def cost(parts: Contraction, unit: GroupUnit, free: tuple[bool, bool] = (False, False)) -> float:
    """Return the cost of packing both factors, in the same unit."""
    total = 0.0
    sides = (parts.left, parts.rows), (parts.right, parts.columns)
    for (side, across), known in zip(sides, free, strict=True):
        layout = layout_of(side, across, parts.depth, unit)
        size = layout.size * elements(_batch(side, parts)) * unit.element.itemsize
        if not known:
            total += 2 * size * PER_BYTE + PER_KERNEL
    return total


def _fetched(side: Value, across: Range, depth: Range, unit: GroupUnit) -> bool:
    """Return whether gpu_ring fetches a factor without registers: a plain array in chunks of 16
    bytes."""
    thin = narrow(side)
    if thin is None or thin.op != "load":
        return False
    access: Load = thin.arg
    width = 16 // unit.element.itemsize
    along, other = (depth, across) if access.index.coefficient(depth) == 1 else (across, depth)
    if access.index.coefficient(along) != 1 or (along is across and not unit.turns):
        return False
    return along.size % width == 0 and access.index.coefficient(other) % width == 0


# ---- how it is done ----------------------------------------------------------------------------


def layout_of(side: Value, across: Range, depth: Range, unit: GroupUnit) -> Packed:
    """Return the layout of a packed factor: transposed where its memory runs across and the unit
    supports that."""
    deep = unit_stride(side, depth) or not unit_stride(side, across)
    return Packed(unit.element, across.size, depth.size, unit.turns and not deep)


def _batch(side: Value, parts: Contraction) -> tuple[Range, ...]:
    """Return the ranges of the batch that a factor depends on."""
    used = ranges_of(side)
    return tuple(r for r in parts.batch if r in used)


@dataclass(frozen=True)
class _Side:
    """A factor of a product that is to be packed. made: the computation that packs it."""

    product: _Product
    value: Value
    across: Range

    @property
    def thin(self) -> Value:
        found = narrow(self.value)
        assert found is not None
        return found

    @property
    def layout(self) -> Packed:
        return layout_of(self.value, self.across, self.product.parts.depth, self.product.unit)

    @property
    def batch(self) -> tuple[Range, ...]:
        return _batch(self.value, self.product.parts)

    @cached_property
    def packing(self) -> Derived:
        """Return the kernel that packs it, over one range."""
        layout, batch, product = self.layout, self.batch, self.product
        sizes = tuple(r.size for r in batch)
        everything = Range("i0", elements(batch) * layout.size)
        places, row, step = layout.element(everything.index(), sizes)
        inside = layout.conditions(row, step)
        at = {self.across: row, product.parts.depth: step, **dict(zip(batch, places, strict=True))}
        factor = guard(substitute(self.thin, at), inside)
        factor = gate(inside, factor, const(0, factor.dtype))
        used = {node.arg.memory for node in walk(factor) if node.op == "load"}
        inputs = [memory for memory in product.computation.inputs if memory in used]
        # with separate names, so that equal packing of one array is recognised
        names = {memory: replace(memory, name=f"in{i}") for i, memory in enumerate(inputs)}

        def rename(node: Value, _: tuple[Value, ...]) -> Value | None:
            if node.op != "load":
                return None
            access: Load = node.arg
            return load(names[access.memory], access.index, access.conditions, node.lanes)

        output = Memory("out", factor.dtype, layout.count(elements(batch)))
        content = rebuild(factor, rename)
        made = Computation(output, tuple(names.values()), (everything,), content, "pack")
        root = Node("packed", output.dtype, (output.count,))
        key = ("pack", format_value(content), output.count, output.dtype.name)
        memories = tuple((memory.dtype.name, memory.count) for memory in inputs)
        given = tuple(product.input_of(memory) for memory in inputs)
        bases = tuple(product.source_of(memory) for memory in inputs)
        return Derived(root, given, (*key, memories), bases=bases, computation=made, own=True)

    @property
    def content(self) -> tuple[Any, ...]:
        """Return the properties that distinguish packed arrays of a run."""
        return self.packing.key, tuple(id(node) for node in self.packing.inputs)

    @cached_property
    def maker(self) -> Group | None:
        """Return the kernel of the product that computes this factor, if it can store it packed."""
        thin, layout = self.thin, self.layout
        if thin.op != "load" or thin.arg.conditions or layout.dtype.itemsize != 2:
            return None
        node = self.product.input_of(thin.arg.memory)
        found = self.product.run.maker(node)
        if found is None or layout.depth % layout.length or self.order() is None:
            return None
        plain = type(found) is Group or (isinstance(found, Derived) and not found.own)
        if not plain or found.in_place or found.others:
            return None
        computation = computation_of(found)
        return found if _is_product(computation) and computation.place is None else None

    def order(self) -> tuple[Range, ...] | None:
        """Return the ranges in the order of the factor's array, if the factor is the whole array
        and its whole chunks are consecutive."""
        depth = self.product.parts.depth
        last = (depth, self.across) if self.layout.turned else (self.across, depth)
        order = (*self.batch, *last)
        access: Load = self.thin.arg
        whole = flatten([r.index() for r in order], [r.size for r in order])
        exact = access.index == whole and elements(order) == access.memory.count
        return order if exact and order[-1].size % RUN == 0 else None

    @property
    def is_free(self) -> bool:
        """Return whether packing it needs no kernel."""
        return self.content in self.product.run.known or self.maker is not None

    def group(self) -> Group:
        """Return the kernel that makes the packed array, and add it to the run."""
        run = self.product.run
        found = run.known.get(self.content)
        if found is None:
            found = self.packing if self.maker is None else self.made_packed(self.maker)
            run.known[self.content] = found
            if self.maker is None:
                run.add(found)
            else:
                run.replace(self.maker, found)
        return found

    def made_packed(self, maker: Group) -> Derived:
        """Return a product that stores its results in this factor's packed layout."""
        computation, order = computation_of(maker), self.order()
        assert order is not None
        *places, one, two = unflatten(computation.position, tuple(r.size for r in order))
        across, step = (two, one) if self.layout.turned else (one, two)
        number = flatten(places, [r.size for r in self.batch])
        output = replace(computation.output, count=self.layout.count(elements(self.batch)))
        place = self.layout.place(number, across, step)
        made = replace(computation, output=output, place=place)
        root = Node("packed", output.dtype, (output.count,))
        key = ("stored packed", self.layout, tuple(r.size for r in order), *maker.key)
        return Derived(root, maker.inputs, key, bases=maker.bases, computation=made, own=True)

    def memory(self, place: int) -> Memory:
        """Return the packed array, as the product names it."""
        output = computation_of(self.packing).output
        return Memory(f"packed{place}", output.dtype, output.count)

    def read(self, memory: Memory) -> Value:
        """Return the factor, read from the packed array."""
        number = flatten([r.index() for r in self.batch], [r.size for r in self.batch])
        depth = self.product.parts.depth
        found = load(memory, self.layout.place(number, self.across.index(), depth.index()))
        if self.value.op == "cast":
            return value("cast", self.value.dtype, (found,))
        # a TensorFloat-32: rounding it twice equals rounding it once
        inner = self.value.sources[0]
        bits = value("bitcast", inner.dtype, (found,))
        rounded = value("and", inner.dtype, (bits, inner.sources[1]))
        return value("bitcast", self.value.dtype, (rounded,))


def _is_product(computation: Computation) -> bool:
    """Return whether a kernel stores runs of at most RUN neighbours, each at a multiple of its
    length."""
    if computation.pieces or find_online(computation) is not None:
        return False
    if find_chain(computation) is not None:
        return False
    return find_contraction(computation) is not None


@dataclass(frozen=True, eq=False)
class _Product:
    """A product being split."""

    group: Group
    computation: Computation
    parts: Contraction
    unit: GroupUnit
    run: _Run

    def input_of(self, memory: Memory) -> Node:
        """Return the node that a memory of the computation stands for."""
        return self.group.inputs[self.computation.inputs.index(memory)]

    def source_of(self, memory: Memory) -> Node:
        """Return the stored node of which that node is, or is a part of."""
        return self.group.sources[self.computation.inputs.index(memory)]

    def split(self, sides: Sequence[_Side]) -> None:
        """Add the kernels to the run: packing of factors not packed yet, then the product."""
        given: list[tuple[Group, Value]] = []
        for side in sides:
            group = side.group()
            both = len(given) == 1 and given[0][0] is group  # two factors may be one array
            given.append((group, side.read(side.memory(0 if both else len(given)))))
        self.run.add(self.product(given))

    def product(self, sides: Sequence[tuple[Group, Value]]) -> Derived:
        """Return the product of the packed factors, with the same epilogue."""
        reduce = self.parts.reduce
        left, right = (each for _, each in sides)
        factors = value("mul", reduce.dtype, (left, right))
        new = value("reduce", reduce.dtype, (factors,), reduce.arg)

        def change(node: Value, _: tuple[Value, ...]) -> Value | None:
            return new if node is reduce else None

        whole = rebuild(self.computation.value, change)
        used = {node.arg.memory for node in walk(whole) if node.op == "load"}
        given = {
            node.arg.memory: group.root
            for group, each in sides
            for node in walk(each)
            if node.op == "load"
        }
        kept = [memory for memory in self.computation.inputs if memory in used]
        computation = replace(self.computation, inputs=(*given, *kept), value=whole)
        inputs = (*given.values(), *(self.input_of(memory) for memory in kept))
        bases = (*given.values(), *(self.source_of(memory) for memory in kept))
        key = ("product of packed factors", *self.group.key)
        root = self.group.root
        return Derived(root, inputs, key, bases=bases, computation=computation, own=False)
