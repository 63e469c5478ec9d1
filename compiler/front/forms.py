"""Tensors inside lists, tuples and dicts: found, compared, and replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor

Leaf = TypeVar("Leaf")


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Collect the tensors of nested containers; return the rest of their content, comparable."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor", value.dtype.name, value.shape, id(value.device))
    if isinstance(value, Sharded):
        parts = [flatten(part, tensors) for part in value.parts]
        return ("sharded", value.axis, value.partial, *parts)
    if isinstance(value, ComplexTensor):
        return ("complex", *(flatten(part, tensors) for part in value.parts))
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(flatten(each, tensors) for each in value))
    if isinstance(value, dict):
        return ("dict", *((key, flatten(each, tensors)) for key, each in value.items()))
    return (type(value).__name__, value)


def tensors_of(value: object) -> list[Tensor]:
    """Return the tensors of nested lists, tuples and dicts."""
    tensors: list[Tensor] = []
    flatten(value, tensors)
    return tensors


def mapped(value: Any, kind: type[Leaf], change: Callable[[Leaf], object]) -> Any:
    """Return new containers of the same form, each leaf of `kind` replaced by what `change`
    returns for it."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Sharded | ComplexTensor):
        return value.with_parts([mapped(part, kind, change) for part in value.parts])
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(mapped(each, kind, change) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(each, kind, change) for each in value)
    if isinstance(value, dict):
        return {key: mapped(each, kind, change) for key, each in value.items()}
    return value


def leaves_of(value: Any, kind: type[Leaf]) -> list[Leaf]:
    """Return the leaves of `kind` in nested containers."""
    leaves: list[Leaf] = []

    def note(leaf: Leaf) -> Leaf:
        leaves.append(leaf)
        return leaf

    mapped(value, kind, note)
    return leaves


def difference(before: Any, after: Any, name: str) -> str | None:
    """Return the name of the first place where two forms differ, in their tensors' identity or in
    anything else; None if they are the same."""
    if isinstance(before, Tensor) or isinstance(after, Tensor):
        return None if before is after else name
    if isinstance(before, Sharded) and isinstance(after, Sharded):
        pairs: list[tuple[str, Any, Any]] = [
            ("", *both) for both in zip(before.parts, after.parts, strict=False)
        ]
        if (before.placement, len(before.parts)) != (after.placement, len(after.parts)):
            return name
    elif isinstance(before, ComplexTensor) and isinstance(after, ComplexTensor):
        pairs = [
            (".real", before.real, after.real),
            (".imag", before.imag, after.imag),
        ]
    elif isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        pairs = [(repr(key), before.get(key), after.get(key)) for key in keys]
        missing = next((key for key in keys if (key in before) is not (key in after)), None)
        if missing is not None:
            return f"{name}[{missing!r}]"
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            return name
        pairs = [(str(i), *both) for i, both in enumerate(zip(before, after, strict=True))]
    else:
        same = before is after or (type(before) is type(after) and before == after)
        return None if same else name
    places = (difference(one, other, f"{name}[{key}]") for key, one, other in pairs)
    return next((place for place in places if place is not None), None)


def text(shape: Any) -> str:
    """Return what `flatten` returned as text for error messages."""
    if shape[0] == "tensor":
        return f"{shape[1]}{list(shape[2])}"
    if shape[0] == "sharded":
        return " + ".join(text(each) for each in shape[3:])
    if shape[0] in ("tuple", "list"):
        return f"({', '.join(text(each) for each in shape[1:])})"
    if shape[0] == "dict":
        return "{" + ", ".join(f"{key}: {text(each)}" for key, each in shape[1:]) + "}"
    return repr(shape[1])
