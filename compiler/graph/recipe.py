"""Methods that make the same operations for all arrays of one type and shape: built once, repeated.

A Recipe is a list of operations on stored arrays, its sources. Repeating a recipe takes a fraction
of the Python time of building the graph, and the runtime finds the plan of a node made by a recipe
without looking at the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler.graph.node import Made, Node, Recipe

LONG = 1 << 20  # elements of a source that make waking a device's thread early worthwhile

MOST = 48  # operations of a recipe


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
