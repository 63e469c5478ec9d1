"""Assignment to elements that indices and masks choose: as NumPy, in order, mostly in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, function, jit
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

Array = NDArray[Any]


device = device_fixture("cpu", "virtual:navi31", "virtual:ga102")


def address(tensor: Tensor) -> int:
    storage = tensor.realize().node.storage
    assert isinstance(storage, Storage)
    return int(storage.buffer.address)


def held(value: Any, device: Device) -> Any:
    """A key or value with its arrays on a device."""
    if isinstance(value, tuple):
        return tuple(held(each, device) for each in value)
    return Tensor(value, device=device) if isinstance(value, np.ndarray) else value


@st.composite
def chosen_keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Slices, numbers and at least one index array; their shapes broadcast."""
    common = draw(st.sampled_from([(), (1,), (3,), (9,), (2, 3)]))
    arrays = draw(st.integers(1, len(shape)))
    order = draw(st.permutations(range(len(shape))))
    key: list[Any] = []
    for axis, size in enumerate(shape):
        if order[axis] < arrays:
            cut = draw(st.integers(0, len(common)))
            own = common[cut:]
            flat = draw(st.lists(st.integers(-size, size - 1), min_size=9, max_size=9))
            key.append(np.array(flat, np.int64)[: int(np.prod(own))].reshape(own))
        elif draw(st.booleans()):
            key.append(draw(st.integers(-size, size - 1)))
        else:
            first, step = draw(st.integers(-size, size)), draw(st.sampled_from([1, 2, -1]))
            key.append(slice(first, None, step))
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


SHAPES = [(7,), (4, 5), (3, 2, 4)]


@given(data=st.data())
def test_histories_as_numpy(cpu: Device, data: st.DataObject) -> None:
    """Writes by indices, masks and slices, and reads, in any order, some held and some run."""
    shape = data.draw(st.sampled_from(SHAPES))
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor = Tensor(expected.copy(), device=cpu)
    if data.draw(st.booleans()):
        tensor, expected = tensor * 2, expected * 2
    seen: list[tuple[Tensor, Any]] = []
    actions = ["set", "set", "add", "own", "mask", "some", "slice", "look", "run"]
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(actions))
        key = data.draw(chosen_keys(shape))
        kept = key if data.draw(st.booleans()) else held(key, cpu)
        sizes = expected[key].shape
        if action == "set":
            row = np.random.default_rng(len(seen)).random(sizes).astype(np.float32)
            tensor[kept] = Tensor(row, device=cpu)
            expected[key] = row
        elif action == "add":
            tensor[kept] += 1
            expected[key] += 1
        elif action == "own":  # reads what it writes, elsewhere
            tensor[kept] = tensor.flip(0)[kept] + 1
            expected[key] = np.flip(expected, 0)[key] + 1
        elif action == "mask":
            limit = data.draw(st.integers(0, 30))
            tensor[tensor > limit] = -1
            expected[expected > limit] = -1
        elif action == "some":
            flags = np.arange(shape[0]) % 2 == data.draw(st.integers(0, 1))
            tensor[held(flags, cpu)] = 5
            expected[flags] = 5
        elif action == "slice":
            tensor[1:] = 3
            expected[1:] = 3
        elif action == "look":
            seen.append((tensor + 1, expected + 1))
        else:
            tensor.realize()
    everything = [*seen, (tensor, expected)]
    order = [everything[i] for i in data.draw(st.permutations(range(len(everything))))]
    if data.draw(st.booleans()):
        order[0][0].realize(*(each for each, _ in order[1:]))
    for found, wanted in order:
        assert np.array_equal(found.numpy(), wanted)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_in_place_on_all_devices(device: Device, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(300,), (20, 33), (6, 5, 64)]))
    expected = np.random.default_rng(0).random(shape, np.float32)
    tensor = Tensor(expected, device=device)
    expected = expected.copy()
    before = address(tensor)
    for _ in range(2):
        key = data.draw(chosen_keys(shape))
        row = np.random.default_rng(1).random(expected[key].shape, np.float32)
        tensor[held(key, device)] = Tensor(row, device=device) * 2
        expected[key] = row * 2
    tensor[tensor > 1] = 0
    expected[expected > 1] = 0
    assert address(tensor) == before
    assert np.array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("count", [70_000, 500])
def test_the_last_of_many_stays(device: Device, count: int) -> None:
    """Also where several groups look at all indices, and own a part of the elements each."""
    if count > 1000 and device.name != "cpu":
        count = 3000
    random = np.random.default_rng(count)
    where, values = random.integers(-40, 40, count), random.random(count).astype(np.float32)
    expected = np.zeros(40, np.float32)
    expected[where] = values
    tensor = Tensor(np.zeros(40, np.float32), device=device)
    tensor[held(where, device)] = held(values, device)
    assert np.array_equal(tensor.numpy(), expected)


def test_outside_nothing_is_written(device: Device) -> None:
    tensor = Tensor(np.zeros((3, 4), np.int32), device=device)
    rows, columns = np.array([0, 2, 3, -3, -4, 1 << 40]), np.array([0, 4, 0, 3, 1, 2])
    tensor[held(rows, device), held(columns, device)] = 7
    expected = np.zeros((3, 4), np.int32)
    expected[0, 0] = expected[0, 3] = 7
    assert np.array_equal(tensor.numpy(), expected)


def test_masks_of_some_axes(device: Device) -> None:
    start = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    two = np.array([[True, False, True], [False, False, True]])
    last = np.array([True, False, True, True])
    column = np.array([[10.0], [20.0], [30.0]], np.float32)
    flat = Tensor(start[0, 0].copy(), device=device)
    flat[held(last, device)] = Tensor([9.0], device=device)
    assert flat.tolist() == [9, 1, 9, 9]
    keys: list[tuple[Any, Any]] = [
        (two, 5),
        (two, np.arange(4, dtype=np.float32)),
        ((slice(None), slice(None), last), column),
        ((..., last), -1),
        ((1, last[:3]), 8),
        ((0, slice(1, None), last), column[1:].T),  # the axis of what is picked comes first
        ((None, two, slice(None, None, 2)), 6),
        ((two, 3), 4),
    ]
    for key, value in keys:
        expected, tensor = start.copy(), Tensor(start, device=device)
        expected[key] = value
        tensor[held(key, device)] = held(value, device)
        assert np.array_equal(tensor.numpy(), expected), key


def test_a_cache_by_position(device: Device) -> None:
    """What a decoder does: the row to write is data, in a recorded function."""
    cache = Tensor(np.zeros((6, 8), np.float32), device=device)
    where = address(cache)

    @jit
    def push(row: Tensor, position: Tensor) -> Tensor:
        cache[position] = row
        return cache.sum(0)

    expected = np.zeros((6, 8), np.float32)
    for step in range(6):
        row = np.full(8, step + 1, np.float32)
        expected[step] = row
        found = push(Tensor(row, device=device), Tensor(np.array(step), device=device))
        assert np.array_equal(found.numpy(), expected.sum(0))
    assert address(cache) == where and np.array_equal(cache.numpy(), expected)


def test_in_a_function(cpu: Device) -> None:
    @function
    def layer(x: Tensor, index: Tensor) -> Tensor:
        made = x * 2
        made[index] = made[index.flip(0)] + 1
        made[index] = made[index] + 1
        return made

    x, index = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 3])
    given_ = [Tensor(each, device=cpu) for each in (x, index)]
    found = layer(layer(*given_), given_[1])
    for _ in range(2):
        x = x * 2
        x[index] = x[index[::-1]] + 1
        x[index] += 1
    assert np.array_equal(found.numpy(), x)


def test_copies_once_and_only_where_it_must(cpu: Device) -> None:
    base = Tensor(np.zeros((64, 32), np.float32), device=cpu)
    index = Tensor(np.array([3, 3, 9]), device=cpu)
    address(base)
    base[index] = 1
    base[index] = 2
    assert base.memory_plan().peak == 0 and base.memory_plan().kernels == 2
    other = base.realize() + 0  # somebody who asks for the old value later
    base[index] = 4
    base[index] = 5
    plan = base.memory_plan()
    assert plan.kernels == 3 and plan.peak == 64 * 32 * 4
    assert base.numpy()[3, 0] == 5 and other.numpy()[3, 0] == 2
    assert base.numpy()[4, 0] == 0


def test_joins_in_the_order_of_the_index(device: Device) -> None:
    random = np.random.default_rng(3)
    joins = (("sum", np.add), ("prod", np.multiply), ("amax", np.maximum), ("amin", np.minimum))
    for dtype in ("float32", "int32", "float16"):
        start, source = ((random.random(s) * 9).astype(dtype) for s in ((7, 6), (9, 5)))
        index = random.integers(-7, 7, (9, 4))
        given_ = [held(each, device) for each in (start, index, source)]
        for name, join in joins:
            expected = start.copy()
            join.at(expected, (index, np.arange(4)[None]), source[:, :4])
            found = given_[0].scatter_reduce(0, given_[1], given_[2], name)
            assert np.array_equal(found.numpy(), expected), (dtype, name)
        expected = start.copy()
        expected[index, np.arange(4)] = source[:, :4]
        assert np.array_equal(given_[0].scatter(0, *given_[1:]).numpy(), expected)
        expected = np.take_along_axis(start[:, :4], index, 0)
        assert np.array_equal(given_[0].gather(0, given_[1]).numpy(), expected)
        assert np.array_equal(given_[0].numpy(), start)


def test_joins_without_what_is_there(cpu: Device) -> None:
    tensor = Tensor([1.0, 2.0, 3.0, 4.0], device=cpu)
    index, source = Tensor([1, 1, 3], device=cpu), Tensor([5.0, 8.0, -7.0], device=cpu)
    expected = {
        "sum": ([1, 15, 3, -3], [1, 13, 3, -7]), "prod": ([1, 80, 3, -28], [1, 40, 3, -7]),
        "mean": ([1, 5, 3, -1.5], [1, 6.5, 3, -7]), "amax": ([1, 8, 3, 4], [1, 8, 3, -7]),
        "amin": ([1, 2, 3, -7], [1, 5, 3, -7]),
    }  # fmt: skip
    for name, (with_it, without) in expected.items():
        assert tensor.scatter_reduce(0, index, source, name).tolist() == with_it
        assert tensor.scatter_reduce(0, index, source, name, include_self=False).tolist() == without
    whole = tensor.int()
    assert whole.scatter_reduce(0, index, source.int(), "amax", False).tolist() == [1, 8, 3, -7]
    assert tensor.scatter(0, index, 2.0, reduce="multiply").tolist() == [1, 8, 3, 8]
    rows = Tensor(np.ones((2, 4), np.float32), device=cpu)
    added = rows.index_add(1, index, Tensor(np.ones((2, 3), np.float32), device=cpu))
    assert added.tolist() == [[1, 3, 1, 2]] * 2
    assert rows.index_fill(0, Tensor([1], device=cpu), 7).tolist() == [[1] * 4, [7] * 4]
    copied = rows.index_copy(0, Tensor([1, 1], device=cpu), rows * np.array([[2], [3]], "f4"))
    assert copied.tolist() == [[1] * 4, [3] * 4]
    assert tensor.masked_fill(tensor > 2, 0).tolist() == [1, 2, 0, 0]


def test_refusals(cpu: Device) -> None:
    tensor = Tensor(np.zeros((2, 3), np.float32), device=cpu)
    mask, index = tensor > 0, Tensor([0], device=cpu)
    with pytest.raises(BadArgument, match="outside axis 0"):
        tensor[[2]] = 1
    with pytest.raises(BadArgument, match="must have integers"):
        tensor[tensor] = 1
    with pytest.raises(NotSupported, match="depends on data"):
        tensor[mask] = Tensor([1.0, 2.0], device=cpu)
    with pytest.raises(NotSupported, match="combined with other indices"):
        tensor[mask[0], index] = 1
    with pytest.raises(BadArgument, match=r"the mask.s shape \[3\].* the axes \[2\]"):
        tensor[mask[0]] = 1
    with pytest.raises(BadArgument, match=r"assign: shapes \[4\]"):
        tensor[index] = Tensor([1.0, 2.0, 3.0, 4.0], device=cpu)
    with pytest.raises(BadArgument, match="the index's shape"):
        tensor.scatter(0, index, 1)
    with pytest.raises(NotSupported, match="bools are not supported"):
        mask.scatter_add(0, index.reshape(1, 1), True)
    with pytest.raises(BadArgument, match="reduce must be one of"):
        tensor.scatter_reduce(0, index.reshape(1, 1), 1, "median")
    empty = Tensor(np.zeros((0,), np.int64), device=cpu)
    tensor[empty] = 5
    assert tensor.numpy().max() == 0
