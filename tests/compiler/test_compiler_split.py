"""Reductions to few results are done in pieces, and give the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler import Tensor
from compiler.dtype import float32
from compiler.graph import node as graph
from compiler.schedule import split
from compiler.schedule.group import describe
from compiler.schedule.grouping import schedule
from hcq.device import Device
from tests.support.compiler_cases import HOST, buffer, kernels_of


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
