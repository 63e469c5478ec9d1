"""Products of few rows with a long factor that lies along the depth, against NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import HOST
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.files.entry import Scaled
from ugpu.compiler.kernel.host.products.dots import DEEP, MOST_ROWS, WIDE
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.language.weights import Weight
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import Caches, TargetSpec


def _numbers(seed: int, *shape: int) -> NDArray[np.float32]:
    """Small whole numbers: sums in any order are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def _kernel(result: Tensor, target: TargetSpec = HOST) -> Kernel:
    return lower(express(schedule([result.node])[-1]), target)


def _is_dots(kernel: Kernel) -> bool:
    return {"left", "sums"} <= {memory.name for memory in kernel.locals}


@given(
    st.integers(0, 1 << 30), st.integers(2, MOST_ROWS), st.integers(WIDE, 150),
    st.integers(DEEP * 16, 300), st.booleans(),
)  # fmt: skip
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_products_equal_numpys(
    cpu: Device, seed: int, rows: int, columns: int, depth: int, weights_first: bool
) -> None:
    few, long, more = (
        _numbers(seed, rows, depth), _numbers(seed + 1, columns, depth),
        _numbers(seed + 2, columns, rows),
    )  # fmt: skip
    x, w, y = (Tensor(array, device=cpu) for array in (few, long, more))
    wanted = long @ np.maximum(few, 0).T * 2 + more
    if weights_first:
        result = w @ x.relu().transpose(0, 1) * 2 + y
    else:
        result = (x.relu() @ w.transpose(0, 1) * 2 + y.transpose(0, 1)).transpose(0, 1)
    assert (result.numpy() == wanted).all()


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_any_size(vector_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with hcq.open("cpu", threads=3) as device:
        target = dataclasses.replace(device.target, vector_bytes=vector_bytes)
        monkeypatch.setattr(device.driver, "target", target)
        few, long = _numbers(3, 7, 133), _numbers(4, 203, 133)
        result = Tensor(few, device=device) @ Tensor(long, device=device).transpose(0, 1)
        kernel = _kernel(result, target)
        assert _is_dots(kernel)
        assert kernel.grid[0] == 3
        assert (result.numpy() == few @ long.T).all()


def test_weights_that_are_not_numbers_stay_in_their_columns(cpu: Device) -> None:
    """Also at the end of a row, where a vector holds elements of the one before."""
    few, long = np.ones((3, 131), np.float32), _numbers(5, 40, 131)
    for column, (place, number) in enumerate([(0, np.inf), (127, np.inf), (130, -np.inf)]):
        long[column, place] = number
    long[5, 129] = np.nan
    found = (Tensor(few, device=cpu) @ Tensor(long, device=cpu).transpose(0, 1)).numpy()
    assert np.array_equal(found, few @ long.T, equal_nan=True)


def test_convolutions_of_small_images(cpu: Device) -> None:
    image, weight = _numbers(6, 2, 33, 2, 2), _numbers(7, 40, 33, 3, 3)
    result = Tensor(image, device=cpu).conv2d(Tensor(weight, device=cpu), padding=1)
    assert _is_dots(_kernel(result))
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    assert (result.numpy() == np.einsum("ncyxij,ocij->noyx", views, weight)).all()


def test_products_of_a_batch(cpu: Device) -> None:
    few, long = _numbers(8, 3, 5, 2, 100), _numbers(9, 5, 2, 40, 100)
    x, w = Tensor(few, device=cpu).permute((1, 2, 0, 3)), Tensor(long, device=cpu)
    result = x @ w.transpose(-1, -2)
    assert _is_dots(_kernel(result))
    assert (result.numpy() == np.einsum("raik,aink->airn", few, long)).all()


@pytest.mark.parametrize(
    ("few", "long", "kind"),
    [
        ((MOST_ROWS + 1, 512), (64, 512), "float32"),
        ((1, 512), (64, 512), "float32"),
        ((4, 32), (64, 32), "float32"),
        ((16, 65536), (64, 65536), "float32"),
    ],
)
def test_others_are_left_alone(
    cpu: Device, few: tuple[int, int], long: tuple[int, int], kind: str
) -> None:
    """More rows, one row of floats, a short depth, rows that fill no cache."""
    x, w = (Tensor(np.zeros(shape, kind), device=cpu) for shape in (few, long))
    kernel = _kernel(x @ w.transpose(0, 1))
    assert not _is_dots(kernel)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("bits", "zero", "has_least"), [(4, 0, True), (4, 8, False), (8, 0, True)])
def test_groups_that_share_a_scale(
    vector_bytes: int, rows: int, bits: int, zero: int, has_least: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whole numbers: what is taken out of the sums leaves them exact."""
    columns, groups, size = 203, 5, 32
    with hcq.open("cpu", threads=3) as device:
        target = dataclasses.replace(device.target, vector_bytes=vector_bytes)
        monkeypatch.setattr(device.driver, "target", target)
        codes = np.random.default_rng(7).integers(0, 1 << bits, (columns, groups, size), np.uint8)
        scale, least = _numbers(8, columns, groups, 1), _numbers(9, columns, groups, 1)
        given = Scaled(
            Tensor(scale, device=device), Tensor(codes, device=device),
            Tensor(least, device=device) if has_least else None, zero, bits,
        )  # fmt: skip
        weight = Weight(given, (columns, groups * size), "float32")
        assert weight.nbytes < columns * groups * (size * bits / 8 + 9)
        few = _numbers(10, rows, groups * size)
        result = Tensor(few, device=device).matmul(weight.whole().transpose(0, 1))
        kernel = _kernel(result, target)
        assert _is_dots(kernel)
        wide = scale * (codes.astype(np.float32) - zero) + (least if has_least else 0)
        assert (result.numpy() == few @ wide.reshape(columns, -1).T).all()


@pytest.mark.parametrize("depth", [256, 257, 514, 271])
@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_weights_of_16_bits(cpu: Device, rows: int, kind: str, depth: int) -> None:
    few, long = _numbers(11, rows, depth), _numbers(12, 70, depth)
    weight = Tensor(long, device=cpu).cast(kind).realize()
    result = Tensor(few, device=cpu).matmul(weight.float().transpose(0, 1))
    assert _is_dots(_kernel(result))
    assert (result.numpy() == few @ long.T).all()


def test_the_long_factor_is_read_once_where_it_lies() -> None:
    with hcq.open("cpu", threads=1) as device:
        x, w = (Tensor(_numbers(1, *shape), device=device) for shape in ((4, 512), (240, 512)))
        kernel = _kernel(x @ w.transpose(0, 1), device.target)
        assert kernel.grid == (1, 1, 1)
        long = next(memory for memory in kernel.parameters if memory.count == 240 * 512)
        local = sum(memory.count for memory in kernel.locals)
        assert local < long.count // 10


@pytest.mark.parametrize(("columns", "ahead"), [(1001, True), (64, False)])
def test_the_next_columns_are_fetched_ahead(cpu: Device, columns: int, ahead: bool) -> None:
    """Each line of a factor from beyond the second-level cache is begun while the columns before it
    are computed; also at the end, where fewer columns than a block's are left."""
    x, w = (_numbers(seed, size, 320) for seed, size in ((1, 4), (2, columns)))
    few, long = (Tensor(array, device=cpu) for array in (x, w))
    product = few @ long.transpose(0, 1)
    kernel = _kernel(product, dataclasses.replace(HOST, caches=Caches(32 << 10, 1 << 20)))
    assert _is_dots(kernel)
    lines = [each for each in format_kernel(kernel).splitlines() if "prefetch" in each]
    assert bool(lines) == ahead
    assert (product.numpy() == x @ w.T).all()
