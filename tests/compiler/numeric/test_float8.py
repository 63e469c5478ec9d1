"""Floats of 8 bits: values, rounding, types, arithmetic; judged by ml_dtypes and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, dtypes, float8
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
device = device_fixture("cpu", "virtual:navi31", "virtual:navi48", "virtual:gh100")
KINDS = tuple(float8.FORMATS)
kinds = pytest.mark.parametrize("kind", KINDS)


def special(kind: str) -> Array:
    """Every number of a format, the middles between neighbours and what is beside them, numbers out
    of range, and those whose bits flushing would clear."""
    numbers = np.unique(float8.numbers(kind)[np.isfinite(float8.numbers(kind))])
    middles = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(end)) for end in (np.inf, -np.inf)]
    largest = numbers.max()
    past = largest * np.array([1 + 2**-5, 1 + 2**-4, 1 + 2**-3, 1.25, 2, 1e4], np.float32)
    odd = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38], np.float32)
    return np.concatenate([numbers, middles, *beside, past, -past, odd]).astype(np.float32)


def alike(codes: Array, expected: Array, kind: str) -> bool:
    """Return whether codes are equal; all codes of NaN are."""
    numbers = float8.numbers(kind)
    missing = np.isnan(numbers[expected])
    return bool((np.isnan(numbers[codes]) == missing).all()) and np.array_equal(
        codes[~missing], expected[~missing]
    )


@kinds
def test_every_code_and_half_precision_number(kind: str, device: Device) -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = Tensor(codes, device=device).bitcast(kind).float().numpy()
    assert np.array_equal(numbers, float8.numbers(kind), equal_nan=True)
    assert np.array_equal(np.signbit(numbers[:128]), np.zeros(128, bool))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    found = Tensor(halves, device=device).cast(kind).bitcast("uint8").numpy()
    assert alike(found, float8.encode(halves.astype(np.float32), kind), kind)
    array = special(kind)
    found = Tensor(array, device=device).cast(kind).bitcast("uint8").numpy()
    assert alike(found, float8.encode(array, kind), kind)


@kinds
def test_numbers_and_rounding_of_ml_dtypes(kind: str) -> None:
    own = pytest.importorskip("ml_dtypes", reason="the package ml_dtypes is the judge")
    judge = np.dtype(getattr(own, kind))
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(judge).astype(np.float32)
    assert np.array_equal(float8.numbers(kind), expected, equal_nan=True)
    limit = dtypes.highest(dtypes.as_dtype(kind))
    array = special(kind)
    array = array if limit == np.inf else array[abs(array) <= limit]  # others saturate
    assert alike(float8.encode(array, kind), array.astype(judge).view(np.uint8), kind)


@kinds
@given(st.lists(st.floats(width=32), min_size=1, max_size=300))
def test_rounding_of_pytorch(kind: str, numbers: list[float]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the judge")
    array = np.concatenate([np.array(numbers, np.float32), special(kind)])
    expected = torch.from_numpy(array).to(getattr(torch, kind)).view(torch.uint8).numpy()
    assert alike(float8.encode(array, kind), expected, kind)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "scaled": lambda a, b: a * 0.75,
    "root": lambda a, b: abs(a).sqrt() if isinstance(a, Tensor) else np.sqrt(abs(a)),
    "reduced": lambda a, b: a.sum(1),
    "matrix product": lambda a, b: a @ b.T,
    "largest": lambda a, b: a.max(1),
}  # fmt: skip


@kinds
def test_arithmetic_is_that_of_float32_rounded_once(kind: str, device: Device) -> None:
    random = np.random.default_rng(3)
    arrays = [random.integers(-8, 9, (5, 40)).astype(np.float32) / 2 for _ in range(2)]
    tensors = [Tensor(array, device=device, dtype=kind) for array in arrays]
    assert all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays, strict=True))
    for name, operation in OPERATIONS.items():
        found = operation(*tensors)
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = np.asarray(operation(*arrays), np.float32)
        assert found.dtype.name == kind, name
        assert alike(found.bitcast("uint8").numpy(), float8.encode(exact, kind), kind), name
    wide = (tensors[0].float() @ tensors[1].float().transpose(0, 1)).numpy()
    np.testing.assert_array_equal(wide, arrays[0] @ arrays[1].T)
    ordered = tensors[0].sort(1)[0].numpy()
    np.testing.assert_array_equal(ordered, np.sort(arrays[0], 1))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("size", [64, 128])
def test_products_use_the_matrix_units(kind: str, size: int, device: Device) -> None:
    """Of RDNA 4; of Ada and Hopper one wave's, and from 128 on those of four waves."""
    units = {"gfx12": "gfx12", "sm_90a": "sm_89" if size == 64 else "sm_90a"}
    if device.target.matrix not in units:
        pytest.skip("other families have no such units, or no model here")
    random = np.random.default_rng(4)
    left, right = (random.normal(size=(size, size)).astype(np.float32) for _ in range(2))
    given = [Tensor(array, device=device, dtype=kind) for array in (left, right)]
    product = given[0].float() @ given[1].float().transpose(0, 1)
    (group,) = schedule([product.node])
    kernel = lower(express(group), device.target)
    assert f"{units[device.target.matrix]}.{kind}" in format_kernel(kernel)
    exact = given[0].numpy().astype(np.float64) @ given[1].numpy().T
    found = product.numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_types_are_not_mixed(cpu: Device) -> None:
    x = Tensor([1.0, 2.0], device=cpu, dtype="float8_e4m3fn")
    others = [x.cast(d) for d in dtypes.ALL if d is not x.dtype]
    for other in others:
        for work in (lambda y: x + y, lambda y: y * x, lambda y: Tensor.cat([x, y])):
            with pytest.raises(BadArgument, match="float8 types are not converted implicitly"):
                work(other)
    assert (x + 1).dtype is x.dtype and (x * 0.5).dtype is x.dtype
    assert (x == x).numpy().all()


def test_numpy_in_and_out(cpu: Device) -> None:
    own = pytest.importorskip("ml_dtypes", reason="the package ml_dtypes has the types")
    for kind in KINDS:
        array = np.array([0.5, -3, 1.25, 0.1], getattr(own, kind))
        x = Tensor(array, device=cpu)
        assert x.dtype.name == kind and x.numpy().dtype == np.float32
        assert np.array_equal(x.numpy(), array.astype(np.float32))
        bits = x.bitcast("uint8").numpy()
        assert np.array_equal(bits.view(array.dtype), array)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", *KINDS])
def test_a_number_is_rounded_when_it_becomes_a_tensor(kind: str, cpu: Device) -> None:
    stored = Tensor([0.3], device=cpu, dtype=kind).float().numpy()
    assert Tensor.full((1,), 0.3, device=cpu, dtype=kind).float().numpy() == stored
    assert Tensor(0.3, device=cpu, dtype=kind).float().item() == stored[0] != np.float32(0.3)


@kinds
def test_extremes(kind: str, cpu: Device) -> None:
    dtype = dtypes.as_dtype(kind)
    x = Tensor([1.0, -2.0], device=cpu, dtype=kind)
    assert x.max().item() == 1 and x.min().item() == -2
    assert dtypes.lowest(dtype) == -dtypes.highest(dtype)
    assert Tensor(dtypes.highest(dtype), device=cpu, dtype=kind).item() == dtypes.highest(dtype)
    assert 0 <= Tensor.rand(4096, device=cpu, dtype=kind).max().item() < 1
