"""Reductions to few results are done in pieces, and give the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, buffer, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.schedule import split
from ugpu.compiler.schedule.group import describe
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device


@given(data=st.data())
def test_as_numpy(cpu: Device, data: st.DataObject) -> None:
    shape = data.draw(
        st.sampled_from([(70000,), (65537,), (3, 40000), (300, 250), (2, 3, 99991), (131072, 2)])
    )
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    order = data.draw(st.permutations(range(len(shape))))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = random.integers(-1000, 1000, shape).astype(np.int32)
    tensor, array = Tensor(array, device=cpu).permute(order), array.transpose(order)
    axis = tuple(sorted(axes))
    for name in ("sum", "max", "min", "any", "all", "prod"):
        result = getattr(tensor, name)(axis)
        assert np.array_equal(result.numpy(), getattr(array, name)(axis))


@pytest.mark.parametrize(
    ("shape", "axes", "kernels"),
    [
        ((16 << 20,), (0,), ["sum", "sum"]),
        ((4096, 4096), (0, 1), ["sum", "sum"]),
        ((1 << 24) - 3, (0,), ["sum", "sum", "sum add"]),
        ((4, 1 << 20), (1,), ["sum", "sum"]),
        ((65535,), (0,), ["sum"]),
        ((128, 1 << 20), (1,), ["sum"]),
    ],
)
def test_plans(shape: tuple[int, ...] | int, axes: tuple[int, ...], kernels: list[str]) -> None:
    source = buffer(*(shape if isinstance(shape, tuple) else (shape,)), dtype=float32)
    total = split.reduce("sum", source, axes)
    assert [describe(group) for group in schedule([total])] == kernels


def test_the_whole_device_has_work() -> None:
    first = kernels_of(split.reduce("sum", buffer(16 << 20, dtype=float32), (0,)), HOST)[0]
    assert first.grid[0] >= 256
    apart = kernels_of(graph.reduce("sum", buffer(16 << 20, dtype=float32), (0,)), HOST)
    assert [kernel.grid[0] for kernel in apart] == [1]


def product(rows: int, depth: int, columns: int, units: int) -> Node:
    """The sum of products of a [rows, depth] and a [columns, depth] array."""
    whole = (rows, columns, depth)
    left = graph.reshape(buffer(rows, depth, dtype=float32), (rows, 1, depth))
    right = graph.reshape(buffer(columns, depth, dtype=float32), (1, columns, depth))
    sides = (graph.expand(left, whole), graph.expand(right, whole))
    products = graph.elementwise("mul", float32, *sides)
    return split.reduce("sum", products, (2,), units)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "units", "pieces"),
    [
        (64, 65536, 64, 2, 4),
        (64, 65536, 64, 96, 32),  # of 2048 steps each
        (128, 65536, 64, 2, 0),  # two tiles for two threads
        (64, 4095, 64, 8, 0),
        (64, 8191, 64, 8, 0),  # a prime number has no even pieces
        (4, 65536, 64, 8, 0),  # no matrix
        (8, 4096, 8, 8, 0),  # less work than another kernel costs
        (32, 6000, 32, 96, 2),
    ],
)
def test_deep_products_are_split(
    rows: int, depth: int, columns: int, units: int, pieces: int
) -> None:
    groups = schedule([product(rows, depth, columns, units)])
    assert [describe(group) for group in groups] == ["mul sum", "sum"][: 2 if pieces else 1]
    assert groups[0].root.size == rows * columns * max(1, pieces)


@pytest.mark.parametrize("shape", [(24, 8192, 40), (1, 24, 8192, 40), (3, 9, 6144, 17)])
def test_split_products_as_numpy(cpu: Device, shape: tuple[int, ...]) -> None:
    *batch, rows, depth, columns = shape
    random = np.random.default_rng(0)
    left = random.integers(-9, 9, (*batch, rows, depth)).astype(np.float32)
    right = random.integers(-9, 9, (*batch, depth, columns)).astype(np.float32)
    result = Tensor(left, device=cpu) @ Tensor(right, device=cpu)
    assert np.array_equal((result + 1).numpy(), left @ right + 1)
