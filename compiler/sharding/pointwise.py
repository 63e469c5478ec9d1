"""Rules of elementwise methods, and of those along axes: reductions, scans, sorts."""

from __future__ import annotations

import inspect
from typing import Any

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import float32, is_narrow
from ugpu.compiler.methods.aliases import NAMES
from ugpu.compiler.methods.core import broadcast_shape
from ugpu.compiler.methods.reductions import correction_of
from ugpu.compiler.sharding import collectives
from ugpu.compiler.sharding.placing import (
    aligned,
    each_device,
    gathered,
    made,
    operand,
    split_of,
    wrapped,
)
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor

LINEAR = ("mul", "__mul__", "__rmul__", "div", "__truediv__", "neg", "__neg__")
COMBINED = {"max": "max", "min": "min", "prod": "prod", "any": "max", "all": "min"}


def elementwise(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Operands are split like the first that is; a replicated one is cut, without a copy."""
    scaled = len(args) < 2 and all(
        isinstance(each, int | float) or _constant(x, each) for each in args
    )
    if x.partial and name in LINEAR and not options and x.dtype.is_float and scaled:
        return Sharded(each_device(name, x, args, {}, len(x.parts)), None, True)
    x = x.reduced()
    every = [operand(name, x, each) for each in args]
    more = {key: operand(name, x, value) for key, value in options.items()}
    tensors = [each for each in (x, *every, *more.values()) if isinstance(each, Sharded)]
    rank = len(broadcast_shape(name.strip("_"), *(each.shape for each in tensors)))
    split = split_of(tensors, rank)

    def placed(each: Any) -> Any:
        if not isinstance(each, Sharded):
            return each
        return each.replicated() if split is None else aligned(each, split[0], rank, split[1])

    results = each_device(
        name, placed(x), [placed(each) for each in every],
        {key: placed(value) for key, value in more.items()}, len(x.parts),
    )  # fmt: skip
    return wrapped(results, None if split is None else split[0])


def _constant(x: Sharded, given: Any) -> bool:
    """Return whether partial sums may be multiplied by an operand one by one."""
    placed = isinstance(given, Sharded) and given.axis is None and not given.partial
    return bool(placed and given.devices == x.devices and given.ndim <= x.ndim)


def dropout(x: Sharded, probability: float = 0.5, *, training: bool) -> Any:
    """The numbers are those of one device."""
    x.parts[0].dropout(probability, training=False)  # checks the probability
    if not training or not probability:
        return x
    x = x.reduced()
    sizes = None if x.axis is None else x.sizes
    drawn: Any = made("rand", x.devices, x.axis, [x.shape], {}, sizes)
    scale = 1 / (1 - probability) if probability < 1 else 0
    kept: Any = elementwise("__ge__", drawn, probability)
    return kept.where(elementwise("mul", x, scale), 0)


def along_axes(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Methods with an argument `axis` run on each device unless that axis is split."""
    x = x.reduced()
    axes = _axes(name, x, args, options)
    if x.axis in axes or any(isinstance(each, Sharded) for each in (*args, *options.values())):
        return gathered(name, x, *args, **options)
    axis, removed = x.axis, sum(each < (x.axis or 0) for each in axes)

    def place(result: Tensor) -> int:
        return (axis or 0) - (removed if result.ndim < x.ndim else 0)

    results = each_device(name, x, args, options, len(x.parts))
    return wrapped(results, None if axis is None else place)


def _axes(name: str, x: Sharded, args: Any, options: Any) -> tuple[int, ...]:
    """Return the axes that a call of a method works along."""
    signature = inspect.signature(inspect.unwrap(getattr(Tensor, name)))
    own = {
        key if key in signature.parameters else NAMES.get(key, key): value
        for key, value in options.items()
    }
    bound = signature.bind(x, *args, **own)
    bound.apply_defaults()
    return x._axes(name, bound.arguments["axis"])


def reduction(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Reductions: along the split axis, each device reduces its part, and the results are combined:
    a sum when it is needed, others at once."""
    if x.axis is None or x.axis not in _axes(name, x, args, options) or options.get("indices"):
        return along_axes(name, x, *args, **options)
    if name == "sum":
        if is_narrow(x.dtype) and not options.get("dtype"):  # rounded once
            return x.cast(float32).sum(*args, **options).cast(x.dtype)
        return Sharded(each_device(name, x, args, options, len(x.parts)), None, True)
    if x.requires_grad or 0 in x.sizes:  # equal elements share a gradient, on whatever device
        return gathered(name, x, *args, **options)
    results = each_device(name, x, args, options, len(x.parts))
    kind = results[0].dtype
    if kind is dtypes.bool_:
        results = [each.cast(dtypes.uint8) for each in results]
    combined = collectives.all_reduce(results, COMBINED[name])
    return Sharded([each.cast(kind) for each in combined])


def mean(x: Sharded, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """The sum of all devices, divided by the number of elements."""
    if dtype is not None:
        return mean(x.cast(dtype), axis, keepdims)
    x = x.reduced()
    count = 1
    for each in x._axes("mean", axis):
        count *= x.shape[each]
    if not count:
        return gathered("mean", x, axis, keepdims)
    total = x.cast(float32).sum(axis, keepdims)
    return (total / count).cast(dtypes.float_dtype(x.dtype))


def var(
    x: Sharded, axis: Any = None, keepdims: bool = False, correction: float | None = None, *,
    unbiased: bool | None = None,
) -> Any:  # fmt: skip
    """Distances from the mean of all devices, squared and summed."""
    axis, less = correction_of(axis, correction, unbiased)
    x = x.reduced()
    axes = x._axes("var", axis)
    if x.axis not in axes or not x.numel():
        return along_axes("var", x, axis, keepdims, less)
    wide = x.cast(float32)
    count = x.numel() // max(1, wide.sum(axes).numel())
    apart = wide - wide.mean(axes, keepdims=True)
    total = (apart * apart).sum(axes, keepdims)
    return (total / max(0, count - less)).cast(dtypes.float_dtype(x.dtype))


def std(
    x: Sharded, axis: Any = None, keepdims: bool = False, correction: float | None = None, *,
    unbiased: bool | None = None,
) -> Any:  # fmt: skip
    """The root of `var`; its gradient for equal elements is that of Tensor.std on one device."""
    axis, less = correction_of(axis, correction, unbiased)
    if x.requires_grad and x.axis in x._axes("std", axis):
        return gathered("std", x, axis, keepdims, less)
    if x.axis not in x._axes("std", axis):
        return along_axes("std", x, axis, keepdims, less)
    return var(x, axis, keepdims, less).sqrt()


def cast(x: Sharded, dtype: Any) -> Any:
    """Convert the elements; partial sums only where nothing is rounded."""
    if x.partial and dtypes.as_dtype(dtype) is x.dtype:
        return x
    return elementwise("cast", x, dtype)
