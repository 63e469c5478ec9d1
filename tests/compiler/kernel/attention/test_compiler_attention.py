"""Attention in one kernel, by online softmax: what is recognised, and that it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import bfloat16, float32
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


device = device_fixture("cpu", "virtual:navi31")


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    return (scores if mask is None else scores + mask).softmax() @ value


def expected(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    scores = (query.astype(np.float64) @ np.swapaxes(key, -1, -2)) * query.shape[-1] ** -0.5
    scores = scores if mask is None else scores + mask
    with np.errstate(invalid="ignore"):
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        result: Array = raised / raised.sum(-1, keepdims=True) @ value
    return result


def inputs(
    batch: tuple[int, ...], rows: int, keys: int, depth: int, columns: int, seed: int = 0
) -> list[Array]:
    random = np.random.default_rng(seed)
    shapes = [(*batch, rows, depth), (*batch, keys, depth), (*batch, keys, columns)]
    return [random.normal(0, 1.5, shape).astype(np.float32) for shape in shapes]


def kernels(tensor: Tensor) -> int:
    return len(schedule([tensor.node]))


def check(device: Device, arrays: list[Array], mask: Array | None = None) -> None:
    given_mask = None if mask is None else Tensor(mask, device=device)
    result = attention(*(Tensor(array, device=device) for array in arrays), given_mask)
    assert kernels(result) == 1
    small = 2e-6 * max(1.0, arrays[0].shape[-1] ** 0.5 / 4)  # deep scores are less exact
    np.testing.assert_allclose(result.numpy(), expected(*arrays, mask), rtol=3e-5, atol=small)


@pytest.mark.parametrize(
    "sizes",
    [
        ((), 8, 8, 4, 8),
        ((2,), 64, 256, 64, 64),  # blocks and panels divide
        ((3,), 33, 50, 20, 24),  # nothing divides
        ((2, 2), 40, 131, 64, 40),  # a prime number of keys
        ((), 100, 300, 128, 128),  # as wide as it gets
        ((1,), 70, 5, 16, 16),  # fewer keys than a block takes
        ((3,), 1, 259, 64, 64),  # one row, as when a model decodes
        ((), 1, 77, 9, 13),  # nothing divides
        ((), 20, 70, 200, 8),  # a deep factor
        ((), 1, 40, 600, 12),
        ((), 17, 50, 16, 300),  # columns of several groups
        ((), 2, 30, 12, 1100),
        ((), 40, 33, 260, 134),  # both, and nothing divides
    ],
)
def test_attention(device: Device, sizes: tuple[tuple[int, ...], int, int, int, int]) -> None:
    check(device, inputs(*sizes))


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_attention_of_any_shape(device: Device, data: st.DataObject) -> None:
    batch = tuple(data.draw(st.lists(st.integers(2, 3), max_size=2)))
    rows, keys = data.draw(st.integers(1, 80)), data.draw(st.integers(2, 150))
    depth, columns = data.draw(st.integers(2, 150)), data.draw(st.integers(2, 150))
    check(device, inputs(batch, rows, keys, depth, columns, data.draw(st.integers(0, 99))))


@pytest.mark.parametrize("many", [40, 9])
def test_masks(device: Device, many: int) -> None:
    """A row may see nothing in its first blocks of keys, or nothing at all."""
    arrays = inputs((2,), many, 300, 16, 16)
    rows, keys = np.arange(many)[:, None], np.arange(300)[None, :]
    causal = np.where(keys <= rows, 0, -np.inf).astype(np.float32)
    late = np.where(keys >= 290 - rows, 0, -np.inf).astype(np.float32)
    check(device, arrays, causal)
    check(device, arrays, late)
    nothing = causal.copy()
    nothing[7] = -np.inf
    check(device, arrays, nothing)


@pytest.mark.parametrize("rows", [16, 6])
def test_specials(device: Device, rows: int) -> None:
    arrays = inputs((), rows, 40, 8, 8)
    arrays[0][3] = np.nan
    arrays[0][5] *= 1e30  # scores that only a maximum taken away makes finite
    check(device, arrays)


def test_written_otherwise(device: Device) -> None:
    """Masks from indices, factors in other places, heads from one wide array, shared keys."""
    arrays = inputs((4,), 24, 36, 16, 16)
    query, key, value = (Tensor(array, device=device) for array in arrays)
    rows = Tensor.arange(24, device=device).reshape(24, 1)
    visible = Tensor.arange(36, device=device).reshape(1, 36) <= rows + 12
    scores = (query * 0.25) @ key.transpose(-1, -2)
    result = visible.where(scores, -float("inf")).softmax() @ value * 2 + 1
    assert kernels(result) == 1
    mask = np.where(np.arange(36)[None] <= np.arange(24)[:, None] + 12, 0, -np.inf)
    np.testing.assert_allclose(
        result.numpy(), 2 * expected(*arrays, mask) + 1, rtol=2e-5, atol=1e-5
    )
    # the weights are divided after the sum
    raised = (scores - scores.max(-1, keepdims=True)).exp()
    result = (raised @ value) / raised.sum(-1, keepdims=True)
    np.testing.assert_allclose(result.numpy(), expected(*arrays), rtol=2e-5, atol=2e-6)

    wide = np.random.default_rng(5).normal(size=(2, 20, 3 * 32)).astype(np.float32)
    parts = Tensor(wide, device=device).reshape(2, 20, 3, 4, 8).permute(2, 0, 3, 1, 4)
    split = wide.reshape(2, 20, 3, 4, 8).transpose(2, 0, 3, 1, 4)
    result = attention(parts[0], parts[1], parts[2]).permute(0, 2, 1, 3).reshape(2, 20, 32)
    heads = expected(split[0], split[1], split[2]).transpose(0, 2, 1, 3).reshape(2, 20, 32)
    np.testing.assert_allclose(result.numpy(), heads, rtol=2e-5, atol=2e-6)

    few = key[:1].expand(4, 36, 16)  # one head of keys for all heads of queries
    result = attention(query, few, value)
    assert kernels(result) == 1
    shared = np.broadcast_to(arrays[1][:1], arrays[1].shape)
    np.testing.assert_allclose(
        result.numpy(), expected(arrays[0], shared, arrays[2]), rtol=2e-5, atol=2e-6
    )


def test_narrow_floats(device: Device) -> None:
    arrays = [array.astype(np.float16) for array in inputs((2,), 32, 64, 16, 16)]
    result = attention(*(Tensor(array, device=device) for array in arrays))
    assert kernels(result) == 1 and result.dtype.name == "float16"
    np.testing.assert_allclose(result.numpy(), expected(*arrays), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [1, 3, 1024])
@pytest.mark.parametrize("depth", [64, 256])
def test_no_scores_are_stored(device: Device, rows: int, depth: int) -> None:
    key = Tensor.zeros(8, 1024, depth, device=device).contiguous().realize()
    query = Tensor.zeros(8, rows, depth, device=device).contiguous().realize()
    plan = attention(query, key, key).memory_plan()
    assert plan.results == 8 * rows * depth * 4
    if device.target.abi == "host" or rows > 3:
        assert plan.kernels == 1 and plan.peak == plan.results
    else:  # few rows: shared out among groups, with little beside keys and values
        assert plan.kernels == 2 and plan.peak - plan.results < 8 * 1024 * depth * 4 / 4


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_groups_of_heads_share_keys(device: Device, rows: int) -> None:
    """Two heads of keys for six of queries, masked as far as each row may see, of 16-bit floats."""
    arrays = [a.astype(np.float16) for a in inputs((6,), rows, 90, 32, 32)]
    arrays[1], arrays[2] = arrays[1][:2], arrays[2][:2]
    query, key, value = (Tensor(array, device=device) for array in arrays)
    split = query.reshape(2, 3, rows, 32)
    visible = Tensor.arange(90, device=device).reshape(1, 90) <= (
        Tensor.arange(rows, device=device).reshape(rows, 1) + (90 - rows)
    )
    scores = (split @ key.reshape(2, 1, 90, 32).transpose(-1, -2)) * 32**-0.5
    weights = visible.where(scores, -float("inf")).softmax()
    result = (weights @ value.reshape(2, 1, 90, 32)).reshape(6, rows, 32)
    assert kernels(result) == 1 and result.dtype.name == "float16"
    mask = np.where(np.arange(90)[None] <= np.arange(rows)[:, None] + 90 - rows, 0, -np.inf)
    shared = [np.repeat(array, 3, axis=0) for array in arrays[1:]]
    np.testing.assert_allclose(
        result.numpy(), expected(arrays[0], *shared, mask), rtol=3e-3, atol=3e-3
    )


def test_bfloat16_is_summed_in_float32(device: Device) -> None:
    arrays = inputs((2,), 1, 300, 40, 24)
    rounded = [Tensor(a, device=device).cast(bfloat16).cast(float32).numpy() for a in arrays]
    result = attention(*(Tensor(array, device=device).cast(bfloat16) for array in rounded))
    found = result.cast(float32).numpy()
    np.testing.assert_allclose(found, expected(*rounded), rtol=2e-2, atol=2e-2)


def test_what_is_not_attention(device: Device) -> None:
    """Weights that are asked for, or used twice; rows too wide to hold."""
    arrays = inputs((), 16, 24, 8, 8)
    query, key, value = (Tensor(array, device=device) for array in arrays)
    weights = (query @ key.transpose(-1, -2)).softmax()
    both = (weights @ value).sum() + weights.sum()
    shown = weights.numpy() @ arrays[2]
    np.testing.assert_allclose(both.item(), shown.sum() + weights.numpy().sum(), rtol=1e-4)
    wide = inputs((), 8, 8, 4100, 8)
    result = attention(*(Tensor(array, device=device) for array in wide))
    assert kernels(result) == 3
    np.testing.assert_allclose(result.numpy(), expected(*wide), rtol=2e-4, atol=2e-5)
    squared = query @ key.transpose(-1, -2)
    power = (squared * squared - squared.max(-1, keepdims=True)).exp() @ value  # not its maximum
    assert kernels(power) > 1 and power.dtype is float32
