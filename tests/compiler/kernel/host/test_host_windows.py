"""Windows of depthwise convolutions and pooling on the host, against sums written out in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import HOST
from ugpu.compiler import Tensor
from ugpu.compiler.expression.value import walk
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

TYPES = ["float32", "float16", "int32", "int8", "uint8", "int64"]


def _all_stores(body: Iterable[Statement]) -> Iterator[Store]:
    for statement in body:
        if isinstance(statement, Loop | If):
            yield from _all_stores(statement.body)
        elif isinstance(statement, Store):
            yield statement


def _windows(
    image: NDArray[np.generic], size: tuple[int, int], stride: int, around: int, outside: float
) -> NDArray[np.generic]:
    """[batch, channels, rows, columns, height, width]"""
    pads = ((0, 0), (0, 0), (around, around), (around, around))
    padded = np.pad(image, pads, constant_values=outside)
    found = np.lib.stride_tricks.sliding_window_view(padded, size, (2, 3))
    return found[:, :, ::stride, ::stride]


@given(
    st.integers(0, 1 << 30), st.sampled_from(TYPES), st.integers(1, 2), st.integers(1, 5),
    st.tuples(st.integers(1, 37), st.integers(1, 37)),
    st.tuples(st.integers(1, 7), st.integers(1, 7)), st.integers(1, 3), st.integers(0, 3),
)  # fmt: skip
@example(1, "float32", 1, 2, (24, 1), (1, 2), 1, 2)  # padding as wide as the window
@example(2, "float32", 2, 2, (13, 14), (1, 2), 2, 4)
@example(3, "int32", 3, 6, (24, 37), (1, 2), 2, 4)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_depthwise_convolutions_equal_numpys(
    cpu: Device, seed: int, name: str, batch: int, channels: int, image: tuple[int, int],
    window: tuple[int, int], stride: int, around: int,
) -> None:  # fmt: skip
    if any(size + 2 * around < length for size, length in zip(image, window, strict=True)):
        return
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 3, (batch, channels, *image)).astype(name)
    w = rng.integers(0, 3, (channels, 1, *window)).astype(name)
    wanted = (_windows(x, window, stride, around, 0) * w[:, 0, None, None]).sum((4, 5))
    result = Tensor(x, device=cpu).conv2d(
        Tensor(w, device=cpu), stride=stride, padding=around, groups=channels
    )
    assert (result.numpy() == wanted.astype(result.numpy().dtype)).all()


@given(
    st.integers(0, 1 << 30), st.sampled_from(["float32", "int32", "uint8"]),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.booleans(),
)  # fmt: skip
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_pools_equal_numpys(
    cpu: Device, seed: int, name: str, image: tuple[int, int], size: int, stride: int, around: int,
    mean: bool,
) -> None:  # fmt: skip
    if min(image) + 2 * around < size:
        return
    x = np.random.default_rng(seed).integers(0, 9, (2, 3, *image)).astype(name)
    tensor = Tensor(x, device=cpu)
    if mean:
        sums = _windows(x.astype(np.float32), (size, size), stride, around, 0).sum((4, 5))
        result = tensor.avg_pool2d(size, stride=stride, padding=around)
        assert np.allclose(result.numpy(), sums / np.float32(size * size), rtol=1e-6)
        return
    lowest = -np.inf if name == "float32" else np.iinfo(name).min
    wanted = _windows(x, (size, size), stride, around, lowest).max((4, 5))
    result = tensor.max_pool2d(size, stride=stride, padding=around)
    assert (result.numpy() == wanted).all()


@pytest.mark.parametrize("activation", ["exp", "relu"])
def test_what_is_fused_into_an_image_does_not_change_its_padding(
    cpu: Device, activation: str
) -> None:
    """exp(0) is 1, but the padding is 0."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 4, 9, 21)).astype(np.float32)
    w = rng.standard_normal((4, 1, 3, 3)).astype(np.float32)
    inside = np.exp(x) if activation == "exp" else np.maximum(x, 0)
    wanted = (_windows(inside, (3, 3), 1, 1, 0) * w[:, 0, None, None]).sum((4, 5)) + 1
    image = getattr(Tensor(x, device=cpu), activation)()
    result = image.conv2d(Tensor(w, device=cpu), padding=1, groups=4) + 1.0
    assert np.allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "stride"), list(itertools.product((3, 7), (1, 2))))
def test_a_padded_depthwise_convolution_is_one_kernel(cpu: Device, size: int, stride: int) -> None:
    x = Tensor(np.ones((1, 8, 30, 30), np.float32), device=cpu).realize()
    w = Tensor(np.ones((8, 1, size, size), np.float32), device=cpu).realize()
    node = x.conv2d(w, stride=stride, padding=size // 2, groups=8).node
    groups = schedule([node])
    assert len(groups) == 1
    kernel = lower(express(groups[0]), HOST)
    sizes = {memory.name: memory.count for memory in kernel.locals}
    assert size * 30 <= sizes["stage"] <= 36 * 48 + 128  # lines of whole vectors


def test_rows_too_long_to_hold_are_no_window(cpu: Device) -> None:
    """Local memory is on the stack."""
    x = np.arange(40_000, dtype=np.float32).reshape(1, 1, 2, 20_000) % 7
    wanted = _windows(x, (2, 3), 1, 0, 0).max((4, 5))
    found = Tensor(x, device=cpu).max_pool2d((2, 3), stride=1)
    (group,) = schedule([found.node])
    assert sum(memory.count for memory in lower(express(group), HOST).locals) < 4096
    assert (found.numpy() == wanted).all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("columns", [1, 2, 3, 7, 14, 29, 70])
@pytest.mark.parametrize("size", [3, 5])
def test_lines_of_any_length_with_what_follows(
    cpu: Device, columns: int, stride: int, size: int
) -> None:
    """A bias and a bound where totals are in vectors; then a sum with another image, which cannot
    be done there."""
    rng = np.random.default_rng(columns)
    x = rng.integers(-3, 4, (2, 3, 20, columns)).astype(np.float32)
    w = rng.integers(-3, 4, (3, 1, size, size)).astype(np.float32)
    bias = np.array([1, -2, 3], np.float32)
    around = size // 2
    plain = (_windows(x, (size, size), stride, around, 0) * w[:, 0, None, None]).sum((4, 5))
    result = Tensor(x, device=cpu).conv2d(
        Tensor(w, device=cpu), Tensor(bias, device=cpu), stride=stride, padding=around, groups=3
    )
    wanted = np.clip(plain + bias[:, None, None], 0, 6)
    assert (result.clamp(0, 6).numpy() == wanted).all()
    more = rng.integers(-3, 4, wanted.shape).astype(np.float32)
    assert ((result + Tensor(more, device=cpu)).numpy() == plain + bias[:, None, None] + more).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_lines_are_moved_by_vectors(cpu: Device, stride: int) -> None:
    """Every element of an image that is read is part of a vector, and so are the results."""
    shapes = ((1, 4, 14, 14), (4, 1, 3, 3))
    x, w = (Tensor(np.zeros(shape, np.float32), device=cpu).realize() for shape in shapes)
    result = x.conv2d(w, padding=1, stride=stride, groups=4).relu()
    kernel = lower(express(schedule([result.node])[-1]), HOST)
    inputs = kernel.parameters[1:]
    image = next(memory for memory in inputs if memory.count == 4 * 14 * 14)
    stores = list(_all_stores(kernel.body))
    read = {
        node.lanes
        for store in stores
        for node in walk(store.value)
        if node.op == "load" and node.arg.memory is image
    }
    assert min(read) > 1
    written = {store.value.lanes for store in stores if store.memory is kernel.parameters[0]}
    assert min(written) > 1
