"""Methods that make the same operations for all arrays of one type and shape: built once, repeated.

A Recipe is a list of operations on stored arrays, its sources. Repeating a recipe takes a fraction
of the Python time of building the graph, and the runtime finds the plan of a node made by a recipe
without looking at the graph.

A chain is a recipe for operands that recipes made and that are not stored yet, `(x + 1).sum()`. Its
sources are the stored arrays below, so that a run of it reads those; its operands stay what they
are: if one of them is stored by then, or has to be, the graph is built as without recipes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ugpu.compiler.graph.node import Made, Node, Recipe, Repeated

LONG = 1 << 20  # elements of a source that make waking a device's thread early worthwhile

MOST = 48  # operations of a recipe
DEEPEST = 16  # results of recipes in one chain


# How a method's operands are made: a key, equal for operands of the same structure; the operands,
# each once; the stored nodes that they are computed from; and between these, the nodes that are not
# stored, sources first.
Sources = tuple[tuple[object, ...], tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]]


def sources_of(operands: tuple[Node, ...]) -> Sources | None:
    """Return how operands are made; None if neither a recipe nor a chain can use them."""
    if len(operands) == 1:
        (node,) = operands
        if node.storage is not None:
            return (node.dtype.name, node.shape), operands, operands, ()
        recipe = node.recipe
        if recipe is None or not isinstance(node, Repeated) or not node.given:
            return None
        if recipe.moves:
            return ((recipe,), node.given, node.given, ()) if _passes_on(node) else None
        if not recipe.repeats or len(node.inner) >= DEEPEST:
            return None
        return (recipe,), operands, node.given, (*node.inner, node)
    for node in operands:
        if node.storage is None:
            return _chain(operands)
    if len(operands) == 2:
        one, two = operands
        given = operands[:1] if one is two else operands
        return (one.dtype.name, one.shape, two.dtype.name, two.shape, len(given)), given, given, ()
    return _chain(operands)


def _chain(operands: tuple[Node, ...]) -> Sources | None:
    """Return the sources of a chain; None if not all operands are stored or made by recipes that
    were repeated, or if there are too many."""
    key: list[object] = []
    direct: dict[Node, None] = {}
    given: dict[Node, int] = {}
    inner: dict[Node, int] = {}
    for operand in operands:
        recipe = operand.recipe
        if operand.storage is not None:
            key += (operand.dtype.name, operand.shape)
            below: tuple[Node, ...] = (operand,)
            direct[operand] = None
        elif recipe is None or not isinstance(operand, Repeated) or not operand.given:
            return None  # or its graph has been built
        else:
            key.append(recipe)
            below = operand.given
            if recipe.moves and _passes_on(operand):
                direct.update(dict.fromkeys(below))
            elif recipe.repeats:
                direct[operand] = None
                for node in (*operand.inner, operand):
                    key.append(inner.setdefault(node, len(inner)))
            else:
                return None
        for node in below:
            key.append(given.setdefault(node, len(given)))
    if len(inner) > DEEPEST:
        return None
    return tuple(key), tuple(direct), tuple(given), tuple(inner)


def _passes_on(moved: Repeated) -> bool:
    """Return whether a result of movements may be read as if its source were the operand. It may
    not if gradients end at it, begin at it, or follow a rule of its own."""
    if moved.history is not None:
        return False
    return moved.tracked == any(source.tracked for source in moved.given)


def chained(last: Recipe, given: Sequence[Node], result: Node) -> Recipe | None:
    """Return the recipe of a chain that ends with the operations of `last`, as `recipe_of` does."""
    whole = recipe_of(given, result)
    return None if whole is None else Recipe(len(given), whole.made, False, last.made)


def references(nodes: Sequence[Node]) -> list[int]:
    """Return how many references each of the nodes has besides the one of `nodes`."""
    return [count - _ALONE for count in map(sys.getrefcount, nodes)]


def own_references(root: Node) -> list[int] | None:
    """Return the `references` that the inner nodes of a chain have if only the chain refers to
    them; None if the graph of one has been built."""
    inner = root.inner if isinstance(root, Repeated) else ()
    held: dict[int, int] = dict.fromkeys(map(id, inner), 0)
    for holder in (root, *inner):
        if not isinstance(holder, Repeated) or not holder.operands:
            return None
        for node in (*holder.operands, *(holder.inner if holder is not root else ())):
            if id(node) in held:
                held[id(node)] += 1
    return list(held.values())


_ALONE = next(map(sys.getrefcount, (object(),)))  # the interpreter's own included


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
