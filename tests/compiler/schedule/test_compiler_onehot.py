"""Sums over one-hot factors are indices: no work for what is not picked, on both devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31")


def reductions(tensor: Tensor) -> int:
    """How many loops over what is summed are left."""
    groups = schedule([tensor.node])
    return sum(len(express(group).reductions) for group in groups)


def one_hot(numbers: Tensor, count: int) -> Tensor:
    places = Tensor.arange(count, device=numbers.device)
    return (numbers.unsqueeze(-1) == places).cast("float32")


def test_a_one_hot_product_is_a_gather(device: Device) -> None:
    table = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    numbers = np.array([3, 0, 49, 7, 7, -1, 50, 1000, 12], np.int64)  # some are outside
    result = one_hot(Tensor(numbers, device=device), 50) @ Tensor(table, device=device)
    assert reductions(result) == 0
    expected = np.where(((numbers >= 0) & (numbers < 50))[:, None], table[numbers % 50], 0)
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8", "uint32", "int64"])
def test_numbers_of_any_type(device: Device, kind: str) -> None:
    numbers = np.array([0, 5, 100, 2], kind)
    x = Tensor(numbers, device=device)
    table = Tensor(np.arange(6, dtype=np.float32), device=device)
    places = Tensor.arange(6, device=device).cast("int64")
    chosen = (x.cast("int64").unsqueeze(1) == places).where(table, 0.0).sum(1)
    assert reductions(chosen) == 0
    np.testing.assert_array_equal(chosen.numpy(), [0, 5, 0, 2])


def test_two_ranges_compared_are_an_index(device: Device) -> None:
    x = Tensor(np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32), device=device)
    rows = Tensor.arange(24, device=device).reshape(24, 1)
    shifted = (rows == Tensor.arange(20, device=device) + 3).cast("float32") @ x
    assert reductions(shifted) == 0
    expected = np.zeros((24, 8), np.float32)
    expected[3:23] = x.numpy()
    np.testing.assert_array_equal(shifted.numpy(), expected)
    diagonal = (x[:8] * Tensor.eye(8, device=device)).sum(1)
    np.testing.assert_array_equal(diagonal.numpy(), np.diag(x.numpy()[:8]))
    assert reductions(diagonal) == 0


def test_what_is_not_picked_does_not_count(device: Device) -> None:
    table = np.full((4, 3), np.inf, np.float32)
    table[2] = 5
    picked = one_hot(Tensor(np.array([2, 9]), device=device), 4) @ Tensor(table, device=device)
    np.testing.assert_array_equal(picked.numpy(), [[5, 5, 5], [0, 0, 0]])


def test_other_comparisons_stay_sums(device: Device) -> None:
    numbers = np.array([1, 4, 2], np.int64)
    x = Tensor(numbers, device=device).unsqueeze(1)
    places = Tensor.arange(5, device=device)
    table = Tensor(np.arange(5, dtype=np.float32) + 1, device=device)
    below = (places < x).where(table, 0.0).sum(1)
    doubled = (places * 2 == x).where(table, 0.0).sum(1)
    against_itself = (places == places).where(table, 0.0).sum(0)
    assert reductions(below) == reductions(doubled) == reductions(against_itself) == 1
    np.testing.assert_array_equal(below.numpy(), [1, 10, 3])
    np.testing.assert_array_equal(doubled.numpy(), [0, 3, 2])
    assert against_itself.item() == 15
