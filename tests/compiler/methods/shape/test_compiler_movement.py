"""Movement: chains of random operations against NumPy, alone and between computations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_cases import arrays
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Array = NDArray[Any]
Draw = Callable[[Any], Any]  # a strategy to one of its values
check = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def factorizations(draw: Draw, size: int) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and len(shape) < 4:
        factors = [n for n in range(1, size + 1) if size % n == 0]
        factor = draw(st.sampled_from(factors))
        shape.append(factor)
        size //= factor
    return (*shape, size)


def random_slice(draw: Draw, size: int) -> slice:
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2]))
    return slice(draw(bound), draw(bound), step)


def step(draw: Draw, tensor: Tensor, array: Array) -> tuple[Tensor, Array]:
    """One random movement, on both."""
    kind = draw(st.sampled_from(["reshape", "permute", "expand", "pad", "index", "flip", "add"]))
    if kind == "reshape":
        shape = factorizations(draw, array.size) if array.size else array.shape
        return tensor.reshape(shape), array.reshape(shape)
    if kind == "permute":
        order = draw(st.permutations(range(array.ndim)))
        return tensor.permute(*order), array.transpose(order)
    if kind == "expand":
        shape = tuple(draw(st.integers(1, 3)) if size == 1 else size for size in array.shape)
        if draw(st.booleans()):
            shape = (2, *shape)
        return tensor.expand(shape), np.broadcast_to(array, shape)
    if kind == "pad":
        pairs = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in array.shape]
        number = draw(st.sampled_from([0, 0, 7]))
        return tensor.pad(pairs, number), np.pad(
            array, pairs, constant_values=number
        ) if pairs else array
    if kind == "flip":
        axes = tuple(i for i in range(array.ndim) if draw(st.booleans()))
        return tensor.flip(axes), np.flip(array, axes)
    if kind == "add":  # something to compute in between
        return tensor * 2 + 1, array * 2 + 1
    key: list[Any] = []
    for size in array.shape:
        if draw(st.booleans()):
            key.append(random_slice(draw, size))
        elif size:
            key.append(draw(st.integers(-size, size - 1)))
        else:
            key.append(slice(None))
        if draw(st.integers(0, 5)) == 0:
            key.append(None)
    if draw(st.booleans()) and key:
        key[draw(st.integers(0, len(key) - 1)) :] = [...]
    return tensor[tuple(key)], array[tuple(key)]


@check
@given(data=st.data())
def test_chains_of_movements(cpu: Device, data: st.DataObject) -> None:
    array = data.draw(arrays(dtype="int32", longest=5))
    tensor = Tensor(array, device=cpu)
    for _ in range(data.draw(st.integers(1, 6))):
        if array.size > 3000 or array.ndim > 6:
            break
        tensor, array = step(data.draw, tensor, array)
        assert tensor.shape == array.shape
    np.testing.assert_array_equal(tensor.numpy(), array)


@check
@given(data=st.data())
def test_cat_and_stack(cpu: Device, data: st.DataObject) -> None:
    first = data.draw(arrays(dtype="float32", most_axes=3))
    count = data.draw(st.integers(1, 4))
    same = [data.draw(arrays(dtype="float32", shape=first.shape)) for _ in range(count)]
    place = data.draw(st.integers(-first.ndim - 1, first.ndim))
    stacked = Tensor.stack([Tensor(a, device=cpu) for a in same], place)
    np.testing.assert_array_equal(stacked.numpy(), np.stack(same, place))
    if first.ndim:
        axis = data.draw(st.integers(-first.ndim, first.ndim - 1))
        shape = list(first.shape)
        shape[axis] = data.draw(st.integers(0, 5))
        pieces = [*same, data.draw(arrays(dtype="float32", shape=tuple(shape)))]
        joined = Tensor.cat([Tensor(a, device=cpu) + 1 for a in pieces], axis)
        np.testing.assert_array_equal(joined.numpy(), np.concatenate([a + 1 for a in pieces], axis))


def test_other_spellings(cpu: Device) -> None:
    array = np.arange(24).reshape(2, 1, 3, 4)
    tensor = Tensor(array, device=cpu)
    assert tensor.squeeze().shape == (2, 3, 4) and tensor.squeeze(0).shape == array.shape
    assert tensor.unsqueeze(-1).shape == (2, 1, 3, 4, 1)
    assert tensor.flatten(1).shape == (2, 12) and tensor.view(-1, 6).shape == (4, 6)
    np.testing.assert_array_equal(tensor.T.numpy(), array.T)
    np.testing.assert_array_equal(tensor.transpose(1, -1).numpy(), array.swapaxes(1, -1))
    np.testing.assert_array_equal(tensor.repeat(2, 1, 2, 3).numpy(), np.tile(array, (2, 1, 2, 3)))
    np.testing.assert_array_equal(tensor.expand(-1, 5, -1, -1).numpy(), array.repeat(5, 1))
    np.testing.assert_array_equal(
        tensor.shrink([(0, 1), (0, 1), (1, 3), (2, 2)]).numpy().shape, (1, 1, 2, 0)
    )
    assert len(tensor) == 2 and [row.shape for row in (tensor[0], tensor[..., -1])] == [
        (1, 3, 4),
        (2, 1, 3),
    ]


def test_made_of_nothing(cpu: Device) -> None:
    np.testing.assert_array_equal(Tensor.arange(5, device=cpu).numpy(), np.arange(5))
    np.testing.assert_array_equal(Tensor.arange(9, 2, -3, device=cpu).numpy(), np.arange(9, 2, -3))
    np.testing.assert_array_equal(
        Tensor.arange(0.5, 3, 0.5, device=cpu).numpy(), np.arange(0.5, 3, 0.5).astype(np.float32)
    )
    assert Tensor.arange(0, device=cpu).shape == (0,)
    np.testing.assert_array_equal(Tensor.eye(3, 5, device=cpu).numpy(), np.eye(3, 5, dtype="f4"))
    assert Tensor.full((2, 2), 7, device=cpu).tolist() == [[7, 7], [7, 7]]
    assert Tensor.zeros(2, 0, device=cpu).numpy().shape == (2, 0)
    assert Tensor.ones(device=cpu).item() == 1.0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda t: t.reshape(4, 2), r"reshape: shape \[2, 3\] .* than \[4, 2\]"),
        (lambda t: t.reshape(-1, 4), "6 elements cannot be reshaped to"),
        (lambda t: t.permute(0, 0), r"permute: .* got \(0, 0\)"),
        (lambda t: t.permute(0, 2), "axis 2 is out of range for shape"),
        (lambda t: t.expand(4, 3), r"expand: shape \[2, 3\] .* to \[4, 3\]"),
        (lambda t: t.pad([(1, 1)]), "pad: "),
        (lambda t: t.pad([(0, -9), (0, 0)]), "pad: "),
        (lambda t: t.shrink([(0, 3), (0, 3)]), "shrink: "),
        (lambda t: t[2], r"index 2 is outside axis 0 of shape \[2, 3\]"),
        (lambda t: t[0, 0, 0], "too many indices: got 3 for shape"),
        (lambda t: t["x"], "an index must be int"),
        (lambda t: Tensor.cat([t, t[:, :2]], 0), "cat: shapes"),
        (lambda t: Tensor.stack([t, t.T]), "stack: shapes"),
        (lambda t: Tensor.cat([]), "cat: expected at least one Tensor"),
    ],
)
def test_errors_name_the_operation_and_shapes(
    cpu: Device, action: Callable[[Tensor], object], message: str
) -> None:
    with pytest.raises(BadArgument, match=message):
        action(Tensor(np.zeros((2, 3)), device=cpu))


@pytest.mark.parametrize("mask", [
    [[True, False, True], [False, True, True]], [False, True], [], True, False,
], ids=str)  # fmt: skip
def test_indexing_by_masks_of_the_device(cpu: Device, mask: object) -> None:
    array = np.arange(6.0).reshape(2, 3)
    known = np.array(mask, bool)
    expected = array[known] if known.shape != (0,) else array[:0]
    found = Tensor(array, device=cpu)[Tensor(known, device=cpu)]
    assert found.shape == expected.shape and np.array_equal(found.numpy(), expected)


def test_false_beside_other_indices(cpu: Device) -> None:
    array = np.zeros((2, 3, 4))
    for key in ((..., False), (slice(None), False), (0, False, slice(None)), (False, 1)):
        assert Tensor(array, device=cpu)[key].shape == array[key].shape
    with pytest.raises(IndexError, match="the mask's shape"):
        Tensor(array, device=cpu)[Tensor([True], device=cpu)]
