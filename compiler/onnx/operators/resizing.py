"""Resize, grids of positions, and regions of images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.shapes import ints
from ugpu.compiler.onnx.operators.tables import table
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported

Weights = tuple[NDArray[np.int64], NDArray[np.float32]]  # [result, taps] each


def _positions(
    mode: str, size: int, count: int, scale: float, roi: tuple[float, float]
) -> NDArray[np.float64]:
    """Return the position in the source of each element of the result."""
    x = np.arange(count, dtype=np.float64)
    if mode == "half_pixel":
        return (x + 0.5) / scale - 0.5
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (size - 1) / (scale * size - 1) if count > 1 else x * 0
    if mode == "pytorch_half_pixel":
        return (x + 0.5) / scale - 0.5 if count > 1 else x * 0
    if mode == "half_pixel_symmetric":
        adjusted = count / (scale * size)
        return size / 2 * (1 - adjusted) + (x + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        start, end = roi
        if count > 1:
            return start * (size - 1) + x * (end - start) * (size - 1) / (count - 1)
        return x * 0 + 0.5 * (start + end) * (size - 1)
    raise NotSupported(f"ONNX operator Resize: coordinate_transformation_mode {mode}")


def _cubic(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _taps(
    where: NDArray[np.float64], size: int, mode: str, scale: float, antialias: bool, cubic: float,
    exclude: bool,
) -> Weights:  # fmt: skip
    """Return which elements of the source each element of the result uses, and their weights."""
    shrink = min(1.0, scale) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    first = np.floor(where - reach).astype(np.int64) + 1
    count = math.ceil(2 * reach)
    index = first[:, None] + np.arange(count + (antialias and shrink < 1))
    distance = (where[:, None] - index) * shrink
    weight = np.maximum(0, 1 - np.abs(distance)) if mode == "linear" else _cubic(distance, cubic)
    if exclude:
        weight = np.where((index >= 0) & (index < size), weight, 0)
    if exclude or antialias:
        weight = weight / weight.sum(1, keepdims=True)
    return np.clip(index, 0, size - 1), weight.astype(np.float32)


def _nearest(where: NDArray[np.float64], mode: str, size: int) -> NDArray[np.int64]:
    modes: dict[str, Callable[[Any], Any]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    if mode not in modes:
        raise NotSupported(f"ONNX operator Resize: nearest_mode {mode}")
    places: NDArray[np.int64] = modes[mode](where).astype(np.int64)
    return np.clip(places, 0, size - 1)


def _kept(
    policy: str, scales: list[float], sizes: list[int], have: list[int]
) -> tuple[list[float], list[int]]:
    """Return scales and sizes that keep the proportions."""
    if policy == "stretch":
        return scales, sizes
    one = min(scales) if policy == "not_larger" else max(scales)
    return [one] * len(scales), [math.floor(one * h + 0.5) for h in have]


@operator("Resize", "Upsample", host=(1, 2, 3))
def resize(
    x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
    axes: list[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", opset: int,
) -> Tensor:  # fmt: skip
    if opset < 11:  # Upsample: scales are the second input
        roi, scales = None, roi
        coordinate_transformation_mode, nearest_mode = "asymmetric", "floor"
    places = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    have = [x.shape[place] for place in places]
    if sizes is not None and np.size(sizes):
        counts = ints(sizes)
        factors = [c / h for c, h in zip(counts, have, strict=True)]
        factors, counts = _kept(keep_aspect_ratio_policy, factors, counts, have)
    else:
        factors = [float(s) for s in np.asarray(scales).reshape(-1)]
        counts = [math.floor(h * s) for h, s in zip(have, factors, strict=True)]
    area = (
        [float(r) for r in np.asarray(roi).reshape(-1)] if roi is not None and np.size(roi) else []
    )
    area = area or [0.0] * len(places) + [1.0] * len(places)
    wide = x if mode == "nearest" else x.float()
    cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    for n, place in enumerate(places):
        if counts[n] == have[n] and factors[n] == 1 and not cropped:
            continue
        span = (area[n], area[n + len(places)])
        where = _positions(coordinate_transformation_mode, have[n], counts[n], factors[n], span)
        if mode == "nearest":
            wide = wide.take(table(x, _nearest(where, nearest_mode, have[n])), place)
        else:
            index, weight = _taps(
                where, have[n], mode, factors[n], bool(antialias), cubic_coeff_a,
                bool(exclude_outside),
            )  # fmt: skip
            wide = _weighted(wide, place, index, weight)
        if cropped:
            outside = (where < 0) | (where > have[n] - 1)
            shape = [counts[n] if k == place else 1 for k in range(x.ndim)]
            mask = table(x, outside.reshape(shape))
            wide = mask.where(extrapolation_value, wide)
    if mode != "nearest" and x.dtype.is_integer:
        wide = wide.round().clamp(0.0, 255.0) if x.dtype.kind == "u" else wide.round()
    return wide.cast(x.dtype)


def _weighted(x: Tensor, axis: int, index: NDArray[np.int64], weight: Any) -> Tensor:
    """Return sums of elements along an axis: result[i] is the sum of x[index[i]] * weight[i]."""
    count, taps = index.shape
    shape = [count if n == axis else 1 for n in range(x.ndim)]
    total = None
    for n in range(taps):
        factor = table(x, weight[:, n]).reshape(shape)
        part = x.take(table(x, index[:, n]), axis) * factor
        total = part if total is None else total + part
    assert total is not None
    return total


@operator("AffineGrid", host=(1,))
def affine_grid(theta: Tensor, size: Any, *, align_corners: int = 0) -> Tensor:
    shape = ints(size)[2:]
    axes = []
    for n, count in enumerate(shape):
        place = Tensor.arange(count, device=theta.device).float()
        if align_corners:
            place = place * (2 / (count - 1)) - 1 if count > 1 else place
        else:
            place = (place * 2 + 1) / count - 1
        view = [count if k == n else 1 for k in range(len(shape))]
        axes.append(place.reshape(view).expand(shape))
    ones = axes[0] * 0 + 1
    grid = Tensor.stack([*reversed(axes), ones], -1).reshape(-1, len(shape) + 1)
    result = grid @ theta.transpose(1, 2)
    return result.reshape(theta.shape[0], *shape, len(shape)).cast(theta.dtype)


@operator("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    axes = x.ndim - 2
    places = []
    for n in range(axes):
        size = x.shape[n + 2]
        g = grid[..., axes - 1 - n].float()
        place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
        if kind != "cubic":
            place = _inside(place, size, padding_mode, align_corners)
        places.append(place)
    taps: list[list[tuple[Tensor, Tensor | None]]] = []
    for place in places:
        if kind == "nearest":
            taps.append([(place.round(), None)])
            continue
        low = place.floor()
        part = place - low
        if kind == "linear":
            taps.append([(low, 1 - part), (low + 1, part)])
            continue
        taps.append([(low + k, _cubic_tensor(part - k)) for k in (-1, 0, 1, 2)])
    total: Tensor | None = None
    for choice in np.ndindex(*(len(each) for each in taps)):
        weight, index, valid = None, [], None
        for n, k in enumerate(choice):
            place, factor = taps[n][k]
            size = x.shape[n + 2]
            if kind == "cubic":
                place = _inside(place, size, padding_mode, align_corners)
            whole = place.cast("int64")
            fits = (whole >= 0) & (whole < size)
            valid = fits if valid is None else valid & fits
            index.append(whole.clamp(0, size - 1))
            if factor is not None:
                weight = factor if weight is None else weight * factor
        value = _at(x, index)
        assert valid is not None
        value = valid.unsqueeze(1).where(value, 0)
        value = value if weight is None else value * weight.unsqueeze(1)
        total = value if total is None else total + value
    assert total is not None
    return total.cast(x.dtype)


def _cubic_tensor(distance: Tensor, a: float = -0.75) -> Tensor:
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return (d <= 1).where(near, (d < 2).where(far, 0.0))


def _inside(place: Tensor, size: int, mode: str, align_corners: int) -> Tensor:
    if mode == "border":
        return place.clamp(0.0, float(size - 1))
    if mode != "reflection":
        return place
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return place * 0
    apart = (place - low).abs()
    turns = (apart / span).floor()
    rest = apart - turns * span
    odd = turns.fmod(2.0) > 0
    return (odd.where(high - rest, rest + low)).clamp(0.0, float(size - 1))


def _at(x: Tensor, index: list[Tensor]) -> Tensor:
    """Return x[n, :, index...] for indices [batch, *out]: [batch, channels, *out]."""
    batch = Tensor.arange(x.shape[0], device=x.device).reshape([-1] + [1] * (index[0].ndim - 1))
    moved = x.permute(0, *range(2, x.ndim), 1)
    value = moved[(batch, *index)]
    return value.permute(0, value.ndim - 1, *range(1, value.ndim - 1))


@operator("RoiAlign")
def roi_align(
    x: Tensor, rois: Tensor, batches: Tensor, *, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    if sampling_ratio <= 0:
        raise NotSupported("ONNX operator RoiAlign: sampling_ratio 0 depends on the regions' sizes")
    half = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    edges = rois.float() * spatial_scale - half
    weights = []
    for axis, count in ((1, output_height), (0, output_width)):
        begin, end = edges[:, axis], edges[:, axis + 2]
        length = end - begin if half else (end - begin).maximum(1.0)
        samples = count * sampling_ratio
        step = (Tensor.arange(samples, device=x.device).float() + 0.5) / samples
        place = begin.unsqueeze(1) + length.unsqueeze(1) * step  # [rois, samples]
        size = x.shape[2 if axis else 3]
        outside = (place < -1) | (place > size)
        place = place.clamp(0.0, float(size - 1))
        low = place.floor()
        part = place - low
        cell = Tensor.arange(size, device=x.device).float()
        lower: Any = cell == low.unsqueeze(2)
        upper: Any = cell == (low + 1).clamp(0.0, float(size - 1)).unsqueeze(2)
        weight = lower.cast("float32") * (1 - part).unsqueeze(2)
        weight = weight + upper.cast("float32") * part.unsqueeze(2)
        weights.append(outside.unsqueeze(2).where(0.0, weight))  # [rois, samples, size]
    chosen = x.take(batches, 0)  # [rois, channels, height, width]
    if mode == "avg":
        rows = weights[0].unsqueeze(1) @ chosen.float()
        both = rows @ weights[1].transpose(1, 2).unsqueeze(1)
        shape = (*both.shape[:2], output_height, sampling_ratio, output_width, sampling_ratio)
        return both.reshape(shape).mean((3, 5)).cast(x.dtype)
    raise NotSupported(f"ONNX operator RoiAlign: mode {mode}")
