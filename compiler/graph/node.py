"""The tensor graph: the nodes behind lazy Tensors.

A Node is an operation on whole arrays. Its shape and type are known when it is made. Its elements
are computed when it is realized (compiler.runtime); `storage` then holds the result, and `sources`
are dropped. Nodes do not change otherwise, and may be shared.

op              sources  arg
"buffer"        -        -                               data in storage from the start
"const"         -        the number                      one number everywhere
"iota"          -        -                               0, 1, 2 ... along the only axis
element-wise    1..3     -                               see ops.py; all of one shape
"cast"          1        -                               conversion to the node's type
"bitcast"       1        -                               the same bits as another type
"reshape"       1        -                               the same elements in row-major order
"permute"       1        axes                            result axis i is source axis axes[i]
"expand"        1        -                               axes of size 1 repeated
"pad"           1        ((before, after) ..., number)   surrounded by a number
"shrink"        1        ((start, stop) ...)             a box of the source
"flip"          1        axes                            reversed along the axes
"stride"        1        steps                           every step-th element, from the first
"cat"           1..n     axis                            one after the other
"gather"        1 + n    (axes, checked)                 elements at indices along n axes, see below
"assign"        2 or 3   a Region of graph.region        the first, its region set to the second
                                                         where the third (bools), if any, is true
"scatter"       2 + n    a Scatter of graph.region       the first, with the second's elements at
                                                         the indices, see there
"reduce"        1        (operation, axes)               the axes keep size 1
"scan"          1 or 2   (operation, axis)               the reduction of elements up to each one,
                                                         joined to the second source (size 1 there)
"sort"          1        (bits, axis)                    the lower halves of uint64, in order of
                                                         their bits from 32 up
"contiguous"    1        -                               must be stored
"call"          0..n     a Call of graph.call            a nested function with these arguments
"result"        1        its number                      one result of a call

The indices of a gather (sources 1 to n) have one common shape, whose axes come first in the result;
the axes that are not indexed follow. Negative indices count from the end. An index outside its axis
reads zero. `checked`: all indices are known to be in range.

A scan may have a narrower type than its source; each total is rounded to it. A sort goes along the
last axis. The lower halves must rise along that axis, so that the sort is stable. A sort of long
rows gives uint64 with an extra axis of size 2 before the last: the first of the two is sorted, the
other undefined. Only hosts lower scans and sorts; on other devices tensors use other operations.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ugpu.compiler.dtype import DType, int64, uint32
from ugpu.compiler.graph.origin import Origin
from ugpu.compiler.graph.tracking import FREED, History, mode

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device

Shape = tuple[int, ...]


class Node:
    """One operation of the tensor graph; see the module docstring for `arg`."""

    __slots__ = (
        "__weakref__", "arg", "dtype", "history", "made", "op", "origin", "recipe", "recipes",
        "shape", "sources", "storage", "tracked",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        dtype: DType,
        shape: Shape,
        sources: tuple[Node, ...] = (),
        arg: Any = None,  # depends on op: see the module docstring
    ) -> None:
        self.op = op
        self.dtype = dtype
        self.shape = shape
        self.sources = sources
        self.arg = arg
        self.storage: object | None = None  # set by compiler.runtime once computed
        self.origin: Origin | None = None  # the line that built it, if it became a Tensor
        self.made = _period  # see new_period
        self.recipe: Recipe | None = None  # the recipe that made it, if any
        self.recipes: dict[object, Recipe] | None = None  # recipes from this node, while stored
        self.history: History | None = None  # what gradients see instead; see graph.tracking
        self.tracked = False
        for source in sources:
            if source.tracked:  # rare: most programs need no gradients
                self.tracked = mode.on and dtype.kind == "f"
                break

    @property
    def size(self) -> int:
        return prod(self.shape)

    def settle(self, storage: object) -> None:
        """Take the computed data and drop the operation and its sources; a tracked node remembers
        them."""
        if self.tracked:
            self.remember()
        self.storage = storage
        self.op, self.sources, self.arg = "buffer", (), None

    def remember(self) -> None:
        """Keep the operation and its sources for gradients."""
        if self.history is None and self.sources:
            self.history = History(self.op, self.sources, self.arg)

    def forget(self) -> None:
        """End the graph of gradients at this node, which is computed."""
        self.tracked, self.history = False, None

    def take_over(self, leaf: Node) -> None:
        """Become the leaf that another node is, if it is one."""
        if leaf.history is not None and not leaf.history.sources and leaf.history is not FREED:
            self.tracked, self.history = True, leaf.history

    def become_result(self, call: Node, number: int) -> None:
        """Become a result of a call that computes the same value."""
        if self.tracked:
            self.remember()
        self.op, self.sources, self.arg = "result", (call,), number

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype.name}{list(self.shape)}>"


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


class Repeated(Node):
    """Result of a recipe for the `given` nodes, which are stored. This node stands for the whole
    graph of the recipe until its operation is read."""

    __slots__ = ("given",)

    given: tuple[Node, ...]  # empty once the graph or the result exists

    def __init__(self, recipe: Recipe, given: tuple[Node, ...], dtype: DType, shape: Shape) -> None:
        # op, sources and arg stay unset: see __getattr__
        self.dtype = dtype
        self.shape = shape
        self.given = given
        self.recipe = recipe
        self.storage = self.origin = self.recipes = self.history = None
        self.made = _period
        self.tracked = False
        for source in given:
            if source.tracked:
                self.tracked = mode.on and dtype.kind == "f"

    def __getattr__(self, name: str) -> Any:  # one of three types
        """Build the recipe's graph when an unset attribute is read."""
        recipe, given = self.recipe, self.given
        if name not in ("op", "sources", "arg") or recipe is None:
            raise AttributeError(name)
        if given:
            nodes = list(given)
            for op, dtype, shape, arg, places in recipe.made[:-1]:
                node = Node(op, dtype, shape, tuple([nodes[place] for place in places]), arg)
                node.made = self.made
                if self.tracked and dtype.kind == "f":  # also if tracking is off by now
                    node.tracked = any(source.tracked for source in node.sources)
                else:
                    node.tracked = False
                nodes.append(node)
            self.op, _, _, self.arg, places = recipe.made[-1]
            self.sources, self.given = tuple([nodes[place] for place in places]), ()
        # RACE: another thread may have settled it meanwhile; settling writes `storage` first.
        if self.storage is not None:
            self.settle(self.storage)
        return object.__getattribute__(self, name)

    def settle(self, storage: object) -> None:
        if self.tracked and self.history is None and self.storage is None:
            self.history = History(self.op, self.sources, self.arg)
        self.storage = storage
        self.op, self.sources, self.arg, self.given = "buffer", (), None, ()


_period = 0
_period_lock = threading.Lock()


def new_period() -> int:
    """Start a period and return its number: nodes made from now on have `made` >= it, earlier
    nodes a smaller one."""
    global _period
    with _period_lock:
        _period += 1
        return _period


def stored_as(root: Node) -> Node:
    """Return the node to store for `root`: the same elements in row-major order, not reshaped."""
    while root.op == "reshape":
        root = root.sources[0]
    return root


MOVEMENT = frozenset(("reshape", "permute", "expand", "pad", "shrink", "flip", "stride"))
WRITES = frozenset(("assign", "scatter"))  # the first source, with some elements replaced
HELD = 4096  # elements of the longest row that a kernel sorts in its own memory
ALONE = frozenset(("scan", "sort"))  # always stored; the kernel starts with this operation
ONE_TO_ONE = frozenset(("reshape", "permute", "flip"))  # each source element is used exactly once


def detached(source: Node) -> Node:
    """Return a node with the same elements, through which no gradient flows."""
    made = Node("reshape", source.dtype, source.shape, (source,))
    made.tracked = False
    return made


def _merges(source: Node) -> bool:
    """Return whether a movement of a movement may skip the node between: not if gradients see that
    one as something else, or end there."""
    return source.history is None and source.tracked is source.sources[0].tracked


def full(number: bool | int | float, dtype: DType, shape: Shape) -> Node:
    return Node("const", dtype, shape, (), number)


def iota(count: int) -> Node:
    return Node("iota", int64, (count,))


def elementwise(op: str, dtype: DType, *sources: Node) -> Node:
    return Node(op, dtype, sources[0].shape, sources)


def cast(source: Node, dtype: DType) -> Node:
    """Convert the node to another type."""
    if source.dtype is dtype:
        return source
    if (
        source.op == "const" and dtype.is_float and not source.dtype.is_float
        and abs(source.arg) <= 1 << 53  # so that it is rounded once
    ):  # fmt: skip
        return Node("const", dtype, source.shape, (), float(source.arg))
    return Node("cast", dtype, source.shape, (source,))


def reshape(source: Node, shape: Shape) -> Node:
    """Return the same elements, in row-major order, in another shape of the same size."""
    if shape == source.shape:
        return source
    if source.op == "reshape" and _merges(source):
        return reshape(source.sources[0], shape)
    if source.op == "const":
        return Node("const", source.dtype, shape, (), source.arg)
    return Node("reshape", source.dtype, shape, (source,))


def permute(source: Node, axes: tuple[int, ...]) -> Node:
    """Reorder the axes: axis n of the result is axis `axes[n]` of the source."""
    if axes == tuple(range(len(axes))):
        return source
    if source.op == "permute" and _merges(source):
        return permute(source.sources[0], tuple(source.arg[axis] for axis in axes))
    shape = tuple(source.shape[axis] for axis in axes)
    return Node("permute", source.dtype, shape, (source,), axes)


def expand(source: Node, shape: Shape) -> Node:
    """Repeat the axes of length 1 that are longer in `shape`."""
    if shape == source.shape:
        return source
    if source.op == "expand" and _merges(source):
        return expand(source.sources[0], shape)
    if source.op == "const":
        return Node("const", source.dtype, shape, (), source.arg)
    return Node("expand", source.dtype, shape, (source,))


def pad(source: Node, pairs: Sequence[tuple[int, int]], number: bool | int | float) -> Node:
    """Put `number` before and after each axis, as many times as the axis's pair gives."""
    if not any(before or after for before, after in pairs):
        return source
    shape = tuple(
        size + before + after for size, (before, after) in zip(source.shape, pairs, strict=True)
    )
    return Node("pad", source.dtype, shape, (source,), (tuple(pairs), number))


def shrink(source: Node, box: Sequence[tuple[int, int]]) -> Node:
    """Keep the indices start <= index < stop of each axis."""
    shape = tuple(stop - start for start, stop in box)
    if shape == source.shape:
        return source
    if source.op == "shrink" and _merges(source):
        outer = zip(source.arg, box, strict=True)
        return shrink(
            source.sources[0], [(o[0] + start, o[0] + stop) for o, (start, stop) in outer]
        )
    return Node("shrink", source.dtype, shape, (source,), tuple(box))


def flip(source: Node, axes: Sequence[int]) -> Node:
    """Reverse the order along the axes."""
    if not axes:
        return source
    return Node("flip", source.dtype, source.shape, (source,), tuple(sorted(axes)))


def stride(source: Node, steps: tuple[int, ...]) -> Node:
    """Keep every `steps[n]`-th index of axis n, from the first."""
    if all(step == 1 for step in steps):
        return source
    shape = tuple(-(-size // step) for size, step in zip(source.shape, steps, strict=True))
    return Node("stride", source.dtype, shape, (source,), steps)


def cat(sources: Sequence[Node], axis: int) -> Node:
    """Join the sources along an axis."""
    shape = list(sources[0].shape)
    shape[axis] = sum(source.shape[axis] for source in sources)
    return Node("cat", sources[0].dtype, tuple(shape), tuple(sources), axis)


def gather(source: Node, axes: tuple[int, ...], indices: Sequence[Node], checked: bool) -> Node:
    """Take elements by indices along `axes`; the axes of the indices replace these, in front.
    checked: the indices are known to be in range."""
    rest = tuple(size for axis, size in enumerate(source.shape) if axis not in axes)
    shape = (*indices[0].shape, *rest)
    return Node("gather", source.dtype, shape, (source, *indices), (axes, checked))


def scan(operation: str, source: Node, axis: int, dtype: DType, start: Node | None = None) -> Node:
    """Return running totals along an axis, by `operation`; start: the total before the first."""
    sources = (source,) if start is None else (source, start)
    return Node("scan", dtype, source.shape, sources, (operation, axis))


def sort(source: Node, bits: int) -> Node:
    """Return the lower halves of rows of uint64 as uint32, ordered by the bits 32 to 32 + bits."""
    *rows, size = source.shape
    if size <= HELD:
        return Node("sort", uint32, source.shape, (source,), (bits, len(rows)))
    found = Node("sort", source.dtype, (*rows, 2, size), (source,), (bits, len(rows) + 1))
    first = [(0, count) for count in rows] + [(0, 1), (0, size)]
    return cast(reshape(shrink(found, first), source.shape), uint32)


_IDENTITY = {"sum": 0, "prod": 1, "or": False, "and": True}


def reduce(op: str, source: Node, axes: Sequence[int]) -> Node:
    """Reduce over axes, which keep size 1. The result has the type of the source."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
    used = tuple(axis for axis in sorted(axes) if source.shape[axis] != 1)
    if not used:
        return source
    if any(source.shape[axis] == 0 for axis in used) and op in _IDENTITY:
        return full(_IDENTITY[op], source.dtype, kept)
    return Node("reduce", source.dtype, kept, (source,), (op, used))


def topological(
    roots: Sequence[Node], earlier: Mapping[int, Sequence[Node]] | None = None
) -> list[Node]:
    """Return every node that the roots need, sources first, and before each node those that
    `earlier` lists for its id. Does not recurse: graphs may be deep."""
    before = earlier or {}
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((source, False) for source in reversed(node.sources))
            stack.extend((reader, False) for reader in before.get(id(node), ()))
    return order
