"""Attention of few rows on the host, a row at a time: decoding a token after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import HOST
from ugpu.compiler import Tensor
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


def _attention(query: Tensor, key: Tensor, value: Tensor, seen: int | None) -> Tensor:
    """seen: how many keys the first row sees, each next one more; None: all."""
    scores = (query @ key.transpose(-1, -2)) * 0.25
    if seen is not None:
        rows = Tensor.arange(query.shape[-2], device=query.device).reshape(-1, 1)
        keys = Tensor.arange(key.shape[-2], device=query.device).reshape(1, -1)
        scores = (keys < rows + seen).where(scores, -float("inf"))
    result: Tensor = scores.softmax() @ value
    return result


def _exact(query: Array, key: Array, value: Array, seen: int | None) -> Array:
    query, key, value = (each.astype(np.float64) for each in (query, key, value))
    scores = query @ key.swapaxes(-1, -2) * 0.25
    if seen is not None:
        rows, keys = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])
        scores = np.where(keys < rows + seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    result: Array = (weights / weights.sum(-1, keepdims=True)) @ value
    return result


@given(
    st.integers(0, 1 << 30), st.integers(1, 6), st.integers(2, 300), st.integers(2, 40),
    st.integers(2, 40), st.one_of(st.none(), st.integers(1, 300)), st.booleans(), st.booleans(),
    st.sampled_from(["float32", "float16"]),
)  # fmt: skip
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_few_rows_equal_numpys(
    cpu: Device, seed: int, rows: int, keys: int, depth: int, columns: int, seen: int | None,
    turn_keys: bool, turn_values: bool, name: str,
) -> None:  # fmt: skip
    """Keys and values lie as they are, or turned in memory."""
    rng = np.random.default_rng(seed)
    query = rng.normal(0, 1.5, (2, rows, depth)).astype(name)
    key = rng.normal(0, 1.5, (2, keys, depth)).astype(name)
    value = rng.normal(0, 1.5, (2, keys, columns)).astype(name)
    tensors = [Tensor(query, device=cpu)]
    for array, turn in ((key, turn_keys), (value, turn_values)):
        laid = np.ascontiguousarray(array.swapaxes(1, 2)) if turn else array
        tensor = Tensor(laid, device=cpu)
        tensors.append(tensor.transpose(-1, -2) if turn else tensor)
    result = _attention(*tensors, seen).numpy().astype(np.float64)
    tolerance = 2e-5 if name == "float32" else 2e-2
    assert np.allclose(result, _exact(query, key, value, seen), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "alone"), [(1, True), (4, True), (5, False), (64, False)])
def test_a_row_alone_holds_no_block_of_rows(cpu: Device, rows: int, alone: bool) -> None:
    shapes = ((2, rows, 64), (2, 500, 64), (2, 500, 64))
    tensors = [Tensor(np.ones(shape, np.float32), device=cpu).realize() for shape in shapes]
    (group,) = schedule([_attention(*tensors, None).node])
    kernel = lower(express(group), HOST)
    sizes = {memory.name: memory.count for memory in kernel.locals}
    assert (sizes["largest"] == 1) == alone
    assert sizes["scores"] < 160 * sizes["largest"]


def test_keys_behind_the_last_one_seen_have_no_part(cpu: Device) -> None:
    """Not even where they are no numbers."""
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.normal(0, 1, shape).astype(np.float32) for shape in ((1, 8), (300, 8), (300, 8))
    )
    wanted = _exact(query, key[:131], value[:131], None)
    key[131:], value[131:] = np.nan, np.nan
    tensors = [Tensor(each, device=cpu) for each in (query, key, value)]
    assert np.allclose(_attention(*tensors, 131).numpy(), wanted, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 4), st.integers(2, 300), st.integers(1, 300))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_keys_left_out_change_no_bit(cpu: Device, rows: int, keys: int, seen: int) -> None:
    """The same mask in memory, of which nothing is known, gives the same numbers."""
    rng = np.random.default_rng(keys)
    shapes = ((2, rows, 16), (2, keys, 16), (2, keys, 24))
    query, key, value = (Tensor(rng.normal(0, 1, s).astype(np.float32), device=cpu) for s in shapes)
    visible = np.arange(keys) < np.arange(rows)[:, None] + seen
    scores = Tensor(visible, device=cpu).where(
        (query @ key.transpose(-1, -2)) * 0.25, -float("inf")
    )
    wanted = (scores.softmax() @ value).numpy()
    assert (_attention(query, key, value, seen).numpy() == wanted).all()
