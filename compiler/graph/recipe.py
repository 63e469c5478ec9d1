"""Methods that make the same operations of every array of a type and shape: built once, repeated.

A Recipe is a chain of operations, each on the result of the one before, the first on an array that
is stored. Repeating it takes a fraction of the Python that finding it out takes, and the runtime
finds the plan of a node made by a recipe without a look at the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.dtype import DType
from compiler.graph.node import Node, Repeated, Shape

if TYPE_CHECKING:
    from compiler.script import Script

LONG = 1 << 20  # elements: a run over so many is worth waking a device's thread ahead of time

Made = tuple[str, DType, Shape, Any]  # a node but for its source


class Recipe:
    """A chain of operations; compared and hashed by identity. long: running it takes a while."""

    __slots__ = ("dtype", "long", "made", "script", "shape")

    def __init__(self, made: tuple[Made, ...], long: bool) -> None:
        self.made = made
        self.long = long
        _, self.dtype, self.shape, _ = made[-1]
        self.script: Script | None = None  # the runtime's, of the device that ran it last

    @property
    def length(self) -> int:
        """How many of the operations there are up to the one that is stored."""
        places = [place for place, (op, *_) in enumerate(self.made, 1) if op != "reshape"]
        return max(places, default=0)

    def apply(self, source: Node) -> Node:
        """A new node for the last of the operations; those before are made when they are asked
        for."""
        return Repeated(self, source, self.dtype, self.shape)


def recipe_of(source: Node, result: Node) -> Recipe | None:
    """How the result was made of the source, where that is a chain."""
    made: list[Made] = []
    node = result
    while node is not source:
        if len(node.sources) != 1 or node.storage is not None:
            return None
        made.append((node.op, node.dtype, node.shape, node.arg))
        node = node.sources[0]
    return Recipe(tuple(reversed(made)), source.size >= LONG) if made else None
