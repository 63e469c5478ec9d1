"""Winograd's tiles: exact in exact arithmetic, within their tolerance in float32, and a choice."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.methods import convolution
from ugpu.compiler.methods.winograd import TOLERANCE, WINDOWS, matrices
from ugpu.compiler.pattern import cost
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.config import Config


def plain(x: np.ndarray, weight: np.ndarray, around: int) -> np.ndarray:
    """In float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (around, around), (around, around)))
    window = weight.shape[2]
    rows, columns = x.shape[2] + 1 - window, x.shape[3] + 1 - window
    total = np.zeros((x.shape[0], weight.shape[0], rows, columns))
    for i in range(window):
        for j in range(window):
            part = x[:, :, i : i + rows, j : j + columns]
            total += np.einsum("ncyx,oc->noyx", part, weight[:, :, i, j].astype(np.float64))
    return total


@pytest.mark.parametrize("window", WINDOWS)
def test_the_matrices_convolve_exactly(window: int) -> None:
    """One tile, in fractions: RESULT ((WEIGHT g) (IMAGE d)) is the correlation."""
    exact = {
        name: [[Fraction(float(x)).limit_denominator(600) for x in row] for row in matrix]
        for name, matrix in matrices(window).items()
    }
    random = np.random.default_rng(0)
    image = [Fraction(int(x)) for x in random.integers(-9, 9, 36)]
    weight = [Fraction(int(x)) for x in random.integers(-9, 9, window**2)]

    def times(matrix: list[list[Fraction]], flat: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, flat, strict=True)), Fraction(0)) for row in matrix]

    left = times(exact["weight"], weight)
    right = times(exact["image"], image)
    results = times(exact["result"], [a * b for a, b in zip(left, right, strict=True)])
    places, results_of = list(product(range(window), repeat=2)), range(7 - window)
    expected = [
        sum(weight[window * i + j] * image[6 * (y + i) + x + j] for i, j in places)
        for y, x in product(results_of, repeat=2)
    ]
    assert results == expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("batch", "channels", "size", "out", "around"),
    [
        (1, 8, (8, 8), 8, 1),
        (2, 17, (7, 13), 9, 0),
        (3, 5, (3, 9), 12, 2),
        (1, 130, (14, 14), 9, 1),
        (1, 3, (2, 2), 2, 1),
        (2, 33, (70, 6), 29, 1),  # several groups, the last with fewer tiles
        (1, 9, (3, 67), 17, 0),  # one row, which is not held: products with matrices
        (1, cost.TILES_MOST, (6, 6), 3, 1),
        (1, cost.TILES_MOST + 1, (6, 6), 3, 1),
    ],
)
def test_within_the_tolerance(
    cpu: Device, batch: int, channels: int, size: tuple[int, int], out: int, around: int,
    window: int,
) -> None:  # fmt: skip
    """size: of an image for windows of 3; for others as many results."""
    random = np.random.default_rng(0)
    tall, wide = (each + window - 3 for each in size)
    x = random.standard_normal((batch, channels, tall, wide)).astype(np.float32)
    weight = random.standard_normal((out, channels, window, window)).astype(np.float32)
    bias = random.standard_normal(out).astype(np.float32)
    image = Tensor(x, device=cpu)
    result = image.conv2d(weight, bias, padding=around, winograd=True).relu().numpy()
    expected = np.maximum(plain(x, weight, around) + bias[:, None, None], 0)
    scale = np.sqrt(plain(x**2, weight**2, around))
    assert (np.abs(result - expected) <= TOLERANCE * scale).all()
    exactly = image.conv2d(weight, bias, padding=around, winograd=False).relu().numpy()
    assert not np.array_equal(exactly, result), "the switch chooses another way"


def test_chosen_where_it_pays_and_not_where_it_is_forbidden(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cost.winograd((8, 128, 28, 28), 128, 3, 49, 16)
    assert cost.winograd((1, 64, 56, 56), 64, 3, 196, 16)
    assert not cost.winograd((8, 512, 7, 7), 512, 3, 4, 16)
    assert cost.winograd((8, 512, 7, 7), 512, 3, 4, 4)
    image = Tensor.zeros(2, 256, 16, 16, device=cpu).realize()
    weight = Tensor.zeros(256, 256, 3, 3, device=cpu).realize()

    def kernels(**options: Any) -> int:
        return image.conv2d(weight, **options).memory_plan().kernels

    assert kernels(padding=1) == 1
    assert kernels(padding=1, winograd=False) == 2, "an image with its padding, and a product"
    assert kernels(padding=1, stride=2) == 2
    monkeypatch.setattr(convolution, "config", lambda: Config(winograd=False))
    assert kernels(padding=1) == 2


def test_refused_where_it_cannot_be(cpu: Device) -> None:
    image, weight = Tensor.ones(1, 8, 9, 9, device=cpu), Tensor.ones(8, 8, 3, 3, device=cpu)
    for options in ({"stride": 2}, {"dilation": (1, 2)}):
        with pytest.raises(BadArgument, match="winograd=True"):
            image.conv2d(weight, winograd=True, **options)
    with pytest.raises(BadArgument, match="winograd=True"):
        image.conv2d(Tensor.ones(8, 8, 1, 1, device=cpu), winograd=True)
    with pytest.raises(BadArgument, match="winograd=True"):
        image.cast("float16").conv2d(weight.cast("float16"), winograd=True)


def test_in_a_captured_function(tmp_path: Path) -> None:
    """Its matrices are copied to the device by the first call, which runs itself; no call before
    has done so."""
    with hcq.open("cpu", threads=1) as device:
        use_cache(device, tmp_path / "kernels")
        random = np.random.default_rng(0)
        weight = Tensor(random.standard_normal((8, 8, 3, 3)).astype(np.float32), device=device)

        @jit
        def layer(image: Tensor) -> Tensor:
            return image.conv2d(weight, padding=1, winograd=True)

        for _ in range(4):
            image = Tensor(random.standard_normal((1, 8, 8, 8)).astype(np.float32), device=device)
            expected = image.conv2d(weight, padding=1, winograd=False).numpy()
            assert np.allclose(layer(image).numpy(), expected, atol=1e-3)
