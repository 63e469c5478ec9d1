"""Attention's gradients by one kernel of the host, beside float64 in NumPy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ugpu import hcq
from ugpu.compiler import Tensor, grad, kernel_log
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
KERNEL = "attention gradients"
slow = pytest.mark.slow


def wanted(q: Array, k: Array, v: Array, g: Array, seen: Array, added: Array) -> list[Array]:
    """In float64, with all scores stored."""
    q, k, v, g = (each.astype(np.float64) for each in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = np.where(seen, q @ k.swapaxes(-1, -2) * scale + added, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    apart = g @ v.swapaxes(-1, -2)
    slopes = weights * (apart - (weights * apart).sum(-1, keepdims=True)) * scale
    return [slopes @ k, slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g]


def check(
    device: Device, sizes: tuple[int, int, int, int, int], kind: str, name: str = "float32"
) -> None:
    """sizes: batch, rows, keys, depth, columns. kind: of the mask."""
    batch, rows, keys, depth, columns = sizes
    rng = np.random.default_rng([batch, rows, keys, depth, columns])
    shapes = [(batch, rows, depth), (batch, keys, depth), (batch, keys, columns)]
    arrays = [rng.standard_normal(shape).astype(name) for shape in shapes]
    cotangent = rng.standard_normal((batch, rows, columns)).astype(np.float32)
    seen, added, mask = np.ones((rows, keys), bool), np.zeros((rows, keys), np.float32), None
    if kind == "causal":
        seen = np.tril(seen)
    elif kind == "bools":
        seen = rng.random((rows, keys)) < 0.5
        seen[rows // 2] = False
        mask = Tensor(seen, device=device)
    elif kind == "of keys":
        seen = rng.random((batch, 1, keys)) < 0.5
        mask = Tensor(seen, device=device)
    elif kind == "floats":
        added = rng.standard_normal((rows, keys)).astype(np.float32)
        added[rows // 2, 0] = -np.inf
        mask = Tensor(added, device=device)
    given = [Tensor(array, device=device) for array in arrays]
    weight = Tensor(cotangent, device=device)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = q.scaled_dot_product_attention(k, v, mask, kind == "causal")
        return (found.cast("float32") * weight).sum()

    with kernel_log() as kernels:
        found = [each.numpy() for each in grad(loss, range(3))(*given)]
    if batch >= device.target.compute_units and device.target.abi == "host":
        assert any(KERNEL in kernel.origin for kernel in kernels)
    tolerance = 2e-5 if name == "float32" else 2e-2
    query, key, value = arrays
    exact_ones = wanted(query, key, value, cotangent, seen, added)
    for mine, exact in zip(found, exact_ones, strict=True):
        np.testing.assert_allclose(mine, exact, atol=tolerance, rtol=tolerance)


@pytest.fixture(
    scope="module", ids=lambda each: f"{each} bytes",
    params=[pytest.param(16, marks=slow), pytest.param(32, marks=slow), 64],
)  # fmt: skip
def vectors(request: pytest.FixtureRequest) -> Any:
    """A device whose kernels have vectors of so many bytes; of two threads."""
    with pytest.MonkeyPatch.context() as patch, hcq.open("cpu", threads=2) as device:
        target = dataclasses.replace(device.target, vector_bytes=request.param)
        patch.setattr(device.driver, "target", target)
        yield device


@pytest.mark.parametrize(("sizes", "kind"), [
    ((2, 1, 1, 1, 1), ""), ((2, 64, 128, 16, 16), ""), ((3, 37, 53, 20, 24), "floats"),
    ((2, 130, 130, 64, 64), "causal"), ((2, 100, 50, 48, 33), "causal"),
    ((2, 3, 9, 5, 2), "causal"), ((2, 50, 104, 8, 7), "bools"), ((2, 19, 72, 33, 16), "of keys"),
], ids=str)  # fmt: skip
def test_sizes_and_masks(vectors: Device, sizes: tuple[int, int, int, int, int], kind: str) -> None:
    check(vectors, sizes, kind)


@slow
@given(
    st.integers(1, 3), st.integers(1, 150), st.integers(1, 200), st.integers(1, 70),
    st.integers(1, 70), st.sampled_from(["", "causal", "bools", "of keys", "floats"]),
)  # fmt: skip
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_size(
    cpu: Device, batch: int, rows: int, keys: int, depth: int, columns: int, kind: str
) -> None:
    check(cpu, (batch, rows, keys, depth, columns), kind)


def test_narrow_types_and_shared_heads(cpu: Device) -> None:
    check(cpu, (4, 33, 40, 16, 16), "causal", "float16")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, count, 30, 8)).astype(np.float32) for count in (6, 2, 2))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, None, True, enable_gqa=True).sum()

    found = grad(loss, range(3))(*(Tensor(each, device=cpu) for each in (q, k, v)))
    heads = np.repeat(k, 3, 1), np.repeat(v, 3, 1)
    seen = np.tril(np.ones((30, 30), bool))
    exact = wanted(q, *heads, np.ones_like(q), seen, np.zeros((30, 30)))
    exact[1:] = [each.reshape(2, 2, 3, 30, 8).sum(2) for each in exact[1:]]
    for mine, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine.numpy(), other, atol=2e-5)


def test_a_score_that_is_not_a_number_shows(cpu: Device) -> None:
    x = np.ones((2, 4, 4), np.float32)
    broken = x.copy()
    broken[0, 0, 0] = np.nan
    q, k, v = (Tensor(each, device=cpu) for each in (broken, x, x))
    found = grad(lambda q: q.scaled_dot_product_attention(k, v).square().sum())(q).numpy()
    assert np.isnan(found[0, 0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
@slow
def test_devices_without_the_kernel(name: str) -> None:
    with hcq.open(name) as device:
        check(device, (2, 21, 13, 8, 8), "causal")
