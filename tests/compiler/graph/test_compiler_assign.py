"""Assignment into slices: as NumPy for the tensor, and nobody else sees it; mostly in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

device = device_fixture("cpu", "virtual:navi31")


def address(tensor: Tensor) -> int:
    storage = tensor.realize().node.storage
    assert isinstance(storage, Storage)
    return int(storage.buffer.address)


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    key: list[Any] = []
    for size in shape:
        bounds = st.none() | st.integers(-size - 1, size + 1)
        step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
        number = st.integers(-size, size - 1)
        key.append(draw(st.just(slice(draw(bounds), draw(bounds), step)) | number))
    return tuple(key[: draw(st.integers(0, len(key)))])


SHAPES = [(7,), (4, 5), (3, 2, 4)]


@given(data=st.data())
def test_histories_as_numpy(cpu: Device, data: st.DataObject) -> None:
    """Assignments, reads, snapshots and realizations in any order."""
    shape = data.draw(st.sampled_from(SHAPES))
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor = Tensor(expected.copy(), device=cpu)
    if data.draw(st.booleans()):
        tensor, expected = tensor * 2, expected * 2
    seen: list[tuple[Tensor, Any]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(["set", "set", "add", "own", "look", "view", "run"]))
        key = data.draw(keys(shape))
        if action == "set":
            value = data.draw(st.integers(-9, 9))
            tensor[key] = value
            expected[key] = value
        elif action == "add":
            tensor[key] += tensor[key] * 0.5
            expected[key] += expected[key] * np.float32(0.5)
        elif action == "own":  # reads what it writes, shifted
            tensor[key] = tensor.flip(0)[key] + 1
            expected[key] = np.flip(expected, 0)[key] + 1
        elif action == "look":
            seen.append((tensor + 1, expected + 1))
        elif action == "view":
            seen.append((tensor[key], expected[key].copy()))
        elif data.draw(st.booleans()) and seen:
            seen[-1][0].realize(tensor)
        else:
            tensor.realize()
    everything = [*seen, (tensor, expected)]
    order = [everything[i] for i in data.draw(st.permutations(range(len(everything))))]
    if data.draw(st.booleans()):
        order[0][0].realize(*(each for each, _ in order[1:]))
    for found, wanted in order:
        assert np.array_equal(found.numpy(), wanted)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_in_place_on_both_devices(device: Device, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(300,), (20, 33), (6, 5, 64)]))
    expected = np.random.default_rng(0).random(shape, np.float32)
    tensor = Tensor(expected, device=device)
    expected = expected.copy()
    before = address(tensor)
    for _ in range(3):
        key = data.draw(keys(shape))
        row = np.random.default_rng(1).random(expected[key].shape, np.float32)
        tensor[key] = Tensor(row, device=device) * 2
        expected[key] = row * 2
    assert address(tensor) == before
    assert np.array_equal(tensor.numpy(), expected)


def test_reads_go_first_and_nothing_is_copied(cpu: Device) -> None:
    tensor = Tensor(np.arange(6, dtype=np.float32), device=cpu)
    address(tensor)
    total, shifted = tensor.sum(), (tensor + 1).contiguous()
    tensor[2:4] = 100
    assert tensor.memory_plan().peak > 0  # the reads are held by others: not in place
    tensor.realize(total, shifted)
    assert total.item() == 15 and shifted.tolist() == [1, 2, 3, 4, 5, 6]
    assert tensor.tolist() == [0, 1, 100, 100, 4, 5]
    first = address(tensor)
    for place in range(6):
        tensor[place] = place
    assert tensor.memory_plan().peak == 0 and tensor.memory_plan().kernels == 6
    assert address(tensor) == first


def test_what_others_see_stays(cpu: Device) -> None:
    tensor = Tensor([1.0, 2.0, 3.0, 4.0], device=cpu)
    square, whole = tensor.reshape(2, 2).realize(), tensor[:]
    lazy = tensor * 10
    tensor[1:3] = 0
    assert tensor.tolist() == [1, 0, 0, 4]
    assert square.tolist() == [[1, 2], [3, 4]] and whole.tolist() == [1, 2, 3, 4]
    assert lazy.tolist() == [10, 20, 30, 40]
    both = tensor + whole
    tensor[0] = 7
    assert (both + tensor).tolist() == [9, 2, 3, 12]


def test_state_of_a_recorded_function(device: Device) -> None:
    """A cache that each call writes into, as inference does."""
    cache = Tensor(np.zeros((4, 3), np.float32), device=device)

    @jit
    def push(row: Tensor) -> Tensor:
        cache[1:] = cache[:-1]
        cache[0] = row
        return cache.sum(1)

    rows = [np.full(3, number, np.float32) for number in range(1, 9)]
    expected = np.zeros((4, 3), np.float32)
    where = address(cache)
    for row in rows:
        expected = np.concatenate([row[None], expected[:-1]])
        assert np.array_equal(push(Tensor(row, device=device)).numpy(), expected.sum(1))
    assert push.kernels >= 3 and address(cache) == where
    assert np.array_equal(cache.numpy(), expected)


def test_a_replay_does_not_overwrite_what_is_still_to_be_read(cpu: Device) -> None:
    state = Tensor([1.0, 2.0], device=cpu)

    @jit
    def put(x: Tensor) -> Tensor:
        state[0] = x
        return state + 0

    for number in range(4):
        assert put(Tensor(float(number), device=cpu)).tolist() == [number, 2]
    later, where = state * 10, address(state)
    assert put(Tensor(9.0, device=cpu)).tolist() == [9, 2] and state.tolist() == [9, 2]
    assert later.tolist() == [30, 20] and address(state) != where
    back = jit(lambda x: state.assign(x))
    for number in range(4):
        assert back(Tensor([number, 5.0], device=cpu)) is state
        assert state.tolist() == [number, 5]


def test_arguments_are_assigned(cpu: Device) -> None:
    @jit
    def clear(x: Tensor) -> Tensor:
        x[0] = 0
        return x

    for number in range(4):
        tensor = Tensor([5.0, float(number)], device=cpu)
        assert clear(tensor) is tensor and tensor.tolist() == [0, number]


def test_errors(cpu: Device) -> None:
    tensor = Tensor(np.zeros((2, 3), np.int8), device=cpu)
    with pytest.raises(BadArgument, match=r"assign: shapes \[2\] .*and \[3\]"):
        tensor[0] = Tensor([1, 2], device=cpu)
    with pytest.raises(BadArgument, match="is out of range for int8"):
        tensor[0] = 300
    with pytest.raises(BadArgument, match="outside axis 1"):
        tensor[0, 5] = 1
    assert tensor.assign(2.7).tolist() == [[2] * 3] * 2
