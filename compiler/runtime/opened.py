"""Graphs that differ only in their Python numbers share kernels.

A number is part of the code of the kernels that use it, which makes them as fast as possible. When
a second graph of the same structure arrives with other numbers, those that differ are read from
memory from then on, and further graphs of this structure compile nothing (`x * rate` with a new
rate each time).

Numbers stay in the kernels where the compiler's decisions depend on them: in graphs that count
positions or index (masks and slices by position), in calls of nested functions, as exponents, and
as padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.plan.plan import Structure
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage

DECIDING = frozenset(("pow",))  # operations whose expansion depends on an operand's value
KINDS = 4096  # structures remembered; beyond this all are discarded


class Opened:
    """The structures that one device has planned, without their numbers. Not thread-safe.

    _kinds: structure without numbers -> the numbers it came with first, and the places of those
    that have differed since.
    """

    def __init__(self) -> None:
        self._kinds: dict[Structure, tuple[tuple[str, ...], set[int]]] = {}

    def open(self, key: Structure, nodes: Sequence[Node], pool: MemoryPool) -> bool:
        """Read the numbers in which a new graph differs from others of its structure from memory.
        Return whether the graph has changed. key, nodes: of schedule.plan.structure."""
        places = _places(key, nodes)
        if not places:
            return False
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
        for place in differing:
            _read_from_memory(nodes[place], pool)
        return bool(differing)


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
        deciding = {id(each) for node in nodes if node.op in DECIDING for each in _behind(node)}
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


def _read_from_memory(node: Node, pool: MemoryPool) -> None:
    """Turn a number's node into one that repeats an element of memory."""
    words = _words(node)
    storage: Storage = pool.take(words.nbytes)
    core = pool.core
    if core.driver.reads_host_memory and core.idle and core.capturing is None:
        core.copies.upload(storage.buffer, words.data.cast("B"))
    else:  # without waiting for work before it
        queue = pool.device.queue()
        for place, word in enumerate(words.tolist()):
            queue.fill(storage.buffer[4 * place : 4 * place + 4], word)
        queue.submit()
    held = Node("buffer", node.dtype, ())
    held.storage = storage
    ones = (1,) * len(node.shape)
    if node.size == 1:
        node.sources, node.op, node.arg = (held,), "reshape", None
    else:
        node.sources, node.op, node.arg = (graph.reshape(held, ones),), "expand", None


def _words(node: Node) -> NDArray[np.uint32]:
    """Return a number as its device stores it, repeated to whole words of 32 bits."""
    stored = dtypes.encode(np.array([node.arg]), node.dtype)
    return np.tile(stored, max(1, 4 // stored.itemsize)).view(np.uint32)
