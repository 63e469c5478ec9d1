"""Transposed convolution and interpolation, held against their definitions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.compiler.methods import convolution
from ugpu.compiler.methods.shape import resampling
from ugpu.compiler.methods.winograd import TOLERANCE
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.config import Config

Array = NDArray[Any]
Pair = tuple[int, int]


def numbers(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def spread(
    image: Array, weight: Array, stride: Pair, padding: Pair, more: Pair, groups: int, gaps: Pair
) -> Array:
    """Each element, times the window, is added where it falls."""
    batch, channels, height, width = image.shape
    _, each, rows, columns = weight.shape
    size = [
        (n - 1) * s + g * (k - 1) + m + 1
        for n, s, k, m, g in zip((height, width), stride, (rows, columns), more, gaps, strict=True)
    ]
    result = np.zeros((batch, groups * each, *size))
    share = channels // groups
    for group, i, j in np.ndindex(groups, rows, columns):
        inputs = image[:, group * share : (group + 1) * share].astype(np.float64)
        tap = weight[group * share : (group + 1) * share, :, i, j].astype(np.float64)
        ends = [
            (n - 1) * s + k * g + 1
            for n, s, k, g in zip((height, width), stride, (i, j), gaps, strict=True)
        ]
        places = (slice(i * gaps[0], ends[0], stride[0]), slice(j * gaps[1], ends[1], stride[1]))
        part = result[:, group * each : (group + 1) * each]
        part[(..., *places)] += np.einsum("ncyx,co->noyx", inputs, tap)
    (top, left), (down, across) = padding, size
    return result[:, :, top : down - top, left : across - left]


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_spread_windows(cpu: Device, data: st.DataObject) -> None:
    draw = data.draw
    two = st.tuples(st.integers(1, 3), st.integers(1, 3))
    stride, gaps, window = draw(two), draw(two), draw(two)
    groups = draw(st.sampled_from([1, 2]))
    image = numbers(1, (draw(st.integers(1, 2)), 2 * groups, *draw(two)))
    weight = numbers(2, (2 * groups, draw(st.integers(1, 3)), *window))
    most = [max(s, g) - 1 for s, g in zip(stride, gaps, strict=True)]
    more = draw(st.integers(0, most[0])), draw(st.integers(0, most[1]))
    full = [
        (n - 1) * s + g * (k - 1) + m + 1
        for n, s, k, m, g in zip(image.shape[2:], stride, window, more, gaps, strict=True)
    ]
    padding = draw(st.integers(0, (full[0] - 1) // 2)), draw(st.integers(0, (full[1] - 1) // 2))
    wanted = spread(image, weight, stride, padding, more, groups, gaps)
    found = Tensor(image, device=cpu).conv_transpose2d(
        Tensor(weight, device=cpu), stride=stride, padding=padding, output_padding=more,
        groups=groups, dilation=gaps,
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["phases", "shifted", "looked up"])
@pytest.mark.parametrize(
    ("shape", "weights", "stride", "padding", "more"),
    [
        ((2, 8, 9, 7), (8, 10, 4, 4), (2, 2), (1, 1), (0, 0)),
        ((1, 3, 5, 6), (3, 2, 3, 3), (2, 2), (1, 1), (1, 1)),
        ((1, 3, 4, 6), (3, 2, 5, 2), (3, 1), (0, 1), (2, 0)),
        ((1, 2, 3, 4), (2, 3, 2, 3), (3, 4), (1, 0), (2, 3)),  # places that no window has
    ],
)
def test_each_way(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, way: str, shape: tuple[int, ...],
    weights: tuple[int, ...], stride: Pair, padding: Pair, more: Pair,
) -> None:  # fmt: skip
    monkeypatch.setattr(resampling, "ORDERED", 0 if way == "phases" else 1 << 20)
    monkeypatch.setattr(resampling, "FILLED", 100)
    monkeypatch.setattr(resampling, "TERMS", 0 if way == "looked up" else 16)
    image, weight = numbers(9, shape), numbers(10, weights)
    wanted = spread(image, weight, stride, padding, more, 1, (1, 1))
    found = Tensor(image, device=cpu).conv_transpose2d(
        Tensor(weight, device=cpu), stride=stride, padding=padding, output_padding=more
    )
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_a_decoder_layer(cpu: Device) -> None:
    image, weight, bias = numbers(3, (2, 8, 9, 7)), numbers(4, (8, 10, 4, 4)), numbers(5, (10,))
    wanted = spread(image, weight, (2, 2), (1, 1), (0, 0), 1, (1, 1)) + bias[:, None, None]
    found = Tensor(image, device=cpu).conv_transpose2d(
        Tensor(weight, device=cpu), Tensor(bias, device=cpu), stride=2, padding=1
    )
    assert found.shape == (2, 10, 18, 14) and found.memory_plan().kernels <= 2
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "each", "window", "padding", "groups"),
    [
        (16, 24, (4, 4), (0, 0), 1),
        (16, 24, (4, 4), (3, 1), 1),
        (16, 24, (3, 3), (1, 1), 1),
        (4, 3, (4, 4), (1, 2), 2),
        (3, 2, (3, 4), (2, 0), 1),
        (2, 2, (2, 3), (2, 1), 1),  # cut by more than windows reach beyond
    ],
)
def test_a_stride_of_one(
    cpu: Device, channels: int, each: int, window: Pair, padding: Pair, groups: int
) -> None:
    image, weight = numbers(6, (1, channels, 24, 23)), numbers(7, (channels, each, *window))
    wanted = spread(image, weight, (1, 1), padding, (0, 0), groups, (1, 1))
    scale = np.sqrt(spread(image**2, weight**2, (1, 1), padding, (0, 0), groups, (1, 1)))
    found = Tensor(image, device=cpu).conv_transpose2d(weight, padding=padding, groups=groups)
    assert (np.abs(found.numpy() - wanted) <= TOLERANCE * scale).all()


def test_a_stride_of_one_is_a_kernel_with_winograd_tiles(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Tensor.zeros(1, 64, 32, 32, device=cpu).realize()
    weight = Tensor.zeros(64, 32, 4, 4, device=cpu).realize()
    assert image.conv_transpose2d(weight).memory_plan().kernels == 1
    monkeypatch.setattr(convolution, "config", lambda: Config(winograd=False))
    assert image.conv_transpose2d(weight).memory_plan().kernels == 3, "weights, padding, product"


def test_it_turns_a_convolution_round(cpu: Device) -> None:
    """<conv(x), y> = <x, conv_transpose(y)>."""
    x, weight, y = numbers(6, (1, 3, 11, 8)), numbers(7, (4, 3, 3, 2)), numbers(8, (1, 4, 6, 4))
    one, two, three = (Tensor(each, device=cpu) for each in (x, weight, y))
    there = one.conv2d(two, stride=2, padding=(1, 0))
    back = three.conv_transpose2d(two, stride=2, padding=(1, 0), output_padding=(0, 0))
    assert there.shape == y.shape and back.shape == x.shape
    assert (there * three).sum().item() == pytest.approx((one * back).sum().item(), rel=1e-4)


def test_refused_windows(cpu: Device) -> None:
    x = Tensor(np.zeros((1, 4, 5, 5), np.float32), device=cpu)
    for weight, options, message in (
        ((3, 2, 3, 3), {}, "do not match"),
        ((4, 2, 3, 3), {"groups": 3}, "do not match"),
        ((4, 2, 3, 3), {"output_padding": 1}, "output_padding must be less"),
        ((4, 2, 1, 1), {"padding": 3}, "give -1 x -1"),
        ((2, 3, 3), {}, "expected 4 axes|must have 4 axes"),
    ):
        kernel = Tensor(np.zeros(weight, np.float32), device=cpu)
        given_: dict[str, Any] = dict(options)
        with pytest.raises(BadArgument, match=message):
            x.conv_transpose2d(kernel, **given_)


# ---- interpolation -----------------------------------------------------------------------------


def along(array: Array, axis: int, count: int, step: Fraction, mode: str, corners: bool) -> Array:
    """One axis, element by element, in exact places."""
    have = array.shape[axis]
    rows = []
    for i in range(count):
        if mode == "nearest":
            rows.append(array.take(min(math.floor(i * step), have - 1), axis))
            continue
        if corners:
            place = Fraction(i * (have - 1), max(1, count - 1))
        else:
            place = max(Fraction(0), (i + Fraction(1, 2)) * step - Fraction(1, 2))
        first = min(math.floor(place), have - 1)
        part = float(place - math.floor(place))
        next_ = min(first + 1, have - 1)
        rows.append(array.take(first, axis) * (1 - part) + array.take(next_, axis) * part)
    return np.stack(rows, axis)


def resized(
    array: Array, counts: list[int], steps: list[Fraction], mode: str, corners: bool
) -> Array:
    wide = array.astype(np.float64)
    for axis, (count, step) in enumerate(zip(counts, steps, strict=True), 2):
        wide = along(wide, axis, count, step, mode, corners)
    return wide


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_resized_by_size(cpu: Device, data: st.DataObject) -> None:
    sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
    have, wanted = data.draw(sizes), data.draw(sizes)
    mode, corners = data.draw(
        st.sampled_from([("nearest", False), ("bilinear", False), ("bilinear", True)])
    )
    image = numbers(1, (2, 3, *have))
    steps = [Fraction(n, m) for n, m in zip(have, wanted, strict=True)]
    found = Tensor(image, device=cpu).interpolate(wanted, mode=mode, align_corners=corners)
    expected = resized(image, list(wanted), steps, mode, corners)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [2, 1.7, 1 / 3])
def test_resized_by_scale(cpu: Device, scale: float) -> None:
    image = numbers(2, (1, 2, 9, 13))
    step = 1 / Fraction(scale).limit_denominator(1000)
    counts = [int(9 / step), int(13 / step)]
    tensor = Tensor(image, device=cpu)
    for mode, corners in (("nearest", False), ("bilinear", False), ("bilinear", True)):
        found = tensor.interpolate(scale=scale, mode=mode, align_corners=corners)
        assert found.memory_plan().kernels <= 4
        expected = resized(image, counts, [step, step], mode, corners)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_other_numbers_of_axes(cpu: Device) -> None:
    line, solid = numbers(3, (2, 1, 5)), numbers(4, (1, 2, 3, 4, 5))
    found = Tensor(line, device=cpu).interpolate(8, mode="linear")
    np.testing.assert_allclose(
        found.numpy(), resized(line, [8], [Fraction(5, 8)], "linear", False), rtol=1e-5, atol=1e-6
    )
    found = Tensor(solid, device=cpu).interpolate((6, 2, 5), mode="trilinear", align_corners=True)
    steps = [Fraction(3, 6), Fraction(4, 2), Fraction(1)]
    np.testing.assert_allclose(
        found.numpy(), resized(solid, [6, 2, 5], steps, "linear", True), rtol=1e-5, atol=1e-6
    )
    whole = np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2)
    grown = Tensor(whole, device=cpu).interpolate(scale=2)
    assert grown.dtype.name == "uint8"
    assert np.array_equal(grown.numpy()[0, 0], whole[0, 0].repeat(2, 0).repeat(2, 1))


def test_refused_sizes(cpu: Device) -> None:
    x = Tensor(np.zeros((1, 1, 4, 4), np.float32), device=cpu)
    refused: list[dict[str, Any]] = [
        {}, {"size": 2, "scale": 2}, {"size": (2, 2, 2)}, {"size": 0}, {"scale": 0.1},
        {"size": 2, "mode": "linear"}, {"size": 2, "mode": "cubic"},
        {"size": 2, "align_corners": True},
    ]  # fmt: skip
    for options in refused:
        with pytest.raises(BadArgument, match="interpolate"):
            x.interpolate(**options)
