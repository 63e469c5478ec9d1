"""Arguments of methods that PyTorch's have: alpha, rounding_mode, decimals, dtype, offsets."""

from __future__ import annotations

import numpy as np
import pytest

import ugpu
from ugpu.hcq.errors import BadArgument, BadIndex, NotSupported

WHOLE = np.array([-7, -6, -1, 0, 1, 6, 7], np.int64)
SQUARE = np.arange(12, dtype=np.int32).reshape(3, 4)


def on_host(array: np.ndarray) -> ugpu.Tensor:
    return ugpu.Tensor(array, device="cpu")


def test_alpha_is_a_factor_of_the_operand() -> None:
    one, two = on_host(SQUARE), on_host(SQUARE[:, :1])
    assert np.array_equal(one.add(two, alpha=3).numpy(), SQUARE + 3 * SQUARE[:, :1])
    assert np.array_equal(one.sub(2, alpha=5).numpy(), SQUARE - 10)
    with pytest.raises(BadArgument, match="add: alpha must be a number, got 'x'"):
        one.add(two, alpha="x")


@pytest.mark.parametrize("divisor", [3, -3])
def test_quotients_are_rounded(divisor: int) -> None:
    down, cut = (on_host(WHOLE).div(divisor, rounding_mode=m) for m in ("floor", "trunc"))
    assert down.dtype is cut.dtype is ugpu.dtypes.int64
    assert down.tolist() == [int(n) // divisor for n in WHOLE]
    assert cut.tolist() == [int(n / divisor) for n in WHOLE]
    real = WHOLE.astype(np.float32) / 2
    cut = on_host(real).div(divisor, rounding_mode="trunc")
    assert np.array_equal(cut.numpy(), np.trunc(real / np.float32(divisor)))


def test_a_quotient_of_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(BadArgument, match="rounding_mode must be 'trunc', 'floor' or None"):
        on_host(WHOLE).div(2, rounding_mode="up")


def test_numbers_are_rounded_to_places() -> None:
    real = np.array([1.2344, -7.8917, 1250.0, 0.0], np.float32)
    assert np.allclose(on_host(real).round(decimals=2).numpy(), np.round(real, 2))
    assert np.array_equal(on_host(real).round(decimals=-2).numpy(), np.round(real, -2))
    with pytest.raises(BadArgument, match="round: decimals needs floats, got int64"):
        on_host(WHOLE).round(decimals=1)


@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 9])
def test_diagonals(offset: int) -> None:
    cube = np.arange(24).reshape(2, 3, 4)
    got = on_host(cube).diagonal(offset, dim1=0, dim2=2)
    assert np.array_equal(got.numpy(), cube.diagonal(offset, 0, 2))
    assert np.array_equal(on_host(SQUARE).diag(offset).numpy(), np.diag(SQUARE, offset))
    line = SQUARE[0] + 1
    assert np.array_equal(on_host(line).diag(offset).numpy(), np.diag(line, offset))


def test_a_diagonal_needs_two_different_axes() -> None:
    with pytest.raises(BadArgument, match="contains an axis twice"):
        on_host(SQUARE).diagonal(0, 1, -1)


def test_types_of_totals() -> None:
    bits = on_host(np.array([True, True, False]))
    assert bits.sum(dtype="float32").dtype is ugpu.dtypes.float32
    assert bits.cumsum(dtype="int32").tolist() == [1, 2, 2]
    assert bits.sum(dtype="int32").dtype is bits.cumsum(dtype="int32").dtype is ugpu.dtypes.int32
    assert on_host(SQUARE).prod(axis=1, dtype="float32").dtype is ugpu.dtypes.float32
    narrow = on_host(np.array([3000.0, 1.0], np.float16))
    for name in ("softmax", "log_softmax", "softmin"):
        got = getattr(narrow, name)(0, dtype="float32")
        assert got.dtype is ugpu.dtypes.float32
        assert np.array_equal(got.numpy(), getattr(narrow.cast("float32"), name)(0).numpy())


def test_names_of_pytorch() -> None:
    x = on_host(SQUARE.astype(np.float32))
    assert np.array_equal(x.flip(dims=(0, 1)).numpy(), SQUARE[::-1, ::-1])
    assert x.flatten(start_dim=0).shape == (12,)
    assert x.transpose(dim0=0, dim1=1).shape == (4, 3)
    assert x.topk(k=2, dim=1)[0].tolist() == np.sort(SQUARE, 1)[:, :1:-1].tolist()
    assert x.sort(dim=0, stable=True)[1].tolist() == [[n] * 4 for n in range(3)]
    with pytest.raises(BadArgument, match="flip got both axes and dims"):
        x.flip(0, dims=(1,))


def test_one_image_is_convolved() -> None:
    image, kernel = on_host(np.ones((2, 5, 5), np.float32)), on_host(np.ones((3, 2, 3, 3), "f"))
    assert image.conv2d(kernel, padding=1).shape == (3, 5, 5)
    assert image.conv2d(kernel)[0, 0, 0].item() == 18


def test_a_tensor_without_axes_has_no_order() -> None:
    number = on_host(np.array(3, np.int32))
    assert number.transpose(0, -1).item() == 3
    with pytest.raises(BadIndex, match="transpose: axis 1 is out of range"):
        number.transpose(0, 1)


@pytest.mark.parametrize("kept", [False, True])
def test_bools_are_not_joined_by_an_index(kept: bool) -> None:
    bits, places = on_host(np.ones(3, bool)), on_host(np.zeros(3, np.int64))
    with pytest.raises(NotSupported, match="scatter_reduce: bools are not supported"):
        bits.scatter_reduce(0, places, bits, "amax", include_self=kept)
