"""A group: the nodes that one kernel computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from ugpu.compiler.expression.once import Answers
from ugpu.compiler.graph.movement import part_of_stored
from ugpu.compiler.graph.node import Node, form_of
from ugpu.compiler.graph.operations import KINDS, MOVEMENT

ALIGN = 256  # bytes: alignment that kernels assume for every parameter (compiler.codegen)


@dataclass(frozen=True)
class Group(Answers):
    """One kernel to run: computes `root` from `inputs`. key: equal for groups that do the same.
    in_place: the root is an assignment into the memory of its first source. others: further nodes
    of the root's shape that the same kernel computes. stage: for a scatter into separate memory,
    "begin" copies its first source there, then "end" (also in_place) writes the chosen elements.
    over: for each root the input whose memory it is written into, element by element.

    An input is a stored node or a run of elements of one, of which the kernel gets the address: so
    kernels that read different rows of an array are equal. bases: for each input, the stored node;
    empty if those are the inputs themselves."""

    root: Node
    inputs: tuple[Node, ...]
    key: tuple[Any, ...]  # nested tuples of ops, shapes, types and arguments
    in_place: bool = False
    others: tuple[Node, ...] = ()
    stage: str = ""
    over: tuple[Node | None, ...] = ()
    bases: tuple[Node, ...] = ()

    @property
    def sources(self) -> tuple[Node, ...]:
        """Return the stored nodes that the kernel reads, one for each input."""
        return self.bases or self.inputs

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the byte of its source at which each input begins; empty if all begin at 0."""
        found = tuple(map(_first_byte, self.inputs, self.sources))
        return found if any(found) else ()

    @property
    def roots(self) -> tuple[Node, ...]:
        return (self.root, *self.others)


def make_group(
    root: Node,
    stored: Set[int],
    in_place: bool = False,
    others: tuple[Node, ...] = (),
    stage: str = "",
) -> Group:
    """Return the kernel that computes stored nodes, with its inputs and structure. stored: ids of
    the nodes that kernels compute."""
    whole: set[int] = set()  # ids of stored nodes of which it reads more than one run
    while True:
        made = _group(root, stored, in_place, others, stage, whole)
        read = Counter(map(id, made.sources))
        if len(read) == len(made.inputs):
            return made
        whole.update(key for key, count in read.items() if count > 1)


def _group(
    root: Node, stored: Set[int], in_place: bool, others: tuple[Node, ...], stage: str,
    whole: Set[int],
) -> Group:  # fmt: skip
    own = {id(root), *map(id, others)}
    old = root.sources[0] if in_place else None
    places: dict[int, int] = {}
    inputs: list[Node] = []
    bases: list[Node] = []
    key: list[tuple[Any, ...]] = []
    first = root.sources[0] if stage == "begin" else root
    stack = [(each, False) for each in (*others[::-1], first)]

    def is_stored(node: Node) -> bool:
        return node.storage is not None or (id(node) in stored and id(node) not in own)

    while stack:
        node, ready = stack.pop()
        if id(node) in places:
            continue
        base = node if is_stored(node) else None if ready else _base(node, is_stored, whole)
        if base is not None:
            places[id(node)] = len(key)
            inputs.append(node)
            bases.append(base)
            key.append(("input", form_of(node), node.dtype))
        elif ready:
            places[id(node)] = len(key)
            arg = (repr(node.arg),) if KINDS[node.op].numbers else node.arg
            needed = node.sources if node is not root or not in_place else node.sources[1:]
            sources = tuple([places[id(source)] for source in needed])
            key.append((node.op, node.shape, node.dtype, arg, sources))
        else:
            stack.append((node, True))
            needed = node.sources if node is not root or not in_place else node.sources[1:]
            stack.extend([(source, False) for source in reversed(needed)])
    if stage == "begin":
        key.append(("begin",))
    assert stage or old is None or not any(node is old for node in bases), "a write beside a read"
    if others:
        key.append(("results", *[places[id(each)] for each in (root, *others)]))
    runs = tuple(bases) if bases != inputs else ()
    return Group(root, tuple(inputs), tuple(key), in_place, others, stage, bases=runs)


def _base(node: Node, is_stored: Callable[[Node], bool], whole: Set[int]) -> Node | None:
    """Return the stored node of which a node is a run of elements that a kernel can be given."""
    found = part_of_stored(node, is_stored) if node.op == "shrink" else None
    if found is None or id(found[0]) in whole or found[1] * node.dtype.itemsize % ALIGN:
        return None
    return found[0] if node.size else None


def _first_byte(node: Node, base: Node) -> int:
    found = part_of_stored(node, lambda each: each is base)
    assert found is not None
    return found[1] * node.dtype.itemsize


def members(root: Node, stored: Set[int]) -> Iterator[Node]:
    """Yield the nodes that a stored node's kernel computes, the root first, each once."""
    seen = {id(root)}
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        for source in node.sources:
            key = id(source)
            if key not in seen and key not in stored and source.storage is None:
                seen.add(key)
                stack.append(source)


def describe(group: Group) -> str:
    """Return a group's tensor operations in words, for messages and kernel names."""
    names = []
    for entry in group.key:
        op = entry[0]
        if op == "reduce":
            names.append(str(entry[3][0]))
        elif op not in MOVEMENT and op not in ("input", "const", "contiguous", "results", "begin"):
            names.append(str(op))
    if not names:
        moved = [str(e[0]) for e in group.key if e[0] in MOVEMENT and e[0] != "reshape"]
        names = moved[:4] or ["copy"]
    return " ".join(names)
