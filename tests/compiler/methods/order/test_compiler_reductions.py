"""Reductions and matrix products against NumPy: random axes, types, sizes and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import NUMPY_TYPES, arrays
from ugpu.compiler import Tensor, dtypes
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
check = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def some_axes(data: st.DataObject, array: Array) -> tuple[int, ...] | int | None:
    if not array.ndim or data.draw(st.booleans()):
        return None
    axes = data.draw(st.lists(st.integers(0, array.ndim - 1), min_size=1, unique=True))
    return axes[0] if len(axes) == 1 and data.draw(st.booleans()) else tuple(axes)


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "any", "all"])
@check
@given(data=st.data())
def test_reductions(cpu: Device, name: str, data: st.DataObject) -> None:
    array = data.draw(arrays())
    axis, keepdims = some_axes(data, array), data.draw(st.booleans())
    found = getattr(Tensor(array, device=cpu), name)(axis=axis, keepdims=keepdims).numpy()
    wide = array.astype(np.float64) if array.dtype.kind == "f" or name == "mean" else array
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(wide, axis=axis, keepdims=keepdims))
        if expected.dtype.kind == "f":
            expected = expected.astype(found.dtype)  # infinite where the type ends
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        coarse = array.dtype == np.float16
        scale = 1 if name == "prod" or not array.size else float(np.max(np.abs(wide)))
        np.testing.assert_allclose(
            found, expected, rtol=2e-3 if coarse else 1e-5, atol=scale * (1e-2 if coarse else 2e-6)
        )
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@check
@given(data=st.data())
def test_extremes(cpu: Device, name: str, data: st.DataObject) -> None:
    array = data.draw(arrays()).copy()
    if array.dtype.kind == "f" and array.size and data.draw(st.integers(0, 3)) == 0:
        array.flat[data.draw(st.integers(0, array.size - 1))] = np.nan
    axis = some_axes(data, array)
    if name.startswith("arg") and isinstance(axis, tuple):
        axis = axis[0]
    axes = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    tensor = Tensor(array, device=cpu)
    if any(array.shape[i] == 0 for i in axes):
        with pytest.raises(BadArgument, match=f"{name}: axis .* is empty"):
            getattr(tensor, name)(axis=axis)
        return
    found = getattr(tensor, name)(axis=axis, keepdims=True).numpy()
    expected = getattr(np, name)(array, axis=axis, keepdims=True)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "shape", [(1, 100_003), (70_000,), (3, 5000, 7), (513, 1030), (1030, 513), (2, 3, 4, 5, 6)]
)
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_larger_sums(cpu: Device, shape: tuple[int, ...], axis: int | None) -> None:
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    tensor = Tensor(array, device=cpu)
    wide = array.astype(np.float64)
    limit = 1e-6 * array.size**0.5 * 3 + 1e-5
    assert np.max(np.abs(tensor.sum(axis).numpy() - wide.sum(axis))) < limit
    np.testing.assert_array_equal(tensor.max(axis).numpy(), array.max(axis))
    np.testing.assert_array_equal(tensor.argmin(axis).numpy(), array.argmin(axis))


@check
@given(data=st.data())
def test_fusion_around_reductions(cpu: Device, data: st.DataObject) -> None:
    array = data.draw(arrays(dtype="float32", most_axes=3))
    axis = some_axes(data, array)
    tensor, wide = Tensor(array, device=cpu), array.astype(np.float64)
    found = ((tensor * 2 + 1).sum(axis, keepdims=True) * 0.5 - tensor).abs().numpy()
    expected = np.abs((wide * 2 + 1).sum(axis, keepdims=True) * 0.5 - wide)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@check
@given(data=st.data())
def test_softmax_variance_and_friends(cpu: Device, data: st.DataObject) -> None:
    array = data.draw(arrays(dtype="float32", most_axes=3).filter(lambda a: a.ndim > 0))
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    tensor, wide = Tensor(array, device=cpu), array.astype(np.float64)
    with np.errstate(all="ignore"):
        high = wide.max(axis, keepdims=True) if array.size else 0
        raised = np.exp(wide - high)
        total = raised.sum(axis, keepdims=True)
        np.testing.assert_allclose(tensor.softmax(axis).numpy(), raised / total, rtol=1e-5)
        expected = wide - high - np.log(total)
        np.testing.assert_allclose(tensor.log_softmax(axis).numpy(), expected, rtol=1e-5, atol=1e-5)
        if array.shape[axis] > 1:
            variance = wide.var(axis, ddof=1)
            np.testing.assert_allclose(tensor.var(axis).numpy(), variance, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(
                tensor.std(axis).numpy(), variance**0.5, rtol=1e-4, atol=1e-4
            )


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return generator.normal(size=shape).astype(dtype)
    return generator.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_matmul(cpu: Device, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(NUMPY_TYPES))
    size = st.integers(0, 9) | st.integers(20, 140)
    rows, depth, columns = (data.draw(size) for _ in range(3))
    left_shape: tuple[int, ...] = (rows, depth)
    right_shape: tuple[int, ...] = (depth, columns)
    if data.draw(st.booleans()) and rows * columns < 2000:
        left_shape, right_shape = data.draw(
            st.sampled_from(
                [
                    ((2, 3, *left_shape), (2, 3, *right_shape)),
                    ((2, 1, *left_shape), (3, *right_shape)),
                    (left_shape, (4, *right_shape)),
                    ((depth,), right_shape),
                    (left_shape, (depth,)),
                    ((depth,), (depth,)),
                ]
            )
        )
    left, right = random(left_shape, dtype), random(right_shape, dtype, 1)
    ours, theirs = Tensor(left, device=cpu), Tensor(right, device=cpu)
    if data.draw(st.booleans()) and left.ndim > 1:  # the other layout
        ours = Tensor(np.swapaxes(left, -1, -2).copy(), device=cpu).transpose(-1, -2)
    if data.draw(st.booleans()) and right.ndim > 1:
        theirs = Tensor(np.swapaxes(right, -1, -2).copy(), device=cpu).transpose(-1, -2)
    found = (ours @ theirs).numpy()
    if np.dtype(dtype).kind == "f":
        expected = left.astype(np.float64) @ right.astype(np.float64)
        tolerance = 2e-2 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 10)
    else:
        expected = left @ right
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_matmul_with_prologue_and_epilogue(cpu: Device) -> None:
    left, right, bias = (
        random((70, 50), "float32"),
        random((50, 90), "float32", 1),
        random((90,), "float32", 2),
    )
    ours = [Tensor(a, device=cpu) for a in (left, right, bias)]
    found = ((ours[0] * 2) @ (ours[1] + 1) + ours[2]).relu().numpy()
    np.testing.assert_allclose(
        found, np.maximum((left * 2) @ (right + 1) + bias, 0), rtol=1e-4, atol=1e-3
    )
    # padding is invisible even where zero times infinity lurks
    huge = np.full((9, 9), np.inf, np.float32)
    product = Tensor(huge, device=cpu) @ Tensor(np.ones((9, 9), np.float32), device=cpu)
    assert np.all(np.isinf(product.numpy()))


@pytest.mark.parametrize("depth", [131, 259, 385])
def test_matmul_of_a_depth_that_slices_do_not_divide(cpu: Device, depth: int) -> None:
    left, right = random((40, depth), "float32"), random((depth, 70), "float32", 1)
    ours, theirs = Tensor(left, device=cpu), Tensor(right, device=cpu)
    np.testing.assert_allclose((ours @ theirs).numpy(), left @ right, rtol=1e-4, atol=1e-4)
    found = ((ours + 1) @ (theirs + 1)).numpy()
    np.testing.assert_allclose(found, (left + 1) @ (right + 1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(8, 4, 8), (13, 256, 33), (15, 257, 511), (249, 300, 513), (260, 513, 100), (1000, 7, 530)],
)
def test_matmul_at_the_ends_of_tiles(cpu: Device, rows: int, depth: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    left = random.integers(-4, 5, (3, rows, depth)).astype(np.float32)
    right = random.integers(-4, 5, (depth, columns)).astype(np.float32)
    expected = left @ right  # small integers: exact in any order
    found = (Tensor(left, device=cpu) @ Tensor(right, device=cpu)).numpy()
    np.testing.assert_array_equal(found, expected)
    turned = Tensor(np.ascontiguousarray(right.T), device=cpu).transpose(0, 1)
    np.testing.assert_array_equal((Tensor(left, device=cpu) @ turned).numpy(), expected)


def test_matmul_of_narrow_floats_sums_in_float32(cpu: Device) -> None:
    left, right = random((40, 300), "float16"), random((300, 40), "float16", 1)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    found = Tensor(left, device=cpu) @ Tensor(right, device=cpu)
    assert found.dtype is dtypes.float16
    np.testing.assert_array_less(np.abs(found.numpy() - exact), np.abs(exact) * 2**-10 + 1e-4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (4, 5)), r"matmul: shapes \[2, 3\] .*and \[4, 5\] .*do not match"),
        (((2, 2, 3), (3, 3, 4)), r"matmul: shapes \[2\] and \[3\] cannot be broadcast together"),
        (((), (3, 3)), "matmul: operands must have at least one axis"),
    ],
)
def test_matmul_errors(cpu: Device, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    left, right = (Tensor(np.zeros(shape, np.float32), device=cpu) for shape in shapes)
    with pytest.raises(BadArgument, match=message):
        left @ right


def test_reduction_errors(cpu: Device) -> None:
    tensor = Tensor(np.zeros((2, 3), np.float32), device=cpu)
    with pytest.raises(BadArgument, match=r"sum: axis 2 is out of range for shape \[2, 3\]"):
        tensor.sum(axis=2)
    with pytest.raises(BadArgument, match="contains an axis twice"):
        tensor.max(axis=(0, -2))
