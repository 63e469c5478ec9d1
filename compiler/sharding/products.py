"""Rules of matrix products, convolutions, attention and losses."""

from __future__ import annotations

from typing import Any

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import float32, is_narrow
from ugpu.compiler.methods.losses import IGNORED
from ugpu.compiler.sharding.placing import (
    aligned,
    each_device,
    gathered,
    operand,
    split_of,
    wrapped,
)
from ugpu.compiler.sharding.sharded import Sharded


def matmul(left: Sharded, right: Any) -> Any:
    """A product split by rows, columns or batches stays so; split by depth, each device has partial
    sums. The left operand's split decides."""
    one, two = left.reduced(), operand("matmul", left, right)
    plain = isinstance(two, Sharded) and min(one.ndim, two.ndim) >= 2
    if not plain or one.shape[-1] != two.shape[-2]:  # Tensor.matmul reports the error
        return gathered("matmul", one, two)
    rank = max(one.ndim, two.ndim)
    last, second = one.ndim - 1, two.ndim - 2
    axis: int | None = None
    if one.axis == last or (one.axis is None and two.axis == second):
        sizes = one.sizes if one.axis == last else two.sizes
        kind = dtypes.promote(one.dtype, two.dtype)
        if is_narrow(kind):  # rounded once
            return matmul(one.cast(float32), two.cast(float32)).cast(kind)
        one, two = one.split_along(last, sizes), two.split_along(second, sizes)
        return Sharded(each_device("matmul", one, [two], {}, len(one.parts)), None, True)
    if one.axis == last - 1:
        axis, two = rank - 2, two.replicated()
    elif one.axis is None and two.axis == two.ndim - 1:
        axis = rank - 1
    else:
        batches = split_of([one, two], rank)
        if batches is not None and batches[0] < rank - 2:
            axis = batches[0]
            one, two = (aligned(each, axis, rank, batches[1]) for each in (one, two))
        else:
            one, two = one.replicated(), two.replicated()
    return wrapped(each_device("matmul", one, [two], {}, len(one.parts)), axis)


def rmatmul(right: Sharded, left: Any) -> Any:
    """left @ right of an array."""
    return matmul(operand("matmul", right, left), right)


def linear(x: Sharded, weight: Any, bias: Any = None) -> Any:
    """x @ weight^T + bias."""
    made = matmul(x, operand("linear", x, weight).transpose(-1, -2))
    return made if bias is None else made + bias


def batched(name: str, x: Sharded, *args: Any, **options: Any) -> Any:
    """Methods of images: each device has its images, and whole weights."""
    x = x.reduced()
    if x.axis not in (None, 0):
        return gathered(name, x, *args, **options)
    every = [_whole(name, x, each) for each in args]
    more = {key: _whole(name, x, value) for key, value in options.items()}
    return wrapped(each_device(name, x, every, more, len(x.parts)), x.axis)


def _whole(name: str, x: Sharded, given: Any) -> Any:
    placed = operand(name, x, given)
    return placed.replicated() if isinstance(placed, Sharded) else placed


def attention(
    query: Sharded, key: Any, value: Any, mask: Any = None, is_causal: bool = False,
    enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Each device has some of the batches or heads, with all of their rows."""
    name = "scaled_dot_product_attention"
    query = query.reduced()
    tensors = [operand(name, query, each) for each in (key, value, mask)]
    rank, axis = query.ndim, query.axis
    fits = all(
        isinstance(each, Sharded) and each.ndim == rank and each.shape[axis or 0] > 1
        and each.shape[axis or 0] == query.shape[axis or 0]
        for each in tensors[:2]
    )  # fmt: skip
    if axis is not None and (axis >= rank - 2 or not fits):
        return gathered(name, query, *tensors, is_causal=is_causal, enable_gqa=enable_gqa)
    if axis is not None:
        tensors = [
            aligned(each, axis, rank, query.sizes) if isinstance(each, Sharded) else each
            for each in tensors
        ]
    else:
        tensors = [_whole(name, query, each) for each in tensors]
    options = {"is_causal": is_causal, "enable_gqa": enable_gqa}
    return wrapped(each_device(name, query, tensors, options, len(query.parts)), axis)


def loss(name: str, x: Sharded, target: Any, *args: Any, **options: Any) -> Any:
    """Losses of a split batch: each device has those of its samples; their mean is the sum over all
    devices divided by the number of all that count."""
    reduction = options.pop("reduction", "mean")
    classes = name in ("cross_entropy", "nll_loss")
    x, wanted = x.reduced(), operand(name, x, target)
    local = isinstance(wanted, Sharded) and (x.axis == 0 if classes else x.axis is not None)
    if args or not local or options.get("weight") is not None or reduction not in ("mean", "sum"):
        return gathered(name, x, wanted, *args, reduction=reduction, **options)
    assert x.axis is not None
    labels = classes and not wanted.dtype.is_float
    wanted = wanted.split_along(x.axis, x.sizes)
    more = {key: _whole(name, x, value) for key, value in options.items()}
    each = each_device(name, x, [wanted], {**more, "reduction": "none"}, len(x.parts))
    total = Sharded(each, x.axis).sum()
    if reduction == "sum":
        return total
    if not labels:
        return total / max(1, Sharded(each, x.axis).numel())
    counted = (wanted != options.get("ignore_index", IGNORED)).sum()
    return total / counted.reduced().cast(total.dtype)
