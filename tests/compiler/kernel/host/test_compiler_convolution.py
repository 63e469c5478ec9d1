"""Convolutions and pooling beside plain loops over windows, at sizes that fill no tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ugpu.compiler import Tensor
from ugpu.compiler.dtype import bfloat16
from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.kernel.host.nest import Axis, deep, joined
from ugpu.compiler.kernel.host.products.tiles import Problem
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Pair = tuple[int, int]


def windows(x: np.ndarray, size: Pair, stride: Pair, padding: Pair, dilation: Pair,
            outside: float = 0) -> np.ndarray:  # fmt: skip
    """[batch, channels, out height, out width, height, width], by plain indexing."""
    around = ((0, 0), (0, 0), *((n, n) for n in padding))
    padded = np.pad(x, around, constant_values=outside)
    counts = [
        (full - (length - 1) * gap - 1) // step + 1
        for full, length, step, gap in zip(padded.shape[2:], size, stride, dilation, strict=True)
    ]
    rows, columns = (
        np.arange(count)[:, None] * step + np.arange(length) * gap
        for count, step, length, gap in zip(counts, stride, size, dilation, strict=True)
    )
    seen: np.ndarray = padded[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    return seen


def convolve(x: np.ndarray, weight: np.ndarray, stride: Pair, padding: Pair, dilation: Pair,
             groups: int) -> np.ndarray:  # fmt: skip
    seen = windows(x, weight.shape[2:], stride, padding, dilation)
    batch, channels, rows, columns, height, width = seen.shape
    seen = seen.reshape(batch, groups, channels // groups, rows, columns, height, width)
    split = weight.reshape(groups, -1, *weight.shape[1:])
    out = np.einsum("ngcyxhw,gochw->ngoyx", seen.astype(np.float64), split.astype(np.float64))
    result: np.ndarray = out.reshape(batch, -1, rows, columns)
    return result


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    seed=st.integers(0, 1 << 30),
    batch=st.sampled_from([1, 2, 3]),
    each=st.sampled_from([1, 3, 8, 17, 70]),
    out=st.sampled_from([1, 5, 8, 33]),
    groups=st.sampled_from([1, 1, 2]),
    image=st.tuples(st.integers(7, 15), st.integers(7, 19)),
    size=PAIRS,
    stride=PAIRS,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=PAIRS,
    name=st.sampled_from(["float32", "float16", "bfloat16", "int32", "uint8"]),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_convolutions_equal_plain_loops(
    cpu: Device, seed: int, batch: int, each: int, out: int, groups: int, image: Pair, size: Pair,
    stride: Pair, padding: Pair, dilation: Pair, name: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    low = 0 if name == "uint8" else -4
    # quarters and small integers: every sum is exact, also in float32
    scale = 0.25 if "float" in name else 1
    x = rng.integers(low, 5, (batch, each * groups, *image)) * scale
    weight = rng.integers(low, 5, (out * groups, each, *size)) * scale
    made = "float32" if name == "bfloat16" else name
    a, w = (Tensor(array.astype(made), device=cpu) for array in (x, weight))
    if name == "bfloat16":
        a, w = a.cast(bfloat16), w.cast(bfloat16)
    result = a.conv2d(w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    wanted = convolve(x, weight, stride, padding, dilation, groups)
    assert result.shape == wanted.shape
    if name in ("float16", "bfloat16"):
        assert np.allclose(result.cast("float32").numpy(), wanted, rtol=2.0**-8, atol=0)
    else:
        assert (result.numpy() == wanted.astype(result.numpy().dtype)).all()


def test_bias_and_what_follows_are_one_kernel(cpu: Device) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 20, 9, 9)).astype(np.float32)
    weight = rng.standard_normal((24, 20, 3, 3)).astype(np.float32)
    bias = rng.standard_normal(24).astype(np.float32)
    a, w, b = (Tensor(each, device=cpu) for each in (x, weight, bias))
    result = a.conv2d(w, b, padding=1).relu()
    assert result.memory_plan().kernels == 2  # the padded image, and the product
    wanted = convolve(x, weight, (1, 1), (1, 1), (1, 1), 1) + bias[:, None, None]
    assert np.allclose(result.numpy(), np.maximum(wanted, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, None, 0), (3, 2, 1), ((2, 3), 1, 1)])
def test_pooling(cpu: Device, size: int | Pair, stride: int | None, padding: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 11, 12)).astype(np.float32)
    sizes = (size, size) if isinstance(size, int) else size
    steps = sizes if stride is None else (stride, stride)
    around, apart = (padding, padding), (1, 1)
    tensor = Tensor(x, device=cpu)
    largest = windows(x, sizes, steps, around, apart, -np.inf).max((-1, -2))
    assert (tensor.max_pool2d(size, stride=stride, padding=padding).numpy() == largest).all()
    mean = windows(x, sizes, steps, around, apart).mean((-1, -2))
    pooled = tensor.avg_pool2d(size, stride=stride, padding=padding).numpy()
    assert np.allclose(pooled, mean, rtol=1e-5, atol=1e-6)


def test_pooling_integers_pads_with_their_lowest(cpu: Device) -> None:
    x = -np.ones((1, 1, 2, 2), np.int32)
    assert (Tensor(x, device=cpu).max_pool2d(3, stride=1, padding=1).numpy() == -1).all()


@pytest.mark.parametrize(
    ("shape", "weight", "options", "said"),
    [
        ((8, 8), (4, 3, 3, 3), {}, "4 axes"),
        ((1, 4, 8, 8), (4, 3, 3, 3), {}, "do not match"),
        ((1, 4, 8, 8), (4, 2, 3, 3), {"groups": 3}, "do not match"),
        ((1, 3, 8, 8), (4, 3, 9, 3), {}, "window of 9"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"stride": 0}, "expected an int or a pair"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"padding": (1, 2, 3)}, "expected an int or a pair"),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"bias": (3,)}, "bias"),
    ],
)
def test_what_does_not_fit_is_named(
    cpu: Device, shape: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any],
    said: str,
) -> None:  # fmt: skip
    given_options = dict(options)
    bias = given_options.pop("bias", None)
    extra = None if bias is None else Tensor(np.zeros(bias, np.float32), device=cpu)
    x, w = (Tensor(np.zeros(each, np.float32), device=cpu) for each in (shape, weight))
    with pytest.raises(BadArgument, match=said):
        x.conv2d(w, extra, **given_options)


def test_axes_take_as_many_ranges_as_they_need() -> None:
    n, y, x, k = Range("n", 8), Range("y", 7), Range("x", 7), Range("k", 600)
    assert joined((n, y, x), 384) == Axis(n, (y, x))
    assert joined((n, y, x), 40) == Axis(y, (x,))
    assert joined((k,), 384) == Axis(k)
    assert deep((n, y, x), 256) == Axis(n, (y, x))
    assert deep((y, k), 4) == Axis(k)  # what is too long is looped over outside


@given(
    rows=st.integers(1, 5000), columns=st.integers(1, 5000), unit=st.sampled_from([1, 7, 56, 900]),
    depth=st.integers(4, 320), threads=st.integers(1, 64), lanes=st.sampled_from([4, 8, 16]),
)  # fmt: skip
def test_tiles_that_are_chosen_fit_or_are_the_smallest(
    rows: int, columns: int, unit: int, depth: int, threads: int, lanes: int
) -> None:
    inner = () if unit == 1 else (Range("x", unit),)
    columns_axis = Axis(Range("y", columns), inner)
    registers = 32 if lanes == 16 else 16
    problem = Problem(
        Axis(Range("r", rows)), columns_axis, 1, depth, depth, 64 // 16, lanes, registers, threads
    )
    tile = problem.best()
    assert tile.height * tile.vectors + tile.vectors + 1 <= registers
    assert tile.columns >= 1 and tile.rows >= 1
    if unit == 1:
        assert problem.fits(tile), tile
