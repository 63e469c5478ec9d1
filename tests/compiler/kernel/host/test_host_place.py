"""Places of the largest and smallest elements of rows on the host, around sizes of its steps."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

# steps of 64 or 32 elements, from two on: below, at and above; blocks of some steps, which divide
# the row or not; rows of many blocks
SIZES = [63, 64, 65, 127, 128, 129, 256, 300, 1003, 20_001]
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float64"]


def _rows(size: int) -> np.ndarray:
    """Rows with equals, both zeros, infinities alone, and NaN of either sign at several places."""
    rng = np.random.default_rng(size)
    x = rng.integers(-3, 4, (12, size)).astype(np.float32)
    x[1] = rng.standard_normal(size)
    x[2] = -np.inf
    x[3] = np.inf
    x[4] = np.where(rng.integers(0, 2, size), 0.0, -0.0)
    x[5, size - 1] = x[6, 0] = 9
    for row, place in ((7, 0), (8, size - 1), (9, size // 2), (10, size * 3 // 4)):
        x[row, place] = np.nan
    x[11, [size - 1, 62, 61]] = -np.nan
    return x


@pytest.mark.parametrize("size", SIZES)
def test_as_numpy(cpu: Device, size: int) -> None:
    x = _rows(size)
    tensor = Tensor(x, device=cpu)
    assert tensor.argmax(1).numpy().tolist() == np.argmax(x, 1).tolist()
    assert tensor.argmin(1).numpy().tolist() == np.argmin(x, 1).tolist()


@pytest.mark.parametrize("dtype", TYPES)
def test_types_as_numpy(cpu: Device, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for size in (128, 1003):  # below and above two steps of bytes
        if dtype == "float64":
            x = _rows(size).astype(dtype)
        else:
            ends = np.iinfo(dtype)
            x = rng.integers(ends.min, ends.max, (8, size), dtype, endpoint=True)
            x[1:3] = np.array([[ends.min], [ends.max]], dtype)
            x[3:] = x[3:] % 3
            x[4, [70, size - 1]] = ends.max
            x[5, [size // 2, size - 1]] = ends.min
        tensor = Tensor(x, dtype=dtype, device=cpu)
        assert tensor.argmax(1).numpy().tolist() == np.argmax(x, 1).tolist()
        assert tensor.argmin(1).numpy().tolist() == np.argmin(x, 1).tolist()


def test_rows_with_other_layouts_and_results(cpu: Device) -> None:
    x = _rows(600)
    tensor = Tensor(x, device=cpu)
    assert tensor[::2, 3:590].argmax(1).numpy().tolist() == np.argmax(x[::2, 3:590], 1).tolist()
    assert (tensor.argmax(1) * 2 + 1).numpy().tolist() == (np.argmax(x, 1) * 2 + 1).tolist()
    assert tensor.argmax(0).numpy().tolist() == np.argmax(x, 0).tolist()
    doubled = tensor * 2.0
    assert doubled.argmin(1).numpy().tolist() == np.argmin(x * 2, 1).tolist()
    place, more = tensor.argmax(1), tensor.argmax(1) + 1  # one kernel
    place.realize(more)
    assert more.numpy().tolist() == (np.argmax(x, 1) + 1).tolist()
    flat = tensor.argmax(1, True)
    assert flat.shape == (12, 1) and flat.numpy().reshape(-1).tolist() == np.argmax(x, 1).tolist()


@pytest.mark.parametrize("shape", [(70_000,), (2, 65_536), (3, 1, 65_537), (8, 530_001)])
def test_long_rows_in_pieces_or_whole(cpu: Device, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for place in (0, 16_384, shape[-1] - 1):
        x = rng.integers(0, 5, shape).astype(np.float32)
        x[..., [place, shape[-1] // 2]] = 5, np.nan if place == 16_384 else 4
        tensor = Tensor(x, device=cpu)
        assert (tensor.argmax(-1).numpy() == np.argmax(x, -1)).all()
        assert (tensor.argmin(-1, True).numpy() == np.argmin(x, -1, keepdims=True)).all()
