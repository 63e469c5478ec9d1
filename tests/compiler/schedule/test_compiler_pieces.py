"""cat and stack of many pieces: written piece by piece, never a choice among all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor
from ugpu.compiler.front.explain import watch
from ugpu.hcq.device.device import Device

Array = NDArray[Any]


device = device_fixture("cpu", "virtual:navi31", "virtual:ga102")


def arrays(shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[Array]:
    random = np.random.default_rng(len(shapes))
    return [(random.random(shape) * 100).astype(dtype) for shape in shapes]


def tensors(given_: Sequence[Array], device: Device) -> list[Tensor]:
    return [Tensor(each, device=device) for each in given_]


def run(tensor: Tensor) -> tuple[Array, list[str]]:
    """The result, and the code of its kernels."""
    with watch() as runs:
        found = tensor.numpy()
    return found, [kernel.code for each in runs for kernel in each.kernels]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_alike_pieces_share_their_code(device: Device, dtype: str) -> None:
    given_ = arrays([(6, 40)] * 24, dtype)
    for axis in (0, 1):
        found, codes = run(Tensor.cat(tensors(given_, device), axis))
        assert np.array_equal(found, np.concatenate(given_, axis))
        few, fewer = run(Tensor.cat(tensors(given_[:6], device), axis))
        assert np.array_equal(few, np.concatenate(given_[:6], axis))
        assert len(codes) == len(fewer) == 1
        loads = [code.count(" load ") - code.count("load ptr") for code in (codes[0], fewer[0])]
        assert loads[0] == loads[1]  # 18 pieces more, and no more code that reads


def test_different_pieces(device: Device) -> None:
    """Of other lengths, repeated, computed, constant, empty, one element."""
    given_ = arrays([(3, 5), (1, 5), (0, 5), (3, 5), (40, 5), (1, 5)])
    made = tensors(given_, device)
    pieces = [*made, made[0], made[0] * 2, made[3].exp(), made[4].flip(0)]
    pieces += [Tensor.full((2, 5), 7, device=device), made[0][:, :5], made[3] * 2]
    wanted = [*given_, given_[0], given_[0] * 2, np.exp(given_[3]), given_[4][::-1]]
    wanted += [np.full((2, 5), 7, np.float32), given_[0], given_[3] * 2]
    found, codes = run(Tensor.cat(pieces))
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-6)
    assert len(codes) == 1
    scalars = tensors(arrays([()] * 9), device)
    assert Tensor.stack(scalars).numpy().tolist() == [each.item() for each in scalars]


def test_pieces_read_by_indices(device: Device) -> None:
    table = arrays([(20, 8)])[0]
    where = [np.array([i, 19 - i, 5]) for i in range(6)]
    rows = [Tensor(table, device=device)[each] for each in tensors(where, device)]
    assert np.array_equal(Tensor.cat(rows).numpy(), np.concatenate([table[i] for i in where]))


def test_what_reads_many_pieces_reads_them_stored(cpu: Device) -> None:
    given_ = arrays([(16, 3)] * 20)
    joined = np.concatenate(given_, 1)
    few = Tensor.cat(tensors(given_[:3], cpu), 1) * 2 + 1
    assert few.memory_plan().kernels == 1
    many = Tensor.cat(tensors(given_, cpu), 1) * 2 + 1
    assert many.memory_plan().kernels == 2
    np.testing.assert_allclose(many.numpy(), joined * 2 + 1, rtol=1e-6)
    total = Tensor.stack(tensors(given_, cpu), 1).reshape(320, 3).sum(1)
    np.testing.assert_allclose(total.numpy(), np.stack(given_, 1).reshape(320, 3).sum(1), rtol=1e-5)
    whole = Tensor.cat(tensors(given_, cpu), 1).reshape(960).contiguous()
    assert whole.memory_plan().kernels == 1
    assert np.array_equal(whole.numpy(), joined.reshape(960))
    part = Tensor.cat(tensors(given_, cpu), 1)[:, 4:6] + 0
    assert part.memory_plan().kernels == 1  # what is cut out needs two pieces
    assert np.array_equal(part.numpy(), joined[:, 4:6])


def test_beside_other_kernels(cpu: Device) -> None:
    """Chains, kernels with several outputs and assignments keep to themselves."""
    given_ = arrays([(8, 4)] * 6)
    made = tensors(given_, cpu)
    rows = Tensor.cat([each.softmax() for each in made])
    raised = [np.exp(each - each.max(-1, keepdims=True)) for each in given_]
    wanted = np.concatenate([each / each.sum(-1, keepdims=True) for each in raised])
    np.testing.assert_allclose(rows.numpy(), wanted, rtol=1e-5)
    one, two = Tensor.cat(made), Tensor.cat([each + 1 for each in made])
    one.realize(two)
    assert np.array_equal(two.numpy(), one.numpy() + 1)
    target = Tensor(np.zeros((50, 4), np.float32), device=cpu).realize()
    target[1:49] = Tensor.cat(made)
    assert np.array_equal(target.numpy()[1:49], np.concatenate(given_))


@settings(max_examples=15)
@given(data=st.data())
def test_as_numpy(cpu: Device, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, 2))
    shape = data.draw(st.lists(st.sampled_from([1, 2, 5, 33]), min_size=3, max_size=3))
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 2, 2, 2, 7]), min_size=2, max_size=9))
    shapes = [(*shape[:axis], length, *shape[axis + 1 :]) for length in lengths]
    given_ = arrays([tuple(each) for each in shapes])
    made = tensors(given_, cpu)
    double = data.draw(st.sets(st.integers(0, len(made) - 1)))
    pieces = [each * 2 if i in double else each for i, each in enumerate(made)]
    wanted = [each * 2 if i in double else each for i, each in enumerate(given_)]
    result, expected = Tensor.cat(pieces, axis), np.concatenate(wanted, axis)
    if data.draw(st.booleans()):
        result, expected = result.flip(axis) + 1, np.flip(expected, axis) + 1
    assert np.array_equal(result.numpy(), expected)


def counted(codes: Sequence[str]) -> int:
    return sum(code.count(" store ") for code in codes)


@pytest.mark.parametrize("shape", [(None,), (None, 3), (6, None), (2, None, 5)])
def test_pieces_of_many_lengths_share_their_code(
    device: Device, shape: tuple[int | None, ...]
) -> None:
    axis = shape.index(None)
    given_ = arrays([tuple(size or 40 + i * i % 23 for size in shape) for i in range(40)])
    found, codes = run(Tensor.cat(tensors(given_, device), axis))
    assert np.array_equal(found, np.concatenate(given_, axis))
    few, fewer = run(Tensor.cat(tensors(given_[:12], device), axis))
    assert np.array_equal(few, np.concatenate(given_[:12], axis))
    assert len(codes) == 1
    assert counted(codes) == counted(fewer)


def test_long_pieces_beside_short_ones(device: Device) -> None:
    """Groups for parts of pieces; wide rows and narrow ones; vectors where all lengths allow."""
    for lengths in ([70000, 3, 1, 4000, 9, 17000, 1], [64, 4096, 40000, 12, 8, 128]):
        given_ = arrays([(length,) for length in lengths])
        assert np.array_equal(run(Tensor.cat(tensors(given_, device)))[0], np.concatenate(given_))
    wide = arrays([(9, length) for length in (1, 3000, 2, 5, 700, 9, 2100)])
    made = tensors(wide, device)
    assert np.array_equal(Tensor.cat(made, 1).numpy(), np.concatenate(wide, 1))
    turned = [each.T for each in made]
    assert np.array_equal(Tensor.cat(turned).numpy(), np.concatenate([each.T for each in wide]))


def test_padded_sequences_share_their_code(device: Device) -> None:
    given_ = arrays([(3 + i * 5 % 17, 4) for i in range(20)])
    padded = [each.pad([(0, 20 - each.shape[0]), (0, 0)], -1) for each in tensors(given_, device)]
    found, codes = run(Tensor.stack(padded))
    wanted = np.full((20, 20, 4), -1, np.float32)
    for row, each in zip(wanted, given_, strict=True):
        row[: len(each)] = each
    assert np.array_equal(found, wanted)
    assert counted(codes) == 1


@settings(max_examples=6)
@given(data=st.data())
def test_ragged_pieces_as_numpy(cpu: Device, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, 1))
    other = data.draw(st.sampled_from([1, 3, 8]))
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=5, max_size=12))
    given_ = arrays([(n, other) if axis == 0 else (other, n) for n in lengths])
    made = tensors(given_, cpu)
    views = [each[::-1, 1:] if data.draw(st.booleans()) else each for each in made]
    wanted = [
        array if view is tensor else array[::-1, 1:]
        for array, view, tensor in zip(given_, views, made, strict=True)
    ]
    if axis == 0:
        widest = max(view.shape[1] for view in views)
        pads = [(0, widest - view.shape[1]) for view in views]
        views = [v.pad([(0, 0), pad], 2) for v, pad in zip(views, pads, strict=True)]
        wanted = [
            np.pad(w, [(0, 0), pad], constant_values=2) for w, pad in zip(wanted, pads, strict=True)
        ]
    assert np.array_equal(Tensor.cat(views, axis).numpy(), np.concatenate(wanted, axis))
