"""Matrix products on the host, however their factors lie in memory, at sizes that fill no tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler import Tensor
from compiler.dtype import bfloat16
from hcq.device import Device

SIZES = st.sampled_from([1, 2, 7, 8, 13, 16, 31, 32, 47, 64, 97, 130])
DEPTHS = st.sampled_from([1, 3, 4, 16, 17, 63, 257, 300, 515])
TYPES = ["float32", "float16", "bfloat16", "int32", "int64", "uint8"]


def _array(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    if "float" in name:
        # few bits, so that every product of two and most sums are exact in each type
        return rng.integers(-8, 9, shape).astype(np.float32) / 4
    return rng.integers(0, 6, shape).astype(name)


def _tensor(array: np.ndarray, name: str, device: Device) -> Tensor:
    if name == "bfloat16":
        return Tensor(array, device=device).cast(bfloat16).realize()
    return Tensor(array.astype(name), device=device)


def _laid(rng: np.random.Generator, rows: int, columns: int, how: str, name: str, device: Device
          ) -> tuple[Tensor, np.ndarray]:  # fmt: skip
    """A rows x columns factor: as it is, transposed, every other element, or one row repeated."""
    if how == "transposed":
        array = _array(rng, (columns, rows), name)
        return _tensor(array, name, device).permute(1, 0), array.T
    if how == "strided":
        array = _array(rng, (2 * rows, 3 * columns), name)
        return _tensor(array, name, device)[::2, 1::3], array[::2, 1::3]
    if how == "flipped":
        array = _array(rng, (rows, columns), name)
        return _tensor(array, name, device).flip(0, 1), array[::-1, ::-1]
    if how == "expanded":
        array = _array(rng, (1, columns), name)
        whole = _tensor(array, name, device).expand((rows, columns))
        return whole, np.broadcast_to(array, (rows, columns))
    array = _array(rng, (rows, columns), name)
    return _tensor(array, name, device), array


LAYOUTS = st.sampled_from(["plain", "transposed", "strided", "flipped", "expanded"])


@given(st.integers(0, 1 << 30), SIZES, DEPTHS, SIZES, LAYOUTS, LAYOUTS, st.sampled_from(TYPES))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products_equal_numpys(
    cpu: Device, seed: int, m: int, k: int, n: int, left: str, right: str, name: str
) -> None:
    rng = np.random.default_rng(seed)
    a, x = _laid(rng, m, k, left, name, cpu)
    b, y = _laid(rng, k, n, right, name, cpu)
    result = (a @ b).cast("float32") if "float" in name else a @ b
    # sums of quarters of quarters: exact in float32
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    if name in ("float16", "bfloat16"):
        assert np.allclose(result.numpy(), wanted, rtol=2.0**-8, atol=0)
    else:
        assert (result.numpy() == wanted.astype(result.numpy().dtype)).all()


@pytest.mark.parametrize("shape", [(3, 40, 50, 33), (2, 1, 9, 300, 17)])
def test_batches_of_products_with_an_epilogue(cpu: Device, shape: tuple[int, ...]) -> None:
    *batch, m, k, n = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*batch, m, k)).astype(np.float32)
    y = rng.standard_normal((n, k)).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float32)
    a, b, c = (Tensor(each, device=cpu) for each in (x, y, bias))
    wanted = np.maximum(x @ y.T + bias, 0)
    assert np.allclose(((a @ b.permute(1, 0)) + c).relu().numpy(), wanted, rtol=1e-4, atol=1e-4)
