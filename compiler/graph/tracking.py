"""What gradients need of a graph: whether operations are tracked, and where a value came from.

A node is tracked if it depends on a tensor that requires a gradient and was made while tracking was
on. `history` of a node holds what the gradient sees in place of its operation and sources: those it
had before it was computed, or those of the method that made it, whose rule differs from the one of
its operation (compiler.gradients).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Tape:
    """The random numbers that a function takes: entered again, it gives the same ones."""

    def __init__(self) -> None:
        self.taken: list[Any] = []  # tensors
        self._next = 0

    def __enter__(self) -> Tape:
        self._outer, mode.tape = mode.tape, self
        self._next = 0
        return self

    def __exit__(self, *_: object) -> None:
        mode.tape = self._outer

    def take(self, make: Callable[[], Any]) -> Any:
        """Return the next numbers, made the first time."""
        if self._next == len(self.taken):
            self.taken.append(make())
        self._next += 1
        return self.taken[self._next - 1]


class _Mode(threading.local):
    """on: whether operations of this thread are tracked. tape: see Tape."""

    on = True
    tape: Tape | None = None


mode = _Mode()


@dataclass(frozen=True)
class History:
    """An operation as gradients see it. op: a key of the rules of compiler.gradients; sources, arg:
    as in a node."""

    op: str
    sources: tuple[Any, ...]  # nodes
    arg: Any = None  # depends on op


FREED = History("freed", ())  # a backward pass has used it, and dropped its sources
