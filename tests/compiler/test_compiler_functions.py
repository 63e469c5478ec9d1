"""Elementary functions: accuracy in units in the last place, and every special value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import Tensor
from hcq.device import Device

Array = NDArray[Any]
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38,
     2.0, 4.0, 1e-30, 89.0, -104.0, 128.0, -149.0, -150.0, 88.72],
    np.float32,
)  # fmt: skip


def sample(low: float, high: float) -> Array:
    random = np.random.default_rng(7)
    return np.asarray(random.uniform(low, high, 20000)).astype(np.float32)


def logarithmic(low: float, high: float) -> Array:
    random = np.random.default_rng(8)
    return np.exp2(random.uniform(low, high, 20000)).astype(np.float32)


def ulps(found: Array, exact: Array) -> float:
    """The largest error in units of the exact result's last place, over finite results."""
    rounded = exact.astype(np.float32)
    usable = np.isfinite(rounded) & np.isfinite(exact)
    spacing = np.spacing(np.abs(rounded[usable])).astype(np.float64)
    return float(np.max(np.abs(found[usable] - exact[usable]) / spacing, initial=0.0))


@pytest.mark.parametrize(
    ("name", "values", "reference", "bound"),
    [
        ("exp", sample(-103, 88.7), np.exp, 1.5),
        ("exp2", sample(-149, 128), np.exp2, 1.5),
        ("log", logarithmic(-149, 128), np.log, 1.5),
        ("log", sample(0.5, 2), np.log, 1.5),
        ("log2", logarithmic(-149, 128), np.log2, 2.5),
        ("log2", sample(0.5, 2), np.log2, 2.5),
        ("tanh", sample(-10, 10), np.tanh, 2.5),
        ("tanh", logarithmic(-40, 0), np.tanh, 2.5),
        ("sqrt", logarithmic(-149, 128), np.sqrt, 0.501),
        ("reciprocal", logarithmic(-120, 120), np.reciprocal, 0.501),
        ("rsqrt", logarithmic(-120, 120), lambda x: 1 / np.sqrt(x), 1.6),
        ("sigmoid", sample(-80, 80), lambda x: 1 / (1 + np.exp(-x)), 3.5),
    ],
)
def test_accuracy(
    cpu: Device, name: str, values: Array, reference: Callable[[Array], Array], bound: float
) -> None:
    found = getattr(Tensor(values, device=cpu), name)().numpy()
    with np.errstate(all="ignore"):
        exact = reference(values.astype(np.float64))
    assert ulps(found, exact) <= bound


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("limit", [1.0, 100.0, 1e5, 2e5, 1e10, 3e38])
def test_angles_of_any_size(cpu: Device, name: str, limit: float) -> None:
    values = np.concatenate(
        [sample(-limit, limit), np.array([131071.9, 131072.0, 131073.0], np.float32)]
    )
    found = getattr(Tensor(values, device=cpu), name)().numpy()
    # NumPy's double-precision functions reduce every angle exactly
    exact = getattr(np, name)(values.astype(np.float64))
    assert np.max(np.abs(found - exact)) < 1.2e-7
    if limit <= 1:
        assert ulps(found, exact) <= 2


@pytest.mark.parametrize(
    "name", ["exp", "exp2", "log", "log2", "sin", "cos", "tanh", "sqrt", "floor", "ceil", "trunc"]
)
def test_special_values(cpu: Device, name: str) -> None:
    found = getattr(Tensor(SPECIAL, device=cpu), name)().numpy()
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(SPECIAL.astype(np.float64)).astype(np.float32)
    finite = np.isfinite(exact)
    assert np.array_equal(np.isnan(found), np.isnan(exact)), (found, exact)
    assert np.array_equal(found[np.isinf(exact)], exact[np.isinf(exact)]), (found, exact)
    assert np.allclose(found[finite], exact[finite], rtol=1e-6, atol=1e-45)


def test_whole_powers_of_two_are_exact(cpu: Device) -> None:
    exponents = np.arange(-149, 128).astype(np.float32)
    powers = Tensor(exponents, device=cpu).exp2()
    assert np.array_equal(powers.numpy(), np.exp2(exponents.astype(np.float64)))
    assert np.array_equal(powers.log2().numpy(), exponents)


def test_power_with_every_pair_of_special_values(cpu: Device) -> None:
    numbers = np.concatenate(
        [SPECIAL, np.array([3.0, -3.0, 2.5, -2.5, 1e10, -1e10, 7, -7], np.float32)]
    )
    base, exponent = (part.reshape(-1).copy() for part in np.meshgrid(numbers, numbers))
    found = (Tensor(base, device=cpu) ** Tensor(exponent, device=cpu)).numpy()
    with np.errstate(all="ignore"):
        exact = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(np.float32)
    wrong = ~np.isclose(found, exact, rtol=2e-5, atol=1e-44, equal_nan=True)
    assert not wrong.any(), list(
        zip(base[wrong], exponent[wrong], found[wrong], exact[wrong], strict=True)
    )


def test_power_accuracy(cpu: Device) -> None:
    base, exponent = logarithmic(-10, 10), sample(-12, 12)
    found = (Tensor(base, device=cpu) ** Tensor(exponent, device=cpu)).numpy()
    exact = np.power(base.astype(np.float64), exponent.astype(np.float64))
    usable = np.isfinite(exact.astype(np.float32)) & (np.abs(exact) > 1e-37)
    assert np.max(np.abs(found[usable] / exact[usable] - 1)) < 1e-5
