"""Kernels with several outputs: what is joined, what is not, and that all of it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit
from ugpu.compiler.front.explain import watch
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


device = device_fixture("cpu", "virtual:navi31")


def outputs(*tensors: Tensor) -> list[int]:
    """How many outputs each kernel has."""
    return [len(group.roots) for group in schedule([tensor.node for tensor in tensors])]


def realized(*tensors: Tensor) -> list[Array]:
    tensors[0].realize(*tensors[1:])
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.parametrize("shape", [(5, 7), (64, 256), (300,), (2, 3, 1000)])
def test_elementwise_values_of_one_source(device: Device, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x = Tensor(array, device=device)
    doubled = x * 2
    later = doubled.exp() + x  # reads another output, element for element
    positive = x > 0  # of another type
    assert outputs(doubled, later, positive) == [3]
    plan = doubled.memory_plan(later, positive)
    found = realized(doubled, later, positive)
    assert plan.kernels == 1 and plan.peak == plan.results
    np.testing.assert_array_equal(found[0], array * 2)
    np.testing.assert_allclose(found[1], np.exp(array * 2) + array, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[2], array > 0)


@pytest.mark.parametrize("shape", [(4, 9), (33, 1024), (3, 5000)])
def test_reductions_of_the_same_rows(device: Device, shape: tuple[int, int]) -> None:
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    x = Tensor(array, device=device)
    mean, largest, deviation = x.mean(1), x.max(1), x.std(1)
    assert outputs(mean, largest, deviation) == [3]
    found = realized(mean, largest, deviation)
    np.testing.assert_allclose(found[0], array.mean(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[1], array.max(1))
    np.testing.assert_allclose(found[2], array.std(1, ddof=1), rtol=1e-5)
    apart, weights = x - x.mean(1, keepdims=True), x.softmax()
    assert outputs(apart, weights) == [2]
    found = realized(apart, weights)
    raised = np.exp(array - array.max(1, keepdims=True))
    np.testing.assert_allclose(found[0], array - array.mean(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(found[1], raised / raised.sum(1, keepdims=True), rtol=1e-5)


NOT_JOINED: dict[str, tuple[Callable[[Tensor], tuple[Tensor, ...]], list[int]]] = {
    "another order": (lambda x: (y := x + 1, y.flip(0) * 2), [1, 1]),
    "other sources": (lambda x: (x + 1, (x * 1).contiguous().sin()), [1, 1, 1]),
    "products": (lambda x: (x @ x, x @ (x + 1)), [1, 1]),
    "a quotient of products": (lambda x: ((x @ x) / (x @ (x + 2)),), [1, 1]),
    "rows and columns": (lambda x: (x.sum(0), x.sum(1)), [1, 1]),
    "by way of a sum": (lambda x: (y := x * 3, x + y.sum(0)), [1, 1]),
    "other shapes": (lambda x: (x + 1, x[1:] + 1), [1, 1]),
}


@pytest.mark.parametrize("name", sorted(NOT_JOINED))
def test_what_is_not_joined(device: Device, name: str) -> None:
    build, kernels = NOT_JOINED[name]
    x = Tensor(np.random.default_rng(2).random((16, 16), np.float32), device=device)
    results = build(x)
    found = outputs(*results)
    assert found == kernels or (name == "other sources" and len(found) >= 2)
    together = [each.copy() for each in realized(*results)]
    for one, two in zip(together, build(x), strict=True):
        np.testing.assert_allclose(one, two.numpy(), rtol=1e-5)


STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda one, two: one + two * 0.5,
    lambda one, two: one / (two.abs().sum(1, keepdims=True) + 1),
    lambda one, two: (one - two).tanh(),
    lambda one, two: one.flip(0) * two,
    lambda one, two: one.softmax(1) + two,
    lambda one, two: one.max(0) - two,
]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_outputs_at_once_are_as_one_by_one(cpu: Device, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [random.uniform(0.5, 2, (8, 12)).astype(np.float32) for _ in range(2)]

    def build() -> list[Tensor]:
        made = [Tensor(array, device=cpu) for array in arrays]
        for number in steps:
            one, two = made[number % len(made)], made[number // 7 % len(made)]
            made.append(STEPS[number % len(STEPS)](one, two))
        return made

    steps = data.draw(st.lists(st.integers(0, 500), min_size=1, max_size=7))
    chosen = data.draw(st.lists(st.integers(0, len(steps) + 1), min_size=1, max_size=5))
    together = build()
    together[chosen[0]].realize(*(together[index] for index in chosen[1:]))
    alone = build()
    for index in chosen:
        found, expected = together[index].numpy(), alone[index].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_joined_kernels_in_a_jit(device: Device) -> None:
    @jit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x + 1

    for number in range(4):
        array = np.full((4, 5), number, np.float32)
        two, one = step(Tensor(array, device=device))
        np.testing.assert_array_equal(two.numpy(), array * 2)
        np.testing.assert_array_equal(one.numpy(), array + 1)
    assert step.kernels == 1


def test_a_report_names_all_results(device: Device) -> None:
    x = Tensor(np.ones((4, 4), np.float32), device=device)
    with watch() as runs:
        (x * 2).realize(x + 1)
    (kernel,) = runs[0].kernels
    assert len(kernel.others) == 1
    assert runs[0].schedule.startswith(f"%{kernel.result}, %{kernel.others[0]} = ")
