"""Arguments of PyTorch's and NumPy's methods that Tensor's lack: those without effect are accepted,
for the others an error names what to write."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

# Values that are what a tensor does anyway, as text; an empty tuple: whatever the value.
WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "out": ("None",), "where": ("True",), "generator": ("None",), "names": ("None",),
    "layout": ("None", "torch.strided"), "order": ("None", "C", "K", "A"),
    "pin_memory": ("None", "False"), "sparse_grad": ("False",), "requires_grad": ("False",),
    "device": ("None",), "mode": ("None", "raise"), "casting": ("unsafe",),
    "copy": (), "kind": (), "stable": (), "non_blocking": (), "sorted": (), "subok": (),
    "memory_format": (),  # elements have an order, and no places that a program can see
}  # fmt: skip
INSTEAD: dict[str, str] = {
    "out": "results are always tensors of their own: write out[...] = {call}",
    "where": "write x[where].{name}(...), or where.where(x, value).{name}(...)",
    "initial": "combine the result with the number, such as x.sum() + initial",
    "default": "combine the result with the number, such as x.max().maximum(default)",
    "mean": "write ((x - mean) ** 2).mean(axis)",
    "dtype": "write x.cast(dtype).{name}(...), or {call}.cast(dtype)",
    "layout": "a tensor is dense and lies in row-major order: leave the layout out",
    "order": "a tensor lies in row-major order: write x.T.reshape(...).T for order 'F'",
    "pin_memory": "memory of a device is what its kernels can reach: leave the argument out",
    "requires_grad": "write {call}.requires_grad_()",
    "device": "write {call}.to(device)",
    "generator": "write Tensor.manual_seed(seed), or Tensor.set_rng_state(state)",
    "mode": "write indices.clamp(0, n - 1), or indices.remainder(n)",
    "sparse_grad": "gradients are dense: leave the argument out",
    "names": "tensors have no names: write a dict of tensors",
    "casting": "write x.cast(dtype), which converts any type",
}
# Methods that take other arguments than the peers' of this name.
METHODS = {
    "transpose": "write x.permute(axes) for an order of all axes",
    "repeat": "write x.repeat_interleave(count, axis) to repeat elements, as NumPy does",
    "round": "write x.round(decimals=number)",
}


def accepted(method: FunctionType, excess: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a call without those that have no effect. excess: how many positional
    arguments there are more than the method takes. Raises a TypeError that names what to write."""
    known = inspect.signature(method).parameters
    if excess > 0:
        raise TypeError(f"{method.__qualname__}() takes fewer arguments, by {excess}: "
                        f"{_form(method)}")  # fmt: skip
    kept = {}
    for key, value in kwargs.items():
        if key in known:
            kept[key] = value
            continue
        values = WITHOUT_EFFECT.get(key)
        if values is not None and (not values or str(value) in values):
            continue
        text = INSTEAD.get(key, _form(method))
        name = method.__name__
        text = text.format(name=name, call=f"x.{name}(...)")
        raise TypeError(
            f"{method.__qualname__}() got an unexpected keyword argument {key!r}: {text}"
        )
    return kept


def _form(method: FunctionType) -> str:
    """What a method takes, for errors."""
    listed = []
    for name, each in inspect.signature(method).parameters.items():
        if name not in ("self", "cls"):
            optional = each.default is not each.empty
            listed.append(str(each.replace(annotation=each.empty)) if optional else name)
    text = f"write x.{method.__name__}({', '.join(listed)})"
    return f"{METHODS[method.__name__]}, or {text[6:]}" if method.__name__ in METHODS else text
