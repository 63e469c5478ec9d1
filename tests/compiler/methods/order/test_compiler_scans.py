"""Running totals on a host, element by element, held against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit
from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.methods.order import running
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.group import make_group
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import ptx_target

Array = NDArray[Any]
device = device_fixture("cpu", "virtual:navi31")
TOTALS: dict[str, Callable[..., Array]] = {
    "cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    random = np.random.default_rng(sum(shape))
    if dtype[0] == "f":
        return (1 + random.normal(size=shape) / 16).astype(dtype)
    return random.integers(0, 3 if dtype != "bool" else 2, shape).astype(dtype)


def same(found: Array, wanted: Array, exact: bool) -> None:
    if exact:
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, 1e-5 if found.itemsize == 4 else 2e-3)


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool"])
def test_types(cpu: Device, name: str, dtype: str) -> None:
    """Along memory and across it; 16-bit floats are rounded once for each element."""
    array = numbers((8, 150), dtype)
    wide = array if array.dtype.kind != "f" else array.astype(np.float64)
    kind = {"i": np.int64, "u": np.uint64, "b": np.int64}.get(array.dtype.kind)
    given = {"dtype": kind} if name in ("cumsum", "cumprod") and kind is not None else {}
    for axis in (0, 1):
        found = getattr(Tensor(array, device=cpu), name)(axis).numpy()
        wanted = TOTALS[name](wide, axis, **given)
        same(found, wanted.astype(found.dtype), array.dtype.kind != "f" or name[3] == "m")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint32", "int64"])
def test_extremes_of_long_rows(cpu: Device, dtype: str) -> None:
    """From one vector on, with a rest and without; NaN from its place on, of zeros one of both."""
    rng = np.random.default_rng(3)
    for size in (15, 16, 17, 63, 1024, 1025, 2100):
        if dtype[0] == "f":
            array = rng.standard_normal((6, size)).astype(dtype)
            array[1, size // 2] = array[2, -1] = array[3, 0] = np.nan
            array[4] = np.where(rng.integers(0, 2, size), np.inf, -np.inf)
            array[5] = np.where(rng.integers(0, 2, size), 0.0, -0.0)
        else:
            ends = np.iinfo(dtype)
            array = rng.integers(ends.min, ends.max, (6, size), dtype, endpoint=True)
            array[1] = np.arange(size)
            array[2] = array[1, ::-1]
        tensor = Tensor(array, dtype=dtype, device=cpu)
        for name in ("cummax", "cummin"):
            wanted = TOTALS[name](array, 1)
            np.testing.assert_array_equal(getattr(tensor, name)(1).numpy(), wanted)
            back = getattr(tensor[:, ::-1] * 1, name)(1).numpy()
            np.testing.assert_array_equal(back, TOTALS[name](array[:, ::-1], 1))
            values, places = getattr(tensor, name)(1, indices=True)
            np.testing.assert_array_equal(values.numpy(), wanted)
            met = (array == wanted) | np.isnan(array)
            latest = np.maximum.accumulate(np.where(met, np.arange(size), 0), 1)
            assert places.numpy().dtype == np.int64
            np.testing.assert_array_equal(places.numpy(), latest)


@pytest.mark.parametrize(
    ("shape", "axis"), [((1,), 0), ((3, 1, 5), 1), ((7, 3), 0), ((3, 5, 70), 1), ((2, 0), 1)]
)
def test_shapes(cpu: Device, shape: tuple[int, ...], axis: int) -> None:
    array = numbers(shape, "float32")
    same(Tensor(array, device=cpu).cumsum(axis).numpy(), np.cumsum(array, axis), False)


@pytest.mark.parametrize("length", [16, 23, 24, 999])  # two pieces, three, pieces of pieces
@pytest.mark.parametrize("name", TOTALS)
def test_long_rows_in_pieces(
    cpu: Device, name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of unequal length, whose totals are in pieces themselves."""
    monkeypatch.setattr(running, "PIECE", 8)
    array = numbers((1, length), "float32")
    tensor = Tensor(array, device=cpu)
    same(getattr(tensor, name)(1).numpy(), TOTALS[name](array, 1), False)
    turned = getattr(tensor.transpose(0, 1), name)(0)
    same(turned.numpy(), TOTALS[name](array.T, 0), False)


def test_long_rows_are_precise(cpu: Device) -> None:
    """A total has the roundings of its piece and of the pieces before, not of all elements."""
    array = np.full(1 << 20, 0.1, np.float32)
    found = Tensor(array, device=cpu).cumsum().numpy()
    wanted = np.cumsum(array.astype(np.float64))
    assert np.abs(found / wanted - 1).max() < 1e-4  # one after the other: 1e-2


@pytest.mark.parametrize("shape", [(4, 40), (40, 4)])
def test_special_numbers(cpu: Device, shape: tuple[int, ...]) -> None:
    """NaN stays; zero is above minus zero; infinities count."""
    array = np.full(shape, -np.inf, np.float32)
    array.ravel()[[2, 3, 30, 31, 60, 61, 100]] = [-0.0, 0.0, -np.inf, np.nan, -1, np.inf, -np.nan]
    for name in ("cummax", "cummin"):
        for axis in (0, 1):
            found = getattr(Tensor(array, device=cpu), name)(axis).numpy()
            np.testing.assert_array_equal(found, TOTALS[name](array, axis))
    zeros = Tensor(np.array([-0.0, 0.0, -0.0], np.float32), device=cpu)
    assert np.signbit(zeros.cummax().numpy()).tolist() == [True, False, False]
    assert np.signbit((-zeros).cummin().numpy()).tolist() == [False, True, True]


def test_products_of_zero(cpu: Device) -> None:
    """A zero stays, also before a product that overflows."""
    array = np.full((1, 5000), 10, np.float32)
    array[0, 0] = 0
    for axis in (0, 1):
        turned = array if axis else array.T
        assert not Tensor(turned, device=cpu).cumprod(axis).numpy().any()


def test_beside_other_operations(cpu: Device) -> None:
    """What is computed before becomes part of the kernel; reductions and readers do not."""
    array = numbers((4, 64), "float32")

    def work(x: Tensor) -> tuple[Tensor, Tensor]:
        totals = (x * 2 + 1).cumsum(1)
        return totals / totals.max(1, keepdims=True), x.softmax(1).cumsum(1).contiguous()

    recorded = jit(work)
    total = np.cumsum(array * 2 + 1, 1)
    weights = np.exp(array) / np.exp(array).sum(1, keepdims=True)
    for _ in range(3):
        one, two = recorded(Tensor(array, device=cpu))
        same(one.numpy(), total / total.max(1, keepdims=True), False)
        same(two.numpy(), np.cumsum(weights, 1), False)
    assert (Tensor(array, device=cpu).realize() * 2 + 1).cumsum(1).memory_plan().kernels == 1


def test_other_devices_have_their_own_way(device: Device) -> None:
    array = numbers((2, 300), "float32")
    same(Tensor(array, device=device).cumsum(1).numpy(), np.cumsum(array, 1), False)


def test_scans_are_for_hosts() -> None:
    """A graph with one is refused by other targets, with its name."""
    source = Node("buffer", float32, (4, 4))
    source.storage = object()
    node = graph.scan("sum", source, 1, float32)
    with interning, pytest.raises(NotSupported, match="scan"):
        lower(express(make_group(node, {id(node)})), ptx_target("sm_90", compute_units=4))
