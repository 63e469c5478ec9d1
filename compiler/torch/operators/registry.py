"""The table of operators.

An operator is a function of the arguments of its schema, under their names and defaults: tensors,
numbers, lists of them, element types (of ugpu). Where a tensor is placed and how it lies in memory
(`device`, `layout`, `memory_format`, `pin_memory`) is left out. The result is a tensor, or a tuple
of tensors; its element type is converted to that of PyTorch afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """places: whether it takes `device`, on which it makes a tensor. reads: whether it reads
    elements, so that it cannot be recorded."""

    function: Callable[..., Any]
    places: bool = False
    reads: bool = False


OPERATORS: dict[str, Operator] = {}


def operator(
    *names: str, places: bool = False, reads: bool = False
) -> Callable[[Function], Function]:
    """Decorator: make a function the implementation of operators, "name.overload", or "name" for
    every overload that is not listed itself."""

    def registered(function: Function) -> Function:
        for name in names:
            assert name not in OPERATORS, name
            OPERATORS[name] = Operator(function, places, reads)
        return function

    return registered


def find(target: Any) -> Operator | None:
    """Return the implementation of an operator of PyTorch (an OpOverload), or None."""
    space, _, name = str(target).partition(".")
    packet = name.rpartition(".")[0]
    if space != "aten" and (space, packet) not in PRIMITIVES:
        return None
    return OPERATORS.get(name) or (None if packet in OVERLOADED else OPERATORS.get(packet))


# operators of PyTorch's other namespace; most of that have other arguments
PRIMITIVES = (("prims", "convert_element_type"), ("prims", "iota"))
# operators whose overloads differ in meaning: only those listed exist
OVERLOADED = frozenset(("max", "min", "index", "slice", "slice_copy", "copy"))
