"""Operators that move, join and select elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.tables import table
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported


def ints(array: Any) -> list[int]:
    """Return a parameter's elements as ints."""
    return [int(number) for number in np.asarray(array).reshape(-1)]


@operator("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(x.shape[slice(start, end)], np.int64)


@operator("Size")
def size(x: Tensor) -> Any:
    return np.array(x.numel(), np.int64)


@operator("Reshape", host=(1,))
def reshape(x: Tensor, wanted: Any, *, allowzero: int = 0) -> Tensor:
    sizes = ints(wanted)
    if not allowzero:
        sizes = [x.shape[n] if size == 0 else size for n, size in enumerate(sizes)]
    if -1 in sizes:  # also where other sizes are 0
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.numel() // rest if rest else 0
    return x.reshape(sizes)


@operator("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    place = axis % x.ndim if axis < 0 else axis
    rows = prod(x.shape[:place])
    return x.reshape(rows, prod(x.shape[place:]))


@operator("Transpose")
def transpose(x: Tensor, *, perm: list[int] | None = None) -> Tensor:
    return x.permute(*(perm if perm is not None else reversed(range(x.ndim))))


@operator("Squeeze", host=(1,))
def squeeze(x: Tensor, given: Any = None, *, axes: list[int] | None = None) -> Tensor:
    listed = axes if given is None else ints(given)
    return x.squeeze() if listed is None else x.squeeze(listed)


@operator("Unsqueeze", host=(1,))
def unsqueeze(x: Tensor, given: Any = None, *, axes: list[int] | None = None) -> Tensor:
    listed = axes if given is None else ints(given)
    rank = x.ndim + len(listed or ())
    sizes = list(x.shape)
    for place in sorted(axis % rank for axis in listed or ()):
        sizes.insert(place, 1)
    return x.reshape(sizes)


@operator("Concat")
def concat(*inputs: Tensor, axis: int) -> Tensor:
    return Tensor.cat(list(inputs), axis)


@operator("Split", host=(1,))
def split(
    x: Tensor, given: Any = None, *, axis: int = 0, split: list[int] | None = None,
    num_outputs: int = 0, outputs: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    sizes = split if given is None else ints(given)
    if sizes is None:
        count, whole = num_outputs or outputs, x.shape[axis]
        each = -(-whole // count)
        sizes = [min(each, max(0, whole - n * each)) for n in range(count)]
    return x.split(sizes, axis)


@operator("Expand", host=(1,))
def expand(x: Tensor, wanted: Any) -> Tensor:
    return x.expand(np.broadcast_shapes(x.shape, tuple(ints(wanted))))


@operator("Tile", host=(1,))
def tile(x: Tensor, repeats: Any) -> Tensor:
    return x.repeat(*ints(repeats))


@operator("Slice", host=(1, 2, 3, 4))
def slice_(
    x: Tensor, first: Any = None, last: Any = None, given: Any = None, step: Any = None, *,
    starts: list[int] | None = None, ends: list[int] | None = None, axes: list[int] | None = None,
) -> Tensor:  # fmt: skip
    begins, stops = (ints(a) if a is not None else b for a, b in ((first, starts), (last, ends)))
    if begins is None or stops is None:
        raise BadArgument("expected starts and ends, got none")
    places = ints(given) if given is not None else axes or list(range(len(begins)))
    steps = ints(step) if step is not None else [1] * len(begins)
    key = [slice(None)] * x.ndim
    for axis, begin, stop, gap in zip(places, begins, stops, steps, strict=True):
        whole = x.shape[axis]
        if gap > 0:
            begin, stop = _bounded(begin, whole, 0, whole), _bounded(stop, whole, 0, whole)
        else:
            begin = _bounded(begin, whole, -1, whole - 1)
            stop = _bounded(stop, whole, -1, whole - 1)
        empty = stop <= begin if gap > 0 else stop >= begin
        key[axis] = slice(0, 0) if empty else slice(begin, None if stop < 0 else stop, gap)
    return x[tuple(key)]


def _bounded(place: int, size: int, low: int, high: int) -> int:
    return max(low, min(high, place + size if place < 0 else place))


@operator("Pad", host=(1, 2, 3))
def pad(
    x: Tensor, given: Any = None, constant: Any = None, axes: Any = None, *,
    mode: str = "constant", pads: list[int] | None = None, value: float = 0.0,
) -> Tensor:  # fmt: skip
    amounts = pads if given is None else ints(given)
    if amounts is None:
        raise BadArgument("expected pads, got none")
    chosen = [axis % x.ndim for axis in ints(axes)] if axes is not None else list(range(x.ndim))
    pairs = [(0, 0)] * x.ndim
    for n, axis in enumerate(chosen):
        pairs[axis] = (amounts[n], amounts[n + len(chosen)])
    cut = [(max(0, -a), size - max(0, -b)) for (a, b), size in zip(pairs, x.shape, strict=True)]
    inner = x.shrink(cut)
    around = [(max(0, a), max(0, b)) for a, b in pairs]
    if mode == "constant":
        filler = np.asarray(constant).reshape(-1)[0].item() if constant is not None else value
        return inner.pad(around, bool(filler) if x.dtype is dtypes.bool_ else filler)
    if mode not in ("reflect", "edge", "wrap"):
        raise NotSupported(f"ONNX operator Pad: mode {mode}")
    for axis, (before, after) in enumerate(around):
        if before or after:
            padded: Any = np.pad  # its modes are literals
            places = padded(np.arange(inner.shape[axis]), (before, after), mode)
            inner = inner.take(table(x, places), axis)
    return inner


@operator("Gather")
def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return x.take(index, axis)


@operator("GatherElements")
def gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return x.gather(axis, index)


def _counted(x: Tensor, count: int, axis: int, rank: int) -> Tensor:
    """Return 0, 1 ... along one of `rank` axes."""
    shape = [count if n == axis else 1 for n in range(rank)]
    return Tensor.arange(count, device=x.device).reshape(shape)


@operator("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    parts = tuple(index[..., n] for n in range(index.shape[-1]))
    batch = tuple(
        Tensor.arange(n, device=x.device).reshape(
            [n if a == b else 1 for b in range(index.ndim - 1)]
        )
        for a, n in enumerate(x.shape[:batch_dims])
    )
    return x[(*batch, *parts)]


@operator("ScatterElements", "Scatter")
def scatter_elements(
    x: Tensor, index: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    place = (index < 0).where(index + x.shape[axis], index)
    if reduction == "none":
        return x.scatter(axis, place, updates)
    words = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return x.scatter_reduce(axis, place, updates, words[reduction])


@operator("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """The indexed axes are joined to one, whose places are computed from the indices."""
    depth = index.shape[-1]
    indexed, rest = x.shape[:depth], x.shape[depth:]
    place = Tensor.zeros(index.shape[:-1], device=x.device, dtype="int64")
    for n, whole in enumerate(indexed):
        one = index[..., n].cast("int64")
        place = place * whole + (one < 0).where(one + whole, one)
    flat = x.reshape(prod(indexed), prod(rest))
    count = place.numel()
    places = place.reshape(count, 1).expand(count, flat.shape[1])
    values = updates.reshape(count, -1 if count else flat.shape[1])
    result: Tensor = scatter_elements(flat, places, values, reduction=reduction)
    return result.reshape(x.shape)


@operator("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, at: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    place = axis % past.ndim
    count, whole = update.shape[place], past.shape[place]
    shape = [count if n == place else 1 for n in range(past.ndim)]
    index = Tensor.arange(count, device=past.device).reshape(shape)
    if at is not None:
        index = index + at.cast("int64").reshape([-1] + [1] * (past.ndim - 1))
    if mode == "circular":
        index = index % whole
    return past.scatter(place, index.expand(update.shape), update)


@operator("OneHot", host=(1,))
def one_hot(index: Tensor, depth: Any, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(np.asarray(depth).reshape(-1)[0])
    place = axis % (index.ndim + 1)
    whole = index.cast("int64")
    whole = (whole < 0).where(whole + count, whole).unsqueeze(place)
    shape = [count if n == place else 1 for n in range(whole.ndim)]
    apart = (whole - Tensor.arange(count, device=index.device).reshape(shape)).abs()
    return (apart < 1).where(values[1], values[0])


@operator("Trilu", host=(1,))
def trilu(x: Tensor, k: Any = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(np.asarray(k).reshape(-1)[0])
    if not x.numel():
        return x
    return x.triu(diagonal) if upper else x.tril(diagonal)


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        wide = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        wide = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return wide.reshape(n, c // (b * b), h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(*order).reshape(n, c * b * b, h // b, w // b)


@operator("ReverseSequence")
def reverse_sequence(
    x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    shape = [x.shape[time_axis] if n == time_axis else 1 for n in range(x.ndim)]
    place = Tensor.arange(x.shape[time_axis], device=x.device).reshape(shape)
    sizes = [x.shape[batch_axis] if n == batch_axis else 1 for n in range(x.ndim)]
    length = lengths.cast("int64").reshape(sizes)
    index = (place < length).where(length - 1 - place, place)
    return x.gather(time_axis, index.expand(x.shape))


@operator("CenterCropPad", host=(1,))
def center_crop_pad(x: Tensor, wanted: Any, *, axes: list[int] | None = None) -> Tensor:
    places = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    box, pairs = [(0, n) for n in x.shape], [(0, 0)] * x.ndim
    for axis, count in zip(places, ints(wanted), strict=True):
        have = x.shape[axis]
        if count < have:
            start = (have - count) // 2
            box[axis] = (start, start + count)
        else:
            pairs[axis] = ((count - have) // 2, count - have - (count - have) // 2)
    return x.shrink(box).pad(pairs)


@operator("TopK", host=(1,))
def top_k(
    x: Tensor, count: Any, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    number = int(np.asarray(count).reshape(-1)[0])
    if number > x.shape[axis]:
        raise BadArgument(f"TopK: expected at most {x.shape[axis]} elements, got {number}")
    return x.topk(number, axis, bool(largest))


@operator("CumSum", host=(1,))
def cum_sum(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    place = int(np.asarray(axis).reshape(-1)[0]) % x.ndim
    return _running(x, place, exclusive, reverse, "sum")


@operator("CumProd", host=(1,))
def cum_prod(x: Tensor, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    place = int(np.asarray(axis).reshape(-1)[0]) % x.ndim
    return _running(x, place, exclusive, reverse, "prod")


def _running(x: Tensor, axis: int, exclusive: int, reverse: int, kind: str) -> Tensor:
    wide = x.flip(axis) if reverse else x
    if exclusive:
        pairs = [(1, 0) if n == axis else (0, 0) for n in range(x.ndim)]
        box = [(0, size) for size in x.shape]
        wide = wide.pad(pairs, 0 if kind == "sum" else 1).shrink(box)
    total = wide.cumsum(axis) if kind == "sum" else wide.cumprod(axis)
    total = total.cast(x.dtype)
    return total.flip(axis) if reverse else total
