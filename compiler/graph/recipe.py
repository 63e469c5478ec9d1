"""Methods that make the same operations of every array of a type and shape: built once, repeated.

A Recipe is a list of operations on arrays that are stored, its sources. Repeating it takes a
fraction of the Python that finding it out takes, and the runtime finds the plan of a node made by a
recipe without looking at the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from compiler.dtype import DType
from compiler.graph.node import MOVEMENT, Node, Repeated, Shape

if TYPE_CHECKING:
    from hcq.device import Device

LONG = 1 << 20  # elements: a run over so many is worth waking a device's thread ahead of time

MOST = 48  # operations of a recipe

# A node with its sources by number: first those of the recipe, then what it made before.
Made = tuple[str, DType, Shape, Any, tuple[int, ...]]


class Repetition(Protocol):
    """A recipe prepared for one device (compiler.runtime.script)."""

    def run(self, root: Node, device: Device) -> bool:
        """Compute a node that the recipe made. Return False if the runtime must plan it."""


class Recipe:
    """Operations on `sources` arrays; compared and hashed by identity. long: running it takes a
    while. moves: it computes nothing, so that each reader may do it again."""

    __slots__ = ("dtype", "long", "made", "moves", "script", "shape", "sources")

    def __init__(self, sources: int, made: tuple[Made, ...], long: bool) -> None:
        self.sources = sources
        self.made = made
        self.long = long
        self.moves = all(op in MOVEMENT for op, *_ in made)
        _, self.dtype, self.shape, *_ = made[-1]
        self.script: Repetition | None = None  # the runtime's, of the device that ran it last

    @property
    def length(self) -> int:
        """Return the number of operations up to the one that is stored."""
        count = len(self.made)
        while count and self.made[count - 1][0] == "reshape":
            count -= 1
        return count

    def apply(self, *sources: Node) -> Node:
        """A new node for the last of the operations; those before are made when they are asked
        for."""
        return Repeated(self, sources, self.dtype, self.shape)


def recipe_of(sources: Sequence[Node], result: Node) -> Recipe | None:
    """Return the recipe by which the result was made from the sources; None where it does not need
    each of them, needs other stored values, or takes too many operations."""
    places = {id(source): number for number, source in enumerate(sources)}
    if id(result) in places or len(places) < len(sources):
        return None
    made: list[Made] = []
    used: set[int] = set()
    stack = [result]
    while stack:
        node = stack[-1]
        if id(node) in places:
            stack.pop()
            continue
        if node.storage is not None or len(places) > MOST + len(sources):
            return None
        missing = [source for source in node.sources if id(source) not in places]
        if missing:
            stack.append(missing[0])
            continue
        found = tuple([places[id(source)] for source in node.sources])
        used.update(found)
        made.append((node.op, node.dtype, node.shape, node.arg, found))
        places[id(node)] = len(sources) + len(made) - 1
        stack.pop()
    if not used.issuperset(range(len(sources))):
        return None
    return Recipe(len(sources), tuple(made), max(each.size for each in sources) >= LONG)
