"""Pieces of a cat that differ in lengths and places, with one code: tables hold the differences.

before: computations that do the same over their own numbers of rows and columns, and read and write
at places that differ by constants and by multiples of the row.
after: a Family, whose sizes, multiples and places a group looks up by the number of its piece. A
table is a selection by bisection among constants (no memory is read), uniform over a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from ugpu.compiler.dtype import int32, int64
from ugpu.compiler.expression.algebra import (
    Index,
    Opaque,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
)
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.lookup import atoms, lookup
from ugpu.compiler.expression.table import table
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    gate,
    indices_of,
    load,
    rebuild,
    value,
    walk,
)
from ugpu.compiler.kernel.ir import Loop, Statement, guarded
from ugpu.compiler.kernel.shared.spread import spread, store, vector_width
from ugpu.hcq.state.target import TargetSpec

ROW, COLUMN = Range("row", 1 << 40), Range("column", 1 << 40)
HOST_ELEMENTS = 16384  # elements of a piece for one group
THREAD_VECTORS = 8  # vectors of a piece for one thread
THREADS = 256
NARROW = 1 << 31


@dataclass(frozen=True)
class Piece:
    """A computation over (row, column). form: the part that pieces with one code share; indices:
    the part that may differ, in the order of `indices_of`; memories: those it reads, in order of
    use."""

    computation: Computation
    rows: int
    columns: int
    form: Value
    indices: tuple[Index, ...]
    memories: tuple[Memory, ...]


def piece_of(computation: Computation) -> Piece | None:
    """Return the piece; None if the computation has more ranges, or indices from memory."""
    ranges = computation.ranges
    if len(ranges) > 2:
        return None
    names = dict(zip(reversed(ranges), (COLUMN.index(), ROW.index()), strict=False))
    rows, columns = [1, 1, *(r.size for r in ranges)][-2:]
    given = [computation.position, *indices_of(computation.value)]
    indices = [index.rebuild(lambda r: names[r]) for index in given]
    if not all(is_plain(index) for index in indices):
        return None
    memories: dict[Memory, Memory] = {}
    for node in walk(computation.value):
        if node.op == "load":
            memory = node.arg.memory
            memories.setdefault(memory, replace(memory, name=f"piece{len(memories)}", count=1))
    places: Iterator[Index] = iter(constant(number) for number in range(len(indices)))
    form = _rebuilt(computation.value, places, memories)
    return Piece(computation, rows, columns, form, tuple(indices), tuple(memories))


def families(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Group pieces that share code: of one form and, if they have rows, of similar column count."""
    found: dict[object, list[Piece]] = {}
    for piece in pieces:
        wide = piece.columns.bit_length() // 2 if piece.rows > 1 else None
        key = (id(piece.form), wide, tuple([_alike(index) for index in piece.indices]))
        found.setdefault(key, []).append(piece)
    return list(found.values())


@dataclass(frozen=True)
class _Parts:
    """The first group of each piece but the first, and the number of a group."""

    starts: Sequence[int]
    group: Index

    def table(self, entries: Sequence[int]) -> Index:
        """Return the entry of the group's piece."""
        return table(entries, self.starts, self.group)


class Family:
    """Pieces with one code. groups: the number of groups they take; block: threads of each."""

    def __init__(self, pieces: Sequence[Piece], target: TargetSpec) -> None:
        self.pieces = pieces
        self.host = target.abi == "host"
        self.width = 1 if self.host else self._width(target)
        most = max(piece.columns for piece in pieces) // self.width
        self.block = 1 if self.host else min(THREADS, target.max_threads_per_group)
        if self.host:
            across, self.across_steps = 1, min(most, HOST_ELEMENTS)
            self.down_steps = max(1, HOST_ELEMENTS // self.across_steps)
        else:
            across = min(self.block, 1 << (most - 1).bit_length())
            self.across_steps = min(THREAD_VECTORS, -(-most // across))
            self.down_steps = THREAD_VECTORS // self.across_steps
        self.across, self.down = across, self.block // across
        self.rows = self.down * self.down_steps
        self.columns = across * self.across_steps
        flat = all(piece.rows == 1 for piece in pieces)
        if flat:
            self.rows, self.down_steps = 1, 1
        self.strips = 0 if flat else -(-most // self.columns)  # groups side by side
        self.counts = [self._groups(piece) for piece in pieces]
        self.groups = sum(self.counts)

    def _groups(self, piece: Piece) -> int:
        if not self.strips:
            return -(-piece.columns // self.width // self.columns)
        return -(-piece.rows // self.rows) * self.strips

    def _width(self, target: TargetSpec) -> int:
        """Return how many elements a thread may move at once; all places are multiples of it."""
        computation = self.pieces[0].computation
        dtypes = [computation.output.dtype, *(m.dtype for m in self.pieces[0].memories)]
        found = vector_width(dtypes, target.vector_bytes)
        for piece in self.pieces:
            found = gcd(found, piece.columns)
            for index in piece.indices:
                found = gcd(found, index.coefficient(ROW), index.constant)
        return found if _alike(self.pieces[0].indices[0]) == COLUMN.index() else 1

    def body(self, group: Index, thread: Index) -> tuple[Statement, ...]:
        """Return the statements of the groups; `group` numbers these groups."""
        starts = [sum(self.counts[:number]) for number in range(len(self.counts))]
        parts = _Parts(starts[1:], group)
        part = group - parts.table(starts)
        if self.strips:
            band, strip = part // self.strips, part % self.strips
        else:
            band, strip = constant(0), part
        down = Range("row_step", self.down_steps)
        over = Range("column_step", self.across_steps)
        row = band * self.rows + down.index() * self.down + thread // self.across
        column = strip * self.columns + over.index() * self.across + thread % self.across
        rows = parts.table([piece.rows for piece in self.pieces])
        columns = parts.table([piece.columns // self.width for piece in self.pieces])
        body: tuple[Statement, ...] = (self._store(parts, row, column * self.width),)
        if not self.host:
            inside = both(at_least_zero(rows - 1 - row), at_least_zero(columns - 1 - column))
            return (Loop(down, (Loop(over, guarded(inside, *body)),)),)
        inner = Loop(over, body, columns - strip * self.columns)
        return (Loop(down, (inner,), rows - band * self.rows),)

    def _store(self, parts: _Parts, row: Index, column: Index) -> Statement:
        first = self.pieces[0]
        columns = Range("column", max(piece.columns for piece in self.pieces))
        indices = [
            self._index(parts, row, columns, [piece.indices[number] for piece in self.pieces])
            for number in range(len(first.indices))
        ]
        which = parts.table(range(len(self.pieces)))
        chosen = {
            memories[0]: among(memories, which)
            for memories in zip(*(piece.memories for piece in self.pieces), strict=True)
        }
        root = _rebuilt(first.computation.value, iter(indices[1:]), chosen)
        position = indices[0].substitute({columns: column})
        return store(first.computation.output, position, spread(root, columns, column, self.width))

    def _index(self, parts: _Parts, row: Index, columns: Range, of: Sequence[Index]) -> Index:
        """Return an index for all pieces: the differences are looked up."""
        factors = [index.coefficient(ROW) for index in of]
        result = _alike(of[0]).substitute({ROW: row, COLUMN: columns.index()})
        least = min(factors)
        result = result + row * least
        if len(set(factors)) > 1:
            common = gcd(*(factor - least for factor in factors))
            scaled = [(factor - least) // common for factor in factors]
            most = max(f * piece.rows for f, piece in zip(scaled, self.pieces, strict=True))
            dtype = int32 if max(most, row.high * max(scaled)) < NARROW else int64
            sides = (row, parts.table(scaled))
            product = binary("mul", *[value("index", dtype, (), side) for side in sides])
            result = result + lookup(product, most + 1) * common
        return result + parts.table([index.constant for index in of])


def among(memories: Sequence[Memory], which: Index) -> Memory:
    """Return the memory that a group chooses by the number `which`."""
    if len(set(memories)) == 1:
        return memories[0]
    names = "_".join(memory.name for memory in memories)
    most = max(memory.count for memory in memories)
    name = f"{names}_by_{which}"
    return replace(memories[0], name=name, count=most, among=tuple(memories), which=which)


# ---- the indices of a value --------------------------------------------------------------------


def is_plain(index: Index) -> bool:
    """Return whether no part of the index comes from memory."""
    return not any(isinstance(atom, Opaque) for atom in atoms(index))


def _alike(index: Index) -> Index:
    """Return the index parts that must be equal in pieces of a family."""
    return index - ROW.index() * index.coefficient(ROW) - index.constant


def _rebuilt(root: Value, indices: Iterator[Index], memories: Mapping[Memory, Memory]) -> Value:
    """Return the same value with other indices, in the order of `indices_of`, and other
    memories."""

    def taken(conditions: Validity) -> Validity:
        return tuple([next(indices) for _ in conditions])

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "index":
            return value("index", node.dtype, (), next(indices))
        if node.op == "load":
            index = next(indices)
            memory = memories.get(node.arg.memory, node.arg.memory)
            return load(memory, index, taken(node.arg.conditions), node.lanes)
        if node.op == "gate":
            return gate(taken(node.arg), *sources)
        return None

    return rebuild(root, change)
