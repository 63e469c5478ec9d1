"""Methods that make the same operations for all arrays of one type and shape: built once, repeated.

A Recipe is a list of operations on stored arrays, its sources. Repeating a recipe takes a fraction
of the Python time of building the graph, and the runtime finds the plan of a node made by a recipe
without looking at the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ugpu.compiler.dtype import DType
from ugpu.compiler.graph.node import MOVEMENT, Node, Repeated, Shape

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device

LONG = 1 << 20  # elements of a source that make waking a device's thread early worthwhile

MOST = 48  # operations of a recipe

# A node with numbered sources: first those of the recipe, then the nodes made before it.
Made = tuple[str, DType, Shape, Any, tuple[int, ...]]


class Repetition(Protocol):
    """A recipe prepared for one device (compiler.runtime.script)."""

    def run(self, root: Node, device: Device) -> bool:
        """Compute a node that the recipe made. Return False if the runtime must plan the node."""


class Recipe:
    """Operations on `sources` arrays; compared and hashed by identity. long: running it takes a
    while. moves: it computes nothing, so each reader may repeat it."""

    __slots__ = ("dtype", "long", "made", "moves", "script", "shape", "sources")

    def __init__(self, sources: int, made: tuple[Made, ...], long: bool) -> None:
        self.sources = sources
        self.made = made
        self.long = long
        self.moves = all(op in MOVEMENT for op, *_ in made)
        _, self.dtype, self.shape, *_ = made[-1]
        self.script: Repetition | None = None  # set by the runtime, for the last device that ran it

    @property
    def length(self) -> int:
        """Return the number of operations up to the one that is stored."""
        count = len(self.made)
        while count and self.made[count - 1][0] == "reshape":
            count -= 1
        return count

    def apply(self, *sources: Node) -> Node:
        """Return a new node for the last operation; the nodes before it are made when they are
        read."""
        return Repeated(self, sources, self.dtype, self.shape)


def recipe_of(sources: Sequence[Node], result: Node) -> Recipe | None:
    """Return the recipe that made the result from the sources, or None if it does not use each of
    them, needs other stored values, or has too many operations."""
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
