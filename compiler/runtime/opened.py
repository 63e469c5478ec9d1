"""Graphs that differ only in their Python numbers share kernels, and recipes share plans.

A number is part of the code of the kernels that use it, which makes them as fast as possible. When
a second graph of the same structure arrives with other numbers, those that differ are read from
memory from then on, and further graphs of this structure compile nothing (`x * rate` with a new
rate each time).

Numbers stay in the kernels where the compiler's decisions depend on them: in graphs that count
positions or index (masks and slices by position), in calls of nested functions, as exponents of
integers, and as padding.

An operation with a number that is new each time is planned once if its recipe reads the number from
memory (`HeldNumbers`, compiler.methods.core). Results do not depend on where a number comes from.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.plan.plan import Structure
from ugpu.compiler.runtime.memory_pool import ALIGN, MemoryPool, Part, Storage
from ugpu.hcq.work.queue import QueueKind

CELLS = 256  # numbers that may be in use at a time
TRIES = 4  # cells that are looked at
# Of narrow floats, numbers are in memory as float32 (compiler.graph.elements.number).
FORMS = {
    name: struct.Struct(f"<{form}")
    for name, form in (
        ("float32", "f"), ("float64", "d"), ("int64", "q"), ("int32", "i"),
        ("int16", "h"), ("int8", "b"), ("uint64", "Q"), ("uint32", "I"), ("uint16", "H"),
        ("uint8", "B"),
    )
}  # fmt: skip
DECIDING = frozenset(("pow",))  # of integers: the expansion depends on an operand's value
KINDS = 4096  # structures remembered; beyond this all are discarded


class Opened:
    """The structures that one device has planned, without their numbers. Not thread-safe.

    _kinds: structure without numbers -> the numbers it came with first, and the places of those
    that have differed since.
    """

    def __init__(self) -> None:
        self._kinds: dict[Structure, tuple[tuple[str, ...], set[int]]] = {}

    def open(self, key: Structure, nodes: Sequence[Node], pool: MemoryPool) -> list[Node]:
        """Read the numbers in which a new graph differs from others of its structure from memory.
        Return the nodes that the graph has more by this, if any. key, nodes: of
        schedule.plan.structure."""
        places = _places(key, nodes)
        if not places:
            return []
        numbers = tuple([key[place][3] for place in places])
        kind = list(key)
        for place in places:
            kind[place] = ("number", *key[place][1:3])
        if len(self._kinds) >= KINDS:
            self._kinds.clear()
        first, differing = self._kinds.setdefault(tuple(kind), (numbers, set()))
        differing.update(
            place
            for place, number, before in zip(places, numbers, first, strict=True)
            if number != before
        )
        return [node for place in differing for node in _read_from_memory(nodes[place], pool)]


class HeldNumbers:
    """Memory for numbers that recipes read. Thread-safe.

    Where the host cannot write a device's memory, each number has new memory, which the device
    fills. Else they are in cells. A cell is written again once no node refers to it and the device
    has passed what read it: it is idle, or its timeline has reached what was submitted when the
    cell was last seen unused, half a round before.
    """

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._lock = threading.RLock()  # the collector may run code that computes
        self._cells: list[tuple[Part, memoryview]] = []
        self._passed: dict[int, int] = {}  # by cell: the timeline's value after its last reader
        self._next = 0
        self._writable = True

    def node(self, dtype: DType, number: int | float) -> Node | None:
        """Return a node whose element is the number. None if the device's memory cannot be written
        now, or the type cannot hold the number."""
        form = FORMS.get(dtype.name)
        core = self._pool.core
        if form is None or core.capturing is not None:
            return None
        node = Node("buffer", dtype, ())
        try:
            with self._lock:
                cell = self._free() if self._writable else None
                if cell is not None:
                    node.storage, view = cell
                    form.pack_into(view, 0, number)
            if not self._writable:
                packed = form.pack(number).ljust(4, b"\0")
                node.storage = _filled(self._pool, memoryview(packed).cast("I").tolist())
        except (OverflowError, struct.error):
            return None
        return None if node.storage is None else node

    def _free(self) -> tuple[Part, memoryview] | None:
        """Return a cell that nothing reads."""
        if not self._cells and not self._allocate():
            return None
        for _ in range(TRIES):
            place = self._next = (self._next + 1) % CELLS
            cell = self._cells[place]
            if _references(cell) == _UNUSED and (self._pool.core.quiet() or self._read(place)):
                self._passed.pop(place, None)
                return cell
        return None

    def _read(self, place: int) -> bool:
        """Return whether the device has passed what read an unused cell, while it is at work; note
        how far it has to come for the cell that is looked at half a round later."""
        timeline = self._pool.core.driver.hardware_queues(QueueKind.COMPUTE)[0].timeline
        later = (place + CELLS // 2) % CELLS
        if _references(self._cells[later]) == _UNUSED:
            self._passed[later] = timeline.last
        passed = self._passed.get(place)
        return passed is not None and timeline.value >= passed

    def _allocate(self) -> bool:
        """Make the cells; return whether the host can write them."""
        pool = self._pool
        if not pool.core.driver.reads_host_memory:
            self._writable = False
            return False
        whole = pool.fresh(CELLS * ALIGN)
        view = pool.core.driver.memory_view(whole.buffer)
        if view is None:
            self._writable = False
            return False
        self._passed = dict.fromkeys(range(CELLS), 0)
        self._cells = [
            (Part(whole, start, ALIGN), view[start : start + ALIGN])
            for start in range(0, CELLS * ALIGN, ALIGN)
        ]
        return True


def _references(cell: tuple[object, object]) -> int:
    return sys.getrefcount(cell[0])


_UNUSED = _references((object(), None))


def _places(key: Structure, nodes: Sequence[Node]) -> list[int]:
    """Return the places of numbers that may come from memory."""
    roots = key[-1]
    found = []
    for place, node in enumerate(nodes):
        if node.storage is not None:
            continue
        if graph.KINDS[node.op].positional:
            return []
        if node.op == "const" and node.dtype is not bool_ and node.size and place not in roots:
            found.append(place)
    if found:
        deciding = {
            id(each)
            for node in nodes
            if node.op in DECIDING and not node.dtype.is_float
            for each in _behind(node)
        }
        found = [place for place in found if id(nodes[place]) not in deciding]
    return found


def _behind(node: Node) -> list[Node]:
    """Return the sources of a node, with casts and movement skipped."""
    behind = []
    for source in node.sources:
        while source.op in graph.MOVEMENT or source.op == "cast":
            source = source.sources[0]
        behind.append(source)
    return behind


def _read_from_memory(node: Node, pool: MemoryPool) -> list[Node]:
    """Turn a number's node into one that repeats an element of memory; return the nodes below."""
    kind = dtypes.wide(node.dtype) if node.dtype.is_float else node.dtype
    words = _words(node.arg, kind)
    core = pool.core
    if core.driver.reads_host_memory and core.idle and core.capturing is None:
        storage = pool.take(words.nbytes)
        core.copies.upload(storage.buffer, words.data.cast("B"))
    else:
        storage = _filled(pool, words.tolist())
    held = Node("buffer", kind, ())
    held.storage = storage
    below = [held]
    if kind is not node.dtype:
        below.append(graph.number(held, node.dtype))
    if node.size != 1 and node.shape:
        below.append(graph.reshape(below[-1], (1,) * len(node.shape)))
    node.sources, node.arg = (below[-1],), None
    node.op = "reshape" if node.size == 1 else "expand"
    return below


def _filled(pool: MemoryPool, words: Sequence[int]) -> Storage:
    """Return new memory that a device fills with words of 32 bits, without waiting for work before
    it."""
    storage = pool.take(4 * len(words))
    queue = pool.device.queue()
    for place, word in enumerate(words):
        queue.fill(storage.buffer[4 * place : 4 * place + 4], word)
    queue.submit()
    return storage


def _words(number: int | float, dtype: DType) -> NDArray[np.uint32]:
    """Return a number as its device stores it, repeated to whole words of 32 bits."""
    stored = dtypes.encode(np.array([number]), dtype)
    return np.tile(stored, max(1, 4 // stored.itemsize)).view(np.uint32)
