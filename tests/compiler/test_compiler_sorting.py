"""Orders of long rows, by digits, held against NumPy's stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler import Tensor, jit
from compiler.methods import sorting
from hcq.device import Device
from tests.support.compiler_devices import device_fixture

Array = NDArray[Any]
device = device_fixture("cpu", "virtual:navi31")
SPECIAL = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3.4e38, -1.0, 1.0]


@pytest.fixture
def by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short rows are."""
    for name, number in (("SHORT", 0), ("START", -1), ("EACH", 0)):
        monkeypatch.setattr(sorting, name, number)


def falling(array: Array, axis: int) -> Array:
    """The largest first, equal ones in their order, NaN as the largest."""
    turned = np.argsort(np.flip(array, axis), axis, kind="stable")
    return np.flip(array.shape[axis] - 1 - turned, axis)


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """With many alike, and all that is special."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        found = random.normal(size=shape).astype(np.float32)
        special = random.choice(np.array(SPECIAL, np.float32), shape)
        with np.errstate(over="ignore"):
            return np.where(random.random(shape) < 0.3, special, found).astype(kind)
    if kind.kind == "b":
        return random.random(shape) < 0.5
    info = np.iinfo(kind)
    wide = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    few = random.choice(np.array([info.min, info.max, 0, 1], kind), shape)
    return np.where(random.random(shape) < 0.5, few, wide).astype(kind)


@pytest.mark.parametrize(
    ("dtype", "down"),
    [("float32", True), ("float16", False), ("int8", False), ("uint64", True), ("bool", False)],
)
@pytest.mark.usefixtures("by_digits")
def test_types(cpu: Device, dtype: str, down: bool) -> None:
    array = numbers(np.random.default_rng(5), (2, 300), dtype)
    wanted = falling(array, 1) if down else np.argsort(array, 1, kind="stable")
    assert np.array_equal(Tensor(array, device=cpu).argsort(descending=down).numpy(), wanted)


@pytest.mark.usefixtures("by_digits")
def test_devices(device: Device) -> None:
    array = numbers(np.random.default_rng(6), (700, 2), "float32")
    values, order = Tensor(array, device=device).sort(0)
    wanted = np.argsort(array, 0, kind="stable")
    assert np.array_equal(order.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(array, wanted, 0))


@settings(max_examples=4)
@given(data=st.data())
def test_as_numpy(cpu: Device, data: st.DataObject) -> None:
    """Both ways give the same, along any axis."""
    shape = data.draw(st.sampled_from([(1,), (65,), (3, 257), (2, 64, 3), (4, 0), (513,)]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    array = numbers(np.random.default_rng(data.draw(st.integers(0, 99))), shape, "float32")
    tensor, down = Tensor(array, device=cpu), data.draw(st.booleans())
    wanted = falling(array, axis) if down else np.argsort(array, axis, kind="stable")
    for short in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as changed:
            for name, number in (("SHORT", short), ("START", -1), ("EACH", 0)):
                changed.setattr(sorting, name, number)
            assert np.array_equal(tensor.argsort(axis, down).numpy(), wanted)


def test_long_rows_are_sorted_by_digits(cpu: Device) -> None:
    """By default, in memory and kernels that do not grow with the square of the length."""
    random = np.random.default_rng(7)
    array = random.integers(0, 1 << 20, 100_000).astype(np.int32)
    tensor = Tensor(array, device=cpu)
    values, order = tensor.sort()
    plan = values.memory_plan(order)
    assert plan.peak < 10 * array.nbytes and plan.kernels < 120
    assert np.array_equal(order.numpy(), np.argsort(array, kind="stable"))
    best, places = tensor.topk(5)
    assert np.array_equal(best.numpy(), np.sort(array)[:-6:-1])
    assert np.array_equal(array[places.numpy()], best.numpy())
    few = Tensor(array[:1000], device=cpu).argsort()
    assert few.memory_plan().kernels < 6


@pytest.mark.usefixtures("by_digits")
def test_in_a_recorded_function(cpu: Device) -> None:
    ordered = jit(lambda x: x.sort(descending=True))
    for seed in range(4):
        array = numbers(np.random.default_rng(seed), (400,), "int64")
        values, order = ordered(Tensor(array, device=cpu))
        assert np.array_equal(order.numpy(), falling(array, 0))
        assert np.array_equal(values.numpy(), array[falling(array, 0)])


def test_a_permutation_of_many(cpu: Device) -> None:
    found = Tensor.randperm(40_000, device=cpu).numpy()
    assert np.array_equal(np.sort(found), np.arange(40_000)) and not np.array_equal(
        found, np.sort(found)
    )
