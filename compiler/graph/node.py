"""The tensor graph: the nodes behind lazy Tensors.

A Node is an operation on whole arrays. Its shape and type are known when it is made. Its elements
are computed when it is realized (compiler.runtime); `storage` then holds the result, and `sources`
are dropped. Nodes do not change otherwise, and may be shared.

What an operation is, is said by its record (Kind): compiler.graph.operations has all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.algebra import Index, Validity
from ugpu.compiler.expression.value import Value
from ugpu.compiler.graph.origin import Origin
from ugpu.compiler.graph.tracking import FREED, History, mode

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device

Shape = tuple[int, ...]


class ByValue:
    """The storage of a node without axes whose element comes with each launch, not from memory.
    word: its bits, as an argument of a kernel is: in the low end of 64."""

    __slots__ = ("word",)
    writable = False

    def __init__(self, word: int) -> None:
        self.word = word


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


class Trace(Protocol):
    """A kernel being expressed: nodes as functions of indices."""

    def value(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        """Return the element of a node at the indices; it is read only where `valid` holds."""

    def number(self) -> int:
        """Return a number for the ranges of one more reduction."""


Express = Callable[[Trace, Node, tuple[Index, ...], Validity], Value]


@dataclass(frozen=True, eq=False)
class Kind:
    """An operation: what passes do with its nodes. Made beside the functions that make these.

    express: the element at the indices; it is read only where the condition holds. None for a node
    that no kernel expresses.
    cost: of an element, without its sources', in additions (compiler.pattern.cost).
    lowerings: by ABI, the module whose `lower` makes the kernel of a node that is the root of its
    own; other operations may stand anywhere in a kernel.
    moves: its elements are its source's, or a number. once: each of these exactly once. repeats:
    one of its source's may be read many times. aligned: each element is made of those at its place.
    writes: it is its first source, with some elements replaced. stored: True if always, False if
    its readers compute it again instead. numbers: its arg contains a number, of which -0.0 and 0.0
    are equal but not the same. positional: what it computes depends on more than the values of its
    sources' elements: on positions, or on an inner graph.
    """

    name: str
    express: Express | None = None
    cost: Callable[[DType], int] = lambda dtype: 0
    lowerings: Mapping[str, str] = field(default_factory=dict)
    moves: bool = False
    once: bool = False
    repeats: bool = False
    aligned: bool = False
    writes: bool = False
    stored: bool | None = None
    numbers: bool = False
    positional: bool = False

    def __post_init__(self) -> None:
        assert self.name not in KINDS, self.name
        KINDS[self.name] = self


KINDS: dict[str, Kind] = {}  # by name; compiler.graph.operations fills it


# A node with numbered sources: first those of the recipe, then the nodes made before it.
Made = tuple[str, DType, Shape, Any, tuple[int, ...]]


class Repetition(Protocol):
    """A recipe prepared for one device (compiler.runtime.script)."""

    def run(self, root: Node, device: Device) -> bool:
        """Compute a node that the recipe made. Return False if the runtime must plan the node."""


class Recipe:
    """Operations on `sources` arrays; compared and hashed by identity.

    Attributes:
        long: running it takes a while.
        moves: it computes nothing, so each reader may repeat it.
        last: of a chain, the operations on its operands; otherwise `made`.
        repeats: whether it was repeated, or has no number and probably will be.
    """

    __slots__ = ("dtype", "last", "long", "made", "moves", "repeats", "script", "shape", "sources")

    def __init__(
        self, sources: int, made: tuple[Made, ...], long: bool, last: tuple[Made, ...] = ()
    ) -> None:
        self.sources = sources
        self.made = made
        self.last = last or made
        self.long = long
        self.repeats = False
        self.moves = all(KINDS[op].moves for op, *_ in made)
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
        return Repeated(self, sources, sources, ())


class Repeated(Node):
    """Result of a recipe for the `given` nodes, which are stored. This node stands for the whole
    graph of the recipe until its operation is read.

    Attributes:
        given: the recipe's sources; empty once the graph or the result exists.
        operands: what its last operations read: `given`, or for a chain also nodes of `inner`.
        inner: the nodes between, which are not stored and were made by recipes; sources first.
    """

    __slots__ = ("given", "inner", "operands")

    def __init__(
        self,
        recipe: Recipe,
        operands: tuple[Node, ...],
        given: tuple[Node, ...],
        inner: tuple[Node, ...],
    ) -> None:
        # op, sources and arg stay unset: see __getattr__
        self.dtype = dtype = recipe.dtype
        self.shape = recipe.shape
        self.given = given
        self.operands = operands
        self.inner = inner
        self.recipe = recipe
        self.storage = self.origin = self.recipes = self.history = None
        self.made = _period
        self.tracked = False
        for source in operands:
            if source.tracked:
                self.tracked = mode.on and dtype.kind == "f"

    def __getattr__(self, name: str) -> Any:  # one of three types
        """Build the recipe's graph when an unset attribute is read."""
        recipe, operands = self.recipe, self.operands
        if name not in ("op", "sources", "arg") or recipe is None:
            raise AttributeError(name)
        if operands:
            nodes = list(operands)
            for op, dtype, shape, arg, places in recipe.last[:-1]:
                node = Node(op, dtype, shape, tuple([nodes[place] for place in places]), arg)
                node.made = self.made
                if self.tracked and dtype.kind == "f":  # also if tracking is off by now
                    node.tracked = any(source.tracked for source in node.sources)
                else:
                    node.tracked = False
                nodes.append(node)
            self.op, _, _, self.arg, places = recipe.last[-1]
            self.sources = tuple([nodes[place] for place in places])
            self.given = self.operands = self.inner = ()
        # RACE: another thread may have settled it meanwhile; settling writes `storage` first.
        if self.storage is not None:
            self.settle(self.storage)
        return object.__getattribute__(self, name)

    def settle(self, storage: object) -> None:
        if self.tracked and self.history is None and self.storage is None:
            self.history = History(self.op, self.sources, self.arg)
        self.storage = storage
        self.op, self.sources, self.arg = "buffer", (), None
        self.given = self.operands = self.inner = ()


_period = 0
_period_lock = threading.Lock()


def new_period() -> int:
    """Start a period and return its number: nodes made from now on have `made` >= it, earlier
    nodes a smaller one."""
    global _period
    with _period_lock:
        _period += 1
        return _period


def form_of(leaf: Node) -> Shape | str:
    """Return what kernels that read a stored node depend on, besides its type: the shape, or that
    it comes by value."""
    return "by_value" if isinstance(leaf.storage, ByValue) else leaf.shape


def stored_as(root: Node) -> Node:
    """Return the node to store for `root`: the same elements in row-major order, not reshaped."""
    while root.op == "reshape":
        root = root.sources[0]
    return root


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
