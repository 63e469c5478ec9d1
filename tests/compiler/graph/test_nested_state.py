"""Nested functions that assign: in place where nobody sees the old value, a copy elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu.compiler import Tensor, function
from ugpu.compiler.plan.plan import structure
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def called(tensor: Tensor) -> bool:
    """Whether a call is needed for a tensor."""
    return calls_of(tensor) > 0


def calls_of(tensor: Tensor) -> int:
    return sum(node.op == "call" for node in structure([tensor.node])[1])


def storage(tensor: Tensor) -> Storage:
    found = tensor.node.storage
    assert isinstance(found, Storage)
    return found


class Cache:
    """Keys of the past, as a decoder has them."""

    def __init__(self, device: Device) -> None:
        self.keys = Tensor(np.zeros((8, 4), np.float32), device=device)

    @function
    def step(self, x: Tensor, place: int) -> Tensor:
        self.keys[place] = x * 2
        return self.keys.sum(0)


def test_assignment_in_a_function_is_in_place(cpu: Device) -> None:
    cache = Cache(cpu)
    address, wanted = storage(cache.keys).buffer.address, np.zeros((8, 4), np.float32)
    for place in range(8):
        x = Tensor(numbers(place, 4), device=cpu)
        total = cache.step(x, place)
        wanted[place] = x.numpy() * 2
        assert called(total)
        np.testing.assert_allclose(total.numpy(), wanted.sum(0), rtol=1e-5, atol=1e-6)
        assert storage(cache.keys).buffer.address == address, "no copy"
    assert np.array_equal(cache.keys.numpy(), wanted)


def test_calls_that_assign_one_after_the_other(cpu: Device) -> None:
    cache = Cache(cpu)
    address = storage(cache.keys).buffer.address
    total = Tensor(np.ones(4, np.float32), device=cpu)
    row, wanted = np.ones(4, np.float32), np.zeros((8, 4), np.float32)
    for place in range(6):
        total = cache.step(total, place)
        wanted[place] = row * 2
        row = wanted.sum(0)
    assert calls_of(total) == 6
    assert np.array_equal(total.numpy(), row) and np.array_equal(cache.keys.numpy(), wanted)
    assert storage(cache.keys).buffer.address == address


@pytest.mark.parametrize("who", ["another tensor", "a later read", "a part of it"])
def test_an_old_value_that_is_needed_stays(cpu: Device, who: str) -> None:
    cache = Cache(cpu)
    if who == "another tensor":
        old = cache.keys + 0
        old.node = cache.keys.node
        cache.step(Tensor(numbers(1, 4), device=cpu), 3).realize()
    elif who == "a later read":
        old = cache.keys + 0
        cache.step(Tensor(numbers(1, 4), device=cpu), 3).realize()
    else:
        old = cache.keys[3:4].expand(8, 4)
        total = cache.step(Tensor(numbers(1, 4), device=cpu), 3)
        (total + old.sum(0)).realize(old)
    assert not old.numpy().any()
    np.testing.assert_allclose(cache.keys.numpy()[3], numbers(1, 4) * 2)


def test_reads_go_before_a_call_that_overwrites(cpu: Device) -> None:
    cache = Cache(cpu)
    cache.keys[:] = 5
    cache.keys.realize()
    address = storage(cache.keys).buffer.address
    before = cache.keys.sum(0)
    total = cache.step(before, 2)
    del before
    total.realize()
    assert storage(cache.keys).buffer.address == address
    assert np.array_equal(total.numpy(), np.full(4, 35 + 80, np.float32))


def test_an_argument_that_is_assigned(cpu: Device) -> None:
    @function
    def update(state: Tensor, change: Tensor) -> None:
        state[...] = state - (change @ change).sum(0)

    state, change = Tensor(numbers(0, 4, 4), device=cpu), Tensor(numbers(1, 4, 4), device=cpu)
    wanted = state.numpy()
    address = storage(state).buffer.address
    for _ in range(3):
        update(state, change)
        wanted = wanted - (change.numpy() @ change.numpy()).sum(0)
        assert called(state)
        state.realize()
    np.testing.assert_allclose(state.numpy(), wanted, rtol=1e-4)
    assert storage(state).buffer.address == address
