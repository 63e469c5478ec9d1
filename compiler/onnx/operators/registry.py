"""The table of operators.

An operator is a function of its inputs: tensors, or None for an input that is absent. Inputs whose
numbers are in `host` are NumPy arrays, because they decide shapes or which elements are read.
Attributes are keywords of their ONNX names. The result is a tensor, a NumPy array, or a tuple.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ugpu.hcq.errors import NotSupported

Function = Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """host: numbers of the inputs that are arrays of the host. attributes: the ONNX attributes that
    the function takes. keywords: which of `opset` (the model's), `outputs` (the number that is
    used) and `device` it takes besides."""

    function: Function
    host: frozenset[int]
    attributes: frozenset[str]
    keywords: frozenset[str]

    def known(self, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes, checked to be supported."""
        unknown = set(attributes) - self.attributes
        if unknown:
            raise NotSupported(f"ONNX operator {name}: attribute {', '.join(sorted(unknown))}")
        return attributes


OPERATORS: dict[str, Operator] = {}
_GIVEN = ("opset", "outputs", "device")


def operator(*names: str, host: tuple[int, ...] = ()) -> Callable[[Function], Function]:
    """Decorator: make a function the implementation of operators."""

    def registered(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        keywords = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        for name in names:
            assert name not in OPERATORS, name
            OPERATORS[name] = Operator(
                function, frozenset(host), frozenset(keywords - set(_GIVEN)),
                frozenset(keywords & set(_GIVEN)),
            )  # fmt: skip
        return function

    return registered
