"""A long context of few rows: its keys are shared out among groups, whose results are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import GFX1100
from tests.support.compiler.compiler_devices import device_fixture
from ugpu import compiler, hcq
from ugpu.compiler import Tensor
from ugpu.compiler.front.explain import watch
from ugpu.compiler.kernel.attention import gpu as gpu_attention
from ugpu.compiler.kernel.attention.gpu import default_attention, groups_of
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.pattern.online import find_online
from ugpu.compiler.plan.attention import PartGroup, computed, share_out
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import ptx_target

Array = NDArray[Any]
SM_90 = ptx_target("sm_90", compute_units=132)


def attention(query: Tensor, key: Tensor, value: Tensor, *, visible: int | None = None) -> Tensor:
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    if visible is not None:
        rows = Tensor.arange(query.shape[-2], device=query.device).reshape(-1, 1)
        keys = Tensor.arange(key.shape[-2], device=query.device).reshape(1, -1)
        scores = (keys <= rows + visible).where(scores, -float("inf"))
    result: Tensor = scores.softmax() @ value
    return result


def expected(query: Array, key: Array, value: Array, *, visible: int | None = None) -> Array:
    scores = (query.astype(np.float64) @ np.swapaxes(key, -1, -2)) * query.shape[-1] ** -0.5
    if visible is not None:
        rows, keys = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])[None]
        scores = np.where(keys <= rows + visible, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        result: Array = raised / raised.sum(-1, keepdims=True) @ value
    return result


def inputs(heads: int, rows: int, keys: int, depth: int, columns: int) -> list[Array]:
    random = np.random.default_rng(rows + keys)
    shapes = [(heads, rows, depth), (heads, keys, depth), (heads, keys, columns)]
    return [random.normal(0, 1.5, shape).astype(np.float32) for shape in shapes]


device = device_fixture("virtual:navi31", "virtual:gh100")


def check(device: Device, arrays: list[Array], visible: int | None = None) -> None:
    result = attention(*(Tensor(array, device=device) for array in arrays), visible=visible)
    assert result.memory_plan().kernels == 2
    np.testing.assert_allclose(
        result.numpy(), expected(*arrays, visible=visible), rtol=5e-5, atol=5e-6
    )


@pytest.mark.parametrize(
    "sizes", [(2, 1, 1024, 64, 64), (1, 3, 1500, 40, 24), (2, 20, 900, 64, 64)]
)
def test_parts_are_joined(device: Device, sizes: tuple[int, int, int, int, int]) -> None:
    """By a group per row, by threads, and where the parts do not divide the keys."""
    check(device, inputs(*sizes))


@pytest.mark.parametrize("visible", [-1, 5, 700, 5000])
def test_what_a_mask_hides_in_whole_parts(device: Device, visible: int) -> None:
    """The first row sees nothing, others a few keys, some parts or all of them."""
    check(device, inputs(1, 3, 1400, 32, 32), visible)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 4), st.integers(300, 1300), st.integers(1, 40), st.integers(2, 40))
def test_any_shape(device: Device, rows: int, keys: int, depth: int, columns: int) -> None:
    arrays = inputs(1, rows, keys, 4 * depth, columns)
    result = attention(*(Tensor(array, device=device) for array in arrays))
    np.testing.assert_allclose(result.numpy(), expected(*arrays), rtol=5e-5, atol=5e-6)


def test_narrow_with_an_epilogue(device: Device) -> None:
    """16-bit floats, shared keys, and more that follows with inputs of its own."""
    arrays = [array.astype(np.float16) for array in inputs(6, 2, 900, 64, 64)]
    query, key, value = (Tensor(array, device=device) for array in arrays)
    bias = np.arange(64, dtype=np.float16)
    few = [each[:1].expand(6, 900, 64) for each in (key, value)]
    result = attention(query, *few) * 2 + Tensor(bias, device=device)
    assert result.memory_plan().kernels == 2
    shared = [np.broadcast_to(array[:1], array.shape) for array in arrays[1:]]
    np.testing.assert_allclose(
        result.numpy(), 2 * expected(arrays[0], *shared) + bias, rtol=3e-3, atol=3e-3
    )


def test_replay_and_nested_functions(device: Device) -> None:
    """The parts' memory is the run's own, when it is captured, and in a function's body."""
    arrays = inputs(1, 1, 1024, 32, 32)
    query, key, value = (Tensor(array, device=device) for array in arrays)

    @compiler.jit
    def replayed(query: Tensor) -> Tensor:
        return attention(query, key, value)

    @compiler.function
    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value) + query

    for turn in range(4):
        moved = arrays[0] + np.float32(turn)
        found = replayed(Tensor(moved, device=device))
        np.testing.assert_allclose(
            found.numpy(), expected(moved, *arrays[1:]), rtol=5e-5, atol=5e-6
        )
    twice = layer(layer(query, key, value), key, value)
    assert twice.memory_plan().kernels == 4
    once = expected(*arrays) + arrays[0]
    wanted = expected(once, *arrays[1:]) + once
    np.testing.assert_allclose(twice.numpy(), wanted, rtol=5e-5, atol=5e-6)


def test_explained(device: Device) -> None:
    arrays = inputs(1, 1, 1024, 32, 32)
    with watch() as reports:
        attention(*(Tensor(array, device=device) for array in arrays)).realize()
    first, second = reports[-1].kernels
    assert "parts" in first.line and "join" in second.line


# ---- the choice --------------------------------------------------------------------------------


def groups(arrays: list[Array], target: Any) -> list[Any]:
    scheduled = schedule([attention(*(Tensor(array, device="cpu") for array in arrays)).node])
    return share_out(scheduled, target)


@pytest.mark.parametrize("target", [GFX1100, SM_90], ids=lambda target: target.name)
def test_parts_give_each_unit_work(target: Any) -> None:
    for heads, keys in ((1, 4096), (8, 4096), (32, 8192)):
        found = groups(inputs(heads, 1, keys, 64, 64), target)
        assert [isinstance(group, PartGroup) for group in found] == [True, True]
        parts = find_online(computed(found[0]))
        assert parts is not None
        here = groups_of(parts, target, default_attention(parts, target))
        most = heads * keys * 128 * 4 // gpu_attention.PART_BYTES
        assert here >= min(target.compute_units, most // 2)
        assert lower(computed(found[0]), target).outputs == 3


@pytest.mark.parametrize("target", [GFX1100, SM_90], ids=lambda target: target.name)
def test_enough_groups_stay_one_kernel(target: Any) -> None:
    """As do short contexts, and hosts."""
    assert len(groups(inputs(64, 4, 512, 16, 16), target)) == 1
    assert len(groups(inputs(1, 1, 100, 64, 64), target)) == 1
    with hcq.open("cpu") as cpu:
        assert len(groups(inputs(1, 1, 4096, 64, 64), cpu.target)) == 1


@pytest.mark.parametrize("target", [GFX1100, SM_90], ids=lambda target: target.name)
def test_each_form_counts_its_groups(target: Any) -> None:
    for rows, columns in ((1, 64), (3, 300), (40, 200), (200, 24)):
        arrays = inputs(2, rows, 50, 16, columns)
        (group,) = schedule([attention(*(Tensor(array, device="cpu") for array in arrays)).node])
        computation = express(group)
        parts = find_online(computation)
        assert parts is not None
        grid = lower(computation, target).grid
        counted = groups_of(parts, target, default_attention(parts, target))
        assert counted == grid[0] * grid[1] * grid[2]


def test_layers_alike_have_parts_each(device: Device) -> None:
    """Repetition is found in graphs without parts only."""
    arrays = inputs(1, 1, 1024, 32, 32)
    query, key, value = (Tensor(array, device=device) for array in arrays)
    found, wanted = query, arrays[0].astype(np.float64)
    for _ in range(7):
        found = attention(found, key, value) + found
        wanted = expected(wanted, *arrays[1:]) + wanted
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-5)
