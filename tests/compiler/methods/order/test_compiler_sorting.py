"""Orders, held against NumPy's stable sort: the host's kernels, and the digits of other devices,
here on `cpu` too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.graph import along
from ugpu.compiler.methods.order import sorting
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
device = device_fixture("cpu", "virtual:navi31")
SPECIAL = [np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3.4e38, -1.0, 1.0]


@pytest.fixture
def by_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short rows are, also on a host."""
    monkeypatch.setattr(sorting.Sorting, "_serial", False)
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
    """All ways give the same, along any axis."""
    shape = data.draw(st.sampled_from([(1,), (65,), (3, 257), (2, 64, 3), (4, 0), (513,)]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    array = numbers(np.random.default_rng(data.draw(st.integers(0, 99))), shape, "float32")
    tensor, down = Tensor(array, device=cpu), data.draw(st.booleans())
    wanted = falling(array, axis) if down else np.argsort(array, axis, kind="stable")
    assert np.array_equal(tensor.argsort(axis, down).numpy(), wanted)
    for short in (0, 1 << 30):
        with pytest.MonkeyPatch.context() as changed:
            changed.setattr(sorting.Sorting, "_serial", False)
            for name, number in (("SHORT", short), ("START", -1), ("EACH", 0)):
                changed.setattr(sorting, name, number)
            assert np.array_equal(tensor.argsort(axis, down).numpy(), wanted)


@pytest.mark.parametrize("size", [1, 2, 9, 130])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32", "int64", "bool"])
def test_rows_on_a_host(cpu: Device, dtype: str, size: int) -> None:
    """By pairs and by digits; elements are kept to the bit."""
    array = numbers(np.random.default_rng(size), (3, size), "float32" if dtype[0] == "b" else dtype)
    tensor = Tensor(array, device=cpu).cast(dtype).realize()
    array = tensor.cast("float32").numpy() if dtype == "bfloat16" else tensor.numpy()
    values, order = tensor.sort(descending=size == 9)
    wanted = falling(array, 1) if size == 9 else np.argsort(array, 1, kind="stable")
    assert np.array_equal(order.numpy(), wanted)
    found = values.cast("float32").numpy() if dtype == "bfloat16" else values.numpy()
    assert found.tobytes() == np.take_along_axis(array, wanted, 1).tobytes()


@pytest.mark.parametrize(
    ("rows", "size", "vector_bytes"),
    [(13, 3, 64), (4, 16, 64), (9, 41, 32), pytest.param(21, 129, 64, marks=pytest.mark.slow)],
)
def test_rows_side_by_side(rows: int, size: int, vector_bytes: int) -> None:
    """By networks, for whole vectors of rows and a part of one; equal keys keep their order."""
    array = np.random.default_rng(size).integers(-4, 5, (rows, size)).astype(np.float32)
    array[0, 1], array[-1, 0] = np.nan, -0.0
    with hcq.open("cpu", threads=2) as device:
        use_cache(device, None)
        device.driver.target = replace(device.target, vector_bytes=vector_bytes)
        values, order = Tensor(array, device=device).sort(1)
        wanted = np.argsort(array, 1, kind="stable")
        assert (order.numpy() == wanted).all()
        sorted_ = np.take_along_axis(array, wanted, 1)
        assert (values.numpy().view(np.uint32) == sorted_.view(np.uint32)).all()


@pytest.mark.parametrize(
    "dtype",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("float16", "float64", "int16")),
     "uint32", "bool", "float32"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("rows", "size", "down"),
    [(19, 37, False), (16, 20, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (511, 100, False), (17, 1001, True), (17, 1025, False), (2, 4097, True), (2, 129, True),
        (2, 128, False)))],
)  # fmt: skip
def test_values_alone(cpu: Device, dtype: str, rows: int, size: int, down: bool) -> None:
    """Without their places, in networks of keys or by digits: zeros and NaN of either sign keep
    their bits and their order."""
    array = numbers(np.random.default_rng(size), (rows, size), dtype)
    if array.dtype.kind == "f":
        array[-2:, 2:7:2] = np.copysign(np.nan, -1).astype(array.dtype)
    values = Tensor(array, device=cpu, dtype=dtype).sort(1, descending=down)[0]
    assert ("sort values" in repr(values)) is (rows > 2 or size > sorting.FEW)
    wanted = falling(array, 1) if down else np.argsort(array, 1, kind="stable")
    assert values.numpy().tobytes() == np.take_along_axis(array, wanted, 1).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "uint64", "uint8"])
def test_rows_too_long_for_the_stack(
    cpu: Device, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(along, "HELD", 100)
    monkeypatch.setattr(along, "NEAR", 100)
    array = numbers(np.random.default_rng(8), (2, 301), dtype)
    values, order = Tensor(array, device=cpu).sort(descending=True)
    assert np.array_equal(order.numpy(), falling(array, 1))
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(array, order.numpy(), 1))


@pytest.mark.parametrize(
    ("shape", "axis", "count", "largest", "dtype"),
    [
        ((2, 1000), 1, 5, True, "float32"),
        ((1001, 2), 0, 3, False, "float32"),
        ((700,), 0, 2, True, "int64"),
        ((2, 333), -1, 1, True, "bool"),  # the first of many alike
        ((2, 300), 1, 200, False, "uint8"),
    ],
)
def test_the_first_of_a_row(
    cpu: Device, shape: tuple[int, ...], axis: int, count: int, largest: bool, dtype: str
) -> None:
    array = numbers(np.random.default_rng(count), shape, dtype)
    values, order = Tensor(array, device=cpu).topk(count, axis, largest)
    every = falling(array, axis) if largest else np.argsort(array, axis, kind="stable")
    wanted = np.take(every, range(count), axis)
    assert np.array_equal(order.numpy(), wanted)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(array, wanted, axis))


@pytest.mark.parametrize(("shape", "axis", "dtype"), [((4, 7), 0, "int8"), ((3, 8), 1, "float32")])
def test_medians(cpu: Device, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    """The lower of two, and where it is; NaN where there is one."""
    array = np.random.default_rng(10).integers(0, 9, shape).astype(dtype)
    if dtype == "float32":
        array[1, [2, 5]] = np.nan
    order = np.argsort(array, axis, kind="stable")
    places = np.take(order, [(shape[axis] - 1) // 2], axis)
    if dtype == "float32":
        places[1] = 2
    tensor = Tensor(array, device=cpu)
    found, where = tensor.median(axis, keepdims=True)
    assert np.array_equal(where.numpy(), places)
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(array, places, axis))
    assert tensor.median(axis)[0].shape == tuple(np.delete(shape, axis))
    whole = np.nan if dtype == "float32" else np.sort(array, None)[(array.size - 1) // 2]
    np.testing.assert_array_equal(tensor.median().numpy(), whole)
    assert Tensor(np.float32(3), device=cpu).median(-1)[1].numpy() == 0
    with pytest.raises(BadArgument, match=r"axis 0 of shape .* is empty"):
        Tensor(np.zeros((0, 2), np.float32), device=cpu).median(0)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((3, 1001), 1, "float32"),
        ((8193, 2), 0, "float32"),
        ((2, 200), 1, "uint64"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (
            ((2, 129), 1, "bool"), ((2, 20_000), 1, "float64"), ((2, 8192), 1, "float16"),
            ((1, 70_001), 1, "int64"), ((300, 3, 130), 0, "uint8"), ((17, 3, 130), -1, "int8"))),
    ],
)  # fmt: skip
def test_elements_are_selected_by_their_rank(
    cpu: Device, shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    """Of a row, without sorting it: the place is that of a stable sort, and elements are kept to
    the bit."""
    array = numbers(np.random.default_rng(13), shape, dtype)
    tensor, size = Tensor(array, device=cpu, dtype=dtype), shape[axis]
    order = np.argsort(array, axis, kind="stable")

    def check(found: Tensor, where: Tensor, wanted: Array) -> None:
        found.realize(where)
        assert np.array_equal(where.numpy(), wanted)
        assert found.numpy().tobytes() == np.take_along_axis(array, wanted, axis).tobytes()

    for rank in (0, size // 3, size - 1):
        found, where = tensor.kthvalue(rank + 1, axis, keepdims=True)
        assert "select" in repr(where)
        check(found, where, np.take(order, [rank], axis))
    nan = np.isnan(array) if array.dtype.kind == "f" else np.zeros(shape, bool)
    counts = nan.sum(axis, keepdims=True)
    ranks = np.where(counts == 0, (size - 1) // 2, size - counts)
    found, where = tensor.median(axis, keepdims=True)
    check(found, where, np.take_along_axis(order, ranks, axis))
    for largest in (False, True):
        every = falling(array, axis) if largest else order
        for count in (size // 3, size // 60 + 1):
            wanted = np.take(every, range(count), axis)
            check(*tensor.topk(count, axis, largest), wanted)


def test_few_of_many_are_found_without_sorting_all(cpu: Device) -> None:
    """In memory for blocks and the chosen ones, not for all elements."""
    array = np.random.default_rng(9).normal(size=(2, 50_000)).astype(np.float32)
    values, order = Tensor(array, device=cpu).topk(10)
    assert values.memory_plan(order).peak < array.nbytes // 2
    wanted = np.argsort(-array, 1, kind="stable")[:, :10]
    assert np.array_equal(order.numpy(), wanted)


def test_long_rows_are_sorted_by_digits(cpu: Device) -> None:
    """In memory and kernels that do not grow with the square of the length."""
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
