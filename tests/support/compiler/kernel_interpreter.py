"""Runs a kernel's IR with NumPy: what it means, apart from any code generator.

The threads of a group go through the statements together, each value an array over threads (and
lanes). Matrix instructions are done by a function of the caller's, so that a test can write down
what the hardware does from its document. What goes on meanwhile happens as late as it may: a fetch
arrives when it is awaited, a group's product reads its factors when it is settled, a copy in bulk
arrives when somebody waits for its phase and everything else of that phase has come; local memory
that is swizzled or a ring begins as numbers nobody expects.

Neighbouring branches that wait for barrier objects are run by turns, each up to its next wait.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.expression.algebra import Index, Validity
from ugpu.compiler.expression.lookup import Lookup, atoms
from ugpu.compiler.expression.value import Load, Memory, Value, walk
from ugpu.compiler.float8 import FORMATS
from ugpu.compiler.kernel.ir import (
    Await,
    Barrier,
    Bulk,
    Close,
    Fetch,
    GroupProduct,
    If,
    Kernel,
    Loop,
    Settle,
    Signal,
    Statement,
    Store,
)
from ugpu.compiler.kernel.matrix_units import GROUP_UNITS

Array = NDArray[Any]
# (unit's name, left, right, total) to the new total; arrays are [threads, lanes]
Matrix = Callable[[str, Array, Array, Array], Array]
# as wide as the rounding of small integers needs
_TYPES = dict.fromkeys(("bfloat16", *FORMATS), np.dtype(np.float32))
_BINARY: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "shl": np.left_shift, "shr": np.right_shift, "div": np.divide,
    "round": np.rint, "neg": np.negative, "where": np.where,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _type(memory: Memory) -> Any:
    return _TYPES.get(memory.dtype.name) or np.dtype(memory.dtype.name)


def interpret(kernel: Kernel, inputs: Sequence[Array], matrix: Matrix) -> Array:
    """The flat output of a kernel for flat inputs in the order of its parameters."""
    output = np.zeros(kernel.parameters[0].count, _type(kernel.parameters[0]))
    parameters = zip(kernel.parameters[1:], inputs, strict=True)
    arrays = {kernel.parameters[0]: output, **{m: a.reshape(-1) for m, a in parameters}}
    x, y, z = kernel.grid
    whole = np.ones(kernel.block, bool)
    for first, *beside in itertools.product(range(0, x, kernel.cluster), range(y), range(z)):
        together = [
            _Group(kernel, arrays, (first + rank, *beside), matrix)
            for rank in range(kernel.cluster)
        ]
        for group in together:
            group.together = together
        with np.errstate(all="ignore"):  # threads that are off compute too
            running = [group.statements(kernel.body, whole) for group in together]
            while running:  # who waits too long says so
                running = [each for each in running if next(each, output) is not output]
    return output


@dataclass
class _Object:
    """A barrier object (PTX ISA, "mbarrier"). missing: arrivals of this phase; bytes: expected and
    not come; copies: on their way."""

    expected: int
    missing: int
    phase: int = 0
    bytes: int = 0
    copies: list[Callable[[], None]] = field(default_factory=list)

    def arrive(self, count: int) -> None:
        assert 0 < count <= self.missing, "more arrivals than expected"
        self.missing -= count
        self.end()

    def end(self) -> None:
        if not self.missing and not self.bytes:
            self.phase, self.missing = self.phase + 1, self.expected

    def is_over(self, parity: int) -> bool:
        if self.phase % 2 == parity and not self.missing:
            for arrive in self.copies:
                arrive()
            self.copies.clear()
            self.end()
        return self.phase % 2 != parity


def _waits(statement: Statement) -> bool:
    if isinstance(statement, Signal):
        return statement.operation == "wait"
    return any(_waits(each) for each in getattr(statement, "body", ()))


class _Group:
    def __init__(
        self, kernel: Kernel, arrays: Mapping[Memory, Array], group: tuple[int, ...], matrix: Matrix
    ) -> None:
        self.threads = kernel.block
        self.matrix = matrix
        self.ranges: dict[str, Any] = {f"group_{'xyz'[axis]}": group[axis] for axis in range(3)}
        self.ranges["thread"] = np.arange(kernel.block)
        self.active = np.ones(kernel.block, bool)
        self.memories = dict(arrays)
        for memory in kernel.locals:
            shape: tuple[int, ...] = (memory.count,)
            if memory.space == "register":
                shape = (memory.count, self.threads, memory.lanes)
            start = 77 if memory.dynamic else 0
            self.memories[memory] = np.full(shape, start, _type(memory))
        self.together: list[_Group] = [self]  # of a cluster
        self.met = 0  # barriers of the cluster
        self.objects: dict[tuple[Memory, int], _Object] = {}
        self.fetches: list[Callable[[], None]] = []  # begun, of no group yet
        self.groups: list[list[Callable[[], None]]] = []
        self.products: list[GroupProduct] = []
        self.at: list[dict[str, Any]] = []  # where each of them was begun

    def index(self, index: Index) -> Array:
        places = self.ranges
        looked_up = [atom for atom in atoms(index) if isinstance(atom, Lookup)]
        if looked_up:
            numbers = {a.key: self.value(a.source)[:, 0].astype(np.int64) for a in looked_up}
            places = places | {a.key: numbers[a.key].clip(0, a.high) for a in looked_up}
        return np.broadcast_to(np.asarray(index.evaluate(places)), (self.threads,))

    def holds(self, conditions: Validity) -> Array:
        held = np.ones(self.threads, bool)
        for condition in conditions:
            held = held & (self.index(condition) >= 0)
        return held

    def statements(self, body: Sequence[Statement], active: Array) -> Iterator[None]:
        """Go on until there is something to wait for; then yield, again and again."""
        for several, each in itertools.groupby(body, lambda s: isinstance(s, If) and _waits(s)):
            statements = list(each)
            if several and len(statements) > 1:
                yield from self.by_turns(statements, active)
                continue
            for statement in statements:
                yield from self.statement(statement, active)

    def by_turns(self, branches: Sequence[Statement], active: Array) -> Iterator[None]:
        running = []
        for branch in branches:
            branched = copy.copy(self)
            branched.ranges = dict(self.ranges)
            running.append(branched.statement(branch, active))
        while running:
            running = [each for each in running if next(each, self) is not self]
            yield

    def statement(self, statement: Statement, active: Array) -> Iterator[None]:
        if isinstance(statement, Signal) and statement.operation == "wait":
            (place,) = {int(i) for i in self.index(statement.index)[active]}
            (parity,) = {int(i) for i in self.index(statement.number)[active]}
            tries = 0
            while not self.objects[statement.memory, place].is_over(parity):
                tries += 1
                assert tries < 1000, "somebody waits for what never comes"
                yield
        elif isinstance(statement, Barrier) and statement.cluster:
            assert active.all()
            self.met += 1
            while min(group.met for group in self.together) < self.met:
                yield
        elif isinstance(statement, If):
            inside = active & self.holds(statement.conditions)
            if inside.any():
                yield from self.statements(statement.body, inside)
        elif isinstance(statement, Loop):
            limit = np.full(self.threads, statement.range.size)
            if statement.bound is not None:
                limit = np.minimum(limit, self.index(statement.bound))
            for number in range(limit.max()):
                self.ranges[statement.range.name] = number
                yield from self.statements(statement.body, active & (number < limit))
            self.ranges.pop(statement.range.name, None)
        elif active.any():
            self.plain(statement, active)

    def plain(self, statement: Statement, active: Array) -> None:
        if isinstance(statement, Store):
            self.store(statement, active)
        elif isinstance(statement, Signal):
            self.signal(statement, active)
        elif isinstance(statement, Bulk):
            self.bulk(statement, active)
        elif isinstance(statement, Barrier | Close | Await | GroupProduct | Settle):
            grouped = isinstance(statement, GroupProduct | Settle)
            assert active.all() or grouped
            self.meanwhile(statement)
        else:
            assert isinstance(statement, Fetch), "tiles are for the host"
            self.fetch(statement, active)

    def signal(self, signal: Signal, active: Array) -> None:
        (number,) = {int(i) for i in self.index(signal.number)[active]}
        if signal.operation == "begin":
            assert active.sum() == 1
            for place in range(signal.memory.count):
                self.objects[signal.memory, place] = _Object(number, number)
            return
        (place,) = {int(i) for i in self.index(signal.index)[active]}
        of = self
        if signal.group is not None:
            (rank,) = {int(i) for i in self.index(signal.group)[active]}
            of = self.together[rank]
        found = of.objects[signal.memory, place]
        found.bytes += number if signal.operation == "expect" else 0
        found.arrive(int(active.sum()))

    def bulk(self, bulk: Bulk, active: Array) -> None:
        assert active.sum() == 1, "one thread copies"
        start, at, place = (
            int(self.index(index)[active][0]) for index in (bulk.start, bulk.index, bulk.place)
        )
        source = self.memories[bulk.source][start : start + bulk.count]
        assert start >= 0 and len(source) == bulk.count
        for group in [self] if bulk.groups == 1 else self.together[: bulk.groups]:
            memory = group.memories[bulk.memory]
            found = group.objects[bulk.signal, place]

            def arrive(memory: Array = memory, found: _Object = found) -> None:
                memory[at : at + bulk.count] = source
                found.bytes -= bulk.count * bulk.memory.dtype.itemsize
                assert found.bytes >= 0, "more bytes than expected"

            memory[at : at + bulk.count] = 77  # what was there is gone
            found.copies.append(arrive)

    def meanwhile(self, statement: Barrier | Close | Await | GroupProduct | Settle) -> None:
        if isinstance(statement, Close):
            self.groups.append(self.fetches)
            self.fetches = []
        elif isinstance(statement, Await):
            while len(self.groups) > statement.pending:
                for arrive in self.groups.pop(0):
                    arrive()
        elif isinstance(statement, GroupProduct):
            self.products.append(statement)
            self.at.append(dict(self.ranges))
        elif isinstance(statement, Settle):
            while len(self.products) > statement.pending:
                self.group_product(self.products.pop(0), self.at.pop(0))

    def fetch(self, fetch: Fetch, active: Array) -> None:
        moved, start = self.load(fetch.source, fetch.lanes), self.index(fetch.index)
        memory = self.memories[fetch.memory]

        def arrive() -> None:
            for lane in range(fetch.lanes):
                memory[(start + lane)[active]] = moved[active, lane]

        self.fetches.append(arrive)

    def group_product(self, product: GroupProduct, at: dict[str, Any]) -> None:
        """Rows of 128 bytes are `length` elements; turned ones lie in blocks of as many steps. In a
        ring that is not swizzled they lie as PTX ISA, "Asynchronous Warpgroup Level Matrix Shared
        Memory Layout", says of no swizzling, with 128 bytes from core matrix to core matrix along
        the depth, 1024 across."""
        unit, totals = GROUP_UNITS[product.unit], self.memories[product.totals]
        length = 128 // unit.element.itemsize
        threads = np.arange(self.threads // 128 * 128)  # beyond are waves that take no part
        width = 16 // unit.element.itemsize
        for tile, *indices in product.steps:
            factors = []
            for memory, index, turned, count in zip(
                (product.left, product.right), indices, product.turned, (64, product.columns),
                strict=True,
            ):  # fmt: skip
                starts = np.broadcast_to(np.asarray(index.evaluate(at)), (self.threads,))
                starts = starts[: len(threads)].reshape(-1, 128)
                assert (starts == starts[:, :1]).all()  # the four waves name one place
                across, step = np.arange(count)[:, None], np.arange(unit.depth)[None, :]
                inside = across * length + step
                if memory.ring and turned:
                    core = across // 8 * 8 + step // 8
                    inside = core * 64 + step % 8 * 8 + across % 8
                elif memory.ring:
                    core = across // 8 * 8 + step // width
                    inside = (core * 8 + across % 8) * width + step % width
                elif turned:
                    inside = (across // length * length + step) * length + across % length
                factors.append(self.memories[memory][starts[:, :1, None] + inside])
            made = np.einsum("grk,gck->grc", *(factor.astype(np.float64) for factor in factors))
            row = threads % 128 // 32 * 16 + threads % 32 // 4
            for register in range(product.columns // 2):
                below, beside = register % 4 // 2 * 8, register // 4 * 8 + register % 2
                place = tile * product.columns // 2 + register
                columns = threads % 4 * 2 + beside
                added = made[threads // 128, row + below, columns]
                totals[place][: len(threads), 0] += added.astype(totals.dtype)

    def matrices(self, access: Load, turned: bool, lanes: int) -> Array:
        """PTX ISA, "ldmatrix" .x4: lanes 8 i to 8 i + 7 name the rows of matrix i; lane l gets of
        each the l % 4th 32 bits of row l / 4, or where it is turned, of column l / 4."""
        memory, starts = self.memories[access.memory], self.index(access.index)
        rows = memory[starts[:, None] + np.arange(lanes)].reshape(-1, 4, 8, lanes)
        width, lane = lanes // 4, np.arange(32)
        steps = lane[:, None] % 4 * width + np.arange(width)
        if turned:
            taken = rows[:, :, steps, lane[:, None] // 4]
        else:
            taken = rows[:, :, lane[:, None] // 4, steps]
        return taken.transpose(0, 2, 1, 3).reshape(self.threads, lanes)

    def store(self, statement: Store, active: Array) -> None:
        self.active = active
        values = self.value(statement.value)
        memory = self.memories[statement.memory]
        if statement.memory.space == "register":
            at = statement.index.constant
            memory[at] = np.where(active[:, None], values, memory[at])
            return
        start = self.index(statement.index)
        for lane in range(values.shape[1]):
            memory[(start + lane)[active]] = values[active, lane]

    def value(self, root: Value) -> Array:
        found: dict[int, Array] = {}
        for node in walk(root):
            found[id(node)] = self.operation(node, [found[id(s)] for s in node.sources])
        return found[id(root)]

    def operation(self, node: Value, sources: list[Array]) -> Array:
        if node.op == "load":
            return self.load(node.arg, node.lanes)
        if node.op == "matrices":
            access, turned = node.arg
            return self.matrices(access, turned, node.lanes)
        if node.op == "const":
            kind = _TYPES.get(node.dtype.name) or np.dtype(node.dtype.name)
            return np.full((self.threads, node.lanes), node.arg, kind)
        if node.op == "index":
            return self.index(node.arg)[:, None].astype(node.dtype.name)
        if node.op == "extract":
            return sources[0][:, node.arg : node.arg + 1]
        if node.op == "pack":
            return np.concatenate(sources, 1)
        if node.op == "shuffle":
            return np.concatenate(sources, 1)[:, list(node.arg)]
        if node.op == "compress":
            first = np.argsort(~sources[1], 1, kind="stable")  # lanes that are chosen come first
            taken = np.take_along_axis(np.where(sources[1], sources[0], 0), first, 1)
            return np.asarray(taken, sources[0].dtype)
        if node.op == "count":
            return np.asarray(sources[0].sum(1, keepdims=True), node.dtype.name)
        if node.op == "broadcast":
            return np.repeat(sources[0], node.lanes, 1)
        if node.op == "gate":
            return np.where(self.holds(node.arg)[:, None], sources[0], sources[1])
        if node.op == "cast":
            return sources[0].astype(_TYPES.get(node.dtype.name) or np.dtype(node.dtype.name))
        if node.op == "bitcast":
            return sources[0].view(np.dtype(node.dtype.name))
        if node.op == "fma":
            return np.asarray(sources[0] * sources[1] + sources[2])
        if node.op == "exchange":
            other = np.minimum(np.arange(self.threads) ^ node.arg, self.threads - 1)
            return np.asarray(sources[0][other])
        if node.op == "matrix":
            return self.matrix(node.arg, *sources)
        return np.asarray(_BINARY[node.op](*sources))

    def load(self, access: Load, lanes: int) -> Array:
        memory = self.memories[access.memory]
        if access.memory.space == "register":
            held: Array = memory[access.index.constant].copy()
            return held
        inside = self.holds(access.conditions)
        start = np.where(inside & self.active, self.index(access.index), 0)
        assert start.min() >= 0 and start.max() + lanes <= memory.size, (access, memory.size)
        values = memory[start[:, None] + np.arange(lanes)]
        return np.where(inside[:, None], values, memory.dtype.type(0))
