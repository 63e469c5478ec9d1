"""Indexing by arrays, lists and tensors, against NumPy; gathers cost no kernel of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiler.compiler_cases import HOST, kernels_of
from ugpu.compiler import Tensor
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.schedule.group import describe
from ugpu.compiler.schedule.grouping import schedule
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument


def plan(tensor: Tensor) -> list[str]:
    return [describe(group) for group in schedule([tensor.node])]


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key with at least one index array; arrays broadcast to one shape."""
    common = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    key: list[Any] = []
    for size in shape:
        kind = draw(st.sampled_from(["array", "array", "slice", "int", "narrow"]))
        if kind == "int":
            key.append(draw(st.integers(-size, size - 1)))
        elif kind == "slice":
            bounds = st.none() | st.integers(-size - 1, size + 1)
            step = draw(st.sampled_from([None, 1, 2, -1]))
            key.append(slice(draw(bounds), draw(bounds), step))
        else:
            wanted = common if kind == "array" else tuple(1 for _ in common)
            type_ = draw(st.sampled_from(["int64", "int32", "int8", "uint8"]))
            low = 0 if type_ == "uint8" else -size
            key.append(random.integers(low, size, wanted).astype(type_))
        if draw(st.integers(0, 9)) == 0:
            key.append(None)
    cut = draw(st.integers(1, len(key)))
    if draw(st.booleans()):
        return tuple(key[:cut])
    return tuple(key)


@given(data=st.data(), as_tensor=st.booleans())
def test_as_numpy(cpu: Device, data: st.DataObject, as_tensor: bool) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    key = data.draw(keys(shape))
    tensor = Tensor(array, device=cpu)
    given_key = tuple(
        Tensor(entry, device=cpu) if as_tensor and isinstance(entry, np.ndarray) else entry
        for entry in key
    )
    expected = array[key]
    result = (tensor + 1)[given_key]
    assert result.shape == expected.shape
    assert np.array_equal(result.numpy(), expected + 1)


def test_masks_and_lists(cpu: Device) -> None:
    array = np.random.default_rng(1).random((4, 5), np.float32)
    tensor = Tensor(array, device=cpu)
    for key in ([2, 0], [[1, 2], [3, -1]], array > 0.5, (slice(1, 3), [True] * 3 + [False] * 2)):
        assert np.array_equal(tensor[key].numpy(), array[key])
    assert tensor[[]].shape == (0, 5)
    assert np.array_equal(tensor.take([3, 3, 0], 1).numpy(), array.take([3, 3, 0], 1))
    with pytest.raises(BadArgument, match="the mask's shape"):
        tensor[np.ones((3, 5), bool)]


def test_outside_is_refused_or_zero(cpu: Device) -> None:
    tensor = Tensor([1.0, 2.0, 3.0], device=cpu)
    with pytest.raises(BadArgument, match="index 3 is outside axis 0"):
        tensor[[0, 3]]
    where = Tensor(np.array([0, 3, -3, -4, 2**31], np.int64), device=cpu)
    assert tensor[where].tolist() == [1, 0, 1, 0, 0]
    far = Tensor(np.array([2**63, 2], np.uint64), device=cpu)
    assert tensor[far].tolist() == [0, 3]
    with pytest.raises(BadArgument, match="float32"):
        tensor[tensor]


def test_what_is_folded(cpu: Device) -> None:
    table = Tensor(np.ones((50, 16), np.float32), device=cpu)
    tokens = Tensor(np.arange(8) % 5, device=cpu)
    counts = Tensor.arange(8, device=cpu)
    assert len(plan(table[tokens] * 2 + 1)) == 1
    assert len(plan((table * 2)[tokens].sum(0))) == 1
    assert len(plan(table[tokens] @ table[tokens].T)) == 1
    assert len(plan(table.sum(1)[tokens])) == 2
    (kernel,) = kernels_of((table[counts * 2 + 1] + 1).node, HOST)
    (sliced,) = kernels_of((table[1:17:2] + 1).node, HOST)
    assert format_kernel(kernel).splitlines()[2:] == format_kernel(sliced).splitlines()[2:]
    assert len(plan(table[tokens[tokens]])) == 1
    assert len(plan(table[table.argmax(0)])) == 2


@pytest.mark.parametrize(
    "build",
    [
        lambda x, _: x[[2, 1, 0]],
        lambda x, places: x[places],
        lambda x, places: x[places][[1, 0, 2]],
        lambda x, _: x[::-1][[2, 1, 0]] * 2,
        lambda x, places: (x.reshape(3, 1) * x)[places].sum(0)[[1, 0, 2]],
    ],
    ids=["list", "tensor", "twice", "computed", "rows"],
)
def test_places_that_depend_on_the_sum_of_a_lookup(
    build: Callable[[Any, Any], Any], cpu: Device
) -> None:
    """The sum cannot be computed within the kernel that looks up with it, at any depth."""
    array, places = np.array([3, 1, 2], np.float32), np.array([1, 2, 0])
    shares = np.array([0.1, 0.04], np.float32)

    def picked(x: Any, order: Any, share: Any, long: Callable[[Any], Any]) -> Any:
        looked_up = build(x, order)
        return looked_up[long(share * looked_up.sum()) % 3]

    tensors = [Tensor(each, device=cpu) for each in (array, places, shares)]
    found = picked(*tensors, lambda each: each.long())
    expected = picked(array, places, shares, lambda each: each.astype(np.int64))
    assert found.tolist() == expected.tolist()


def test_gathers_inside_products_and_pads(cpu: Device) -> None:
    random = np.random.default_rng(2)
    table = random.random((70, 40), np.float32)
    rows, columns = random.integers(-70, 70, 33), random.integers(0, 40, 50)
    tensor = Tensor(table, device=cpu)
    row, column = Tensor(rows, device=cpu), Tensor(columns, device=cpu)
    product = tensor[row] @ tensor[:40, column]
    assert np.allclose(product.numpy(), table[rows] @ table[:40, columns], rtol=1e-5)
    padded = tensor[row.pad([(1, 2)], value=3)].pad([(0, 1), (2, 0)], value=7)
    expected = np.pad(table[np.pad(rows, (1, 2), constant_values=3)], [(0, 1), (2, 0)],
                      constant_values=7)  # fmt: skip
    assert np.array_equal(padded.numpy(), expected)
    chosen = tensor[row, column[:33]]
    assert np.array_equal(chosen.numpy(), table[rows, columns[:33]])
