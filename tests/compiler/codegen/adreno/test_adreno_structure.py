"""Nesting of control flow: what a walk emits, run, does what the branches did."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ugpu.compiler.codegen.adreno.llvm.structure import Walk
from ugpu.hcq.errors import NotSupported

Graph = dict[str, Sequence[str]]


class Trace:
    """Keeps the nested program that a walk emits."""

    def __init__(self) -> None:
        self.code: list[list[object]] = [[]]

    def put(self, *item: object) -> None:
        self.code[-1].append(item)

    def run(self, block: str) -> None:
        self.put("run", block)

    def edge(self, source: str, target: str) -> None:
        self.put("edge", source, target)

    def begin_if(self, block: str) -> None:
        self.code.append([])

    def begin_else(self) -> None:
        self.code.append([])

    def end_if(self) -> None:
        no, yes = self.code.pop(), self.code.pop()
        self.put("if", yes, no)

    def begin_loop(self) -> None:
        self.code.append([])

    def end_loop(self) -> None:
        self.put("loop", self.code.pop())

    def leave(self) -> None:
        self.put("break")

    def again(self) -> None:
        self.put("continue")


def flow(graph: Graph, choices: random.Random) -> list[str]:
    """Blocks and edges in the order in which branches take them."""
    block, found = next(iter(graph)), []
    while len(found) < 400:
        found.append(block)
        targets = graph[block]
        if not targets:
            break
        target = targets[0] if len(targets) == 1 else targets[choices.random() < 0.5]
        found.append(f"{block}>{target}")
        block = target
    return found[:400]


def nested(code: list[object], choices: random.Random, found: list[str]) -> str:
    """Run what a walk emitted; "break", "continue" or ""."""
    for item in code:
        if len(found) >= 400:
            return "break"
        assert isinstance(item, tuple)
        if item[0] == "run":
            found.append(item[1])
        elif item[0] == "edge":
            found.append(f"{item[1]}>{item[2]}")
        elif item[0] == "if":
            jump = nested(item[1 + (choices.random() < 0.5)], choices, found)
            if jump:
                return jump
        elif item[0] == "loop":
            while len(found) < 400 and nested(item[1], choices, found) != "break":
                pass
        else:
            return str(item[0])
    return ""


def made(rng: random.Random) -> Graph:
    """A random structured program as blocks and branches: sequences, conditionals, loops tested
    before or after, with jumps out and to the next turn."""
    graph: dict[str, list[str]] = {}

    def new() -> str:
        graph[f"b{len(graph)}"] = []
        return f"b{len(graph) - 1}"

    def part(start: str, depth: int, loop: tuple[str, str] | None) -> str:
        """Code from a block on; the block where it ends."""
        here = start
        for _ in range(rng.randrange(1, 4)):
            kind = rng.randrange(5) if depth else 0
            if kind == 1:  # if then else
                yes, no = new(), new()
                graph[here] += [yes, no]
                ends = [part(yes, depth - 1, loop), part(no, depth - 1, loop)]
                here = new()
                for end in ends:
                    graph[end].append(here)
            elif kind == 2:  # while
                head, body = new(), new()
                graph[here].append(head)
                after = new()
                graph[head] += [body, after]
                graph[part(body, depth - 1, (head, after))].append(head)
                here = after
            elif kind == 3:  # do while
                body = new()
                graph[here].append(body)
                after = new()
                end = part(body, depth - 1, (body, after))
                graph[end] += [body, after]
                here = after
            elif kind == 4 and loop is not None:  # a jump out of the loop, or to its next turn
                rest = new()
                graph[here] += [rng.choice(loop), rest]
                here = rest
        return here

    start = new()
    part(start, 3, None)
    return {name: tuple(targets) for name, targets in graph.items()}


@pytest.mark.parametrize("seed", range(300))
def test_nested_code_does_what_branches_did(seed: int) -> None:
    graph = made(random.Random(seed))
    trace = Trace()
    Walk(graph, trace)
    (code,) = trace.code
    for turn in range(5):
        expected = flow(graph, random.Random(turn))
        found: list[str] = []
        nested(code, random.Random(turn), found)
        assert found[: len(expected)] == expected, (graph, code)


@pytest.mark.parametrize(
    "graph",
    [
        {"a": ("b", "c"), "b": ("c",), "c": ("b", "d"), "d": ()},
        {"a": ("b",), "b": ("c", "x"), "c": ("b", "y"), "x": ("z",), "y": ("z",), "z": ()},
    ],
    ids=["two entries", "two exits"],
)
def test_other_control_flow_is_refused(graph: Graph) -> None:
    with pytest.raises(NotSupported, match="for Adreno"):
        Walk(graph, Trace())
