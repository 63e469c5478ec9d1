"""Functions and arrangements made of other operations: ends, types, refusals. Values are compared
on every device by the operation corpus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.compiler import Tensor, jit
from ugpu.compiler.methods.order.running import BLOCK
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

INF = float("inf")


def test_at_the_ends(cpu: Device) -> None:
    ends = Tensor([INF, -INF, float("nan"), 0.0, -0.0], device=cpu)

    def found(tensor: Tensor) -> list[str]:
        return [f"{number:.4g}" for number in tensor.numpy()]

    assert found(ends.atan()) == ["1.571", "-1.571", "nan", "0", "-0"]
    assert found(ends.sinh()) == found(ends.asinh()) == ["inf", "-inf", "nan", "0", "-0"]
    assert found(ends.cosh()) == ["inf", "inf", "nan", "1", "1"]
    assert found(ends.erf()) == ["1", "-1", "nan", "0", "-0"]
    assert found(ends.softplus()) == ["inf", "0", "nan", "0.6931", "0.6931"]
    assert found(ends.logaddexp(ends)) == ["inf", "-inf", "nan", "0.6931", "0.6931"]
    assert found(ends.elu())[:3] == ["inf", "-1", "nan"]
    assert found(Tensor([2.0, 1.0, -1.0], device=cpu).acos()) == ["nan", "0", "3.142"]
    low = Tensor([[-INF, -INF], [INF, 0.0], [1e30, 1e30]], device=cpu)
    assert found(low.logsumexp(1)) == ["-inf", "inf", "1e+30"]


def test_types(cpu: Device) -> None:
    half = Tensor(np.linspace(-3, 3, 50, dtype=np.float16), device=cpu)
    wanted = half.float().gelu().half()
    assert half.gelu().dtype.name == "float16" and (half.gelu() - wanted).abs().max().item() == 0
    whole = Tensor([1, 2, 3], device=cpu)
    assert whole.tan().dtype.name == "float32" and whole.relu6().dtype is whole.dtype
    assert whole.cumsum().dtype is whole.dtype
    flags = Tensor([True, False, True], device=cpu)
    assert flags.cumsum().tolist() == [1, 1, 2]
    # 16-bit floats are summed in float32, and rounded once
    ones = Tensor(np.ones(3000, np.float16), device=cpu)
    assert ones.cumsum()[-1].item() == 3000
    assert whole.full_like(7).tolist() == [7, 7, 7] and half.zeros_like().dtype is half.dtype


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(0, 3), size=st.sampled_from([0, 1, 7, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 500]),
    axis=st.sampled_from([0, 1]), seed=st.integers(0, 9),
)  # fmt: skip
def test_rows_as_numpy(cpu: Device, rows: int, size: int, axis: int, seed: int) -> None:
    array = np.random.default_rng(seed).integers(-4, 5, (rows, size)).astype(np.float32)
    if seed % 3 == 0 and array.size:
        array.flat[seed % array.size] = np.nan
    given_ = array if axis else array.T.copy()
    tensor = Tensor(given_, device=cpu)
    np.testing.assert_array_equal(tensor.cumsum(axis).numpy(), np.cumsum(given_, axis))
    order = np.argsort(given_, axis, kind="stable")
    if given_.size:
        values, places = tensor.sort(axis)
        np.testing.assert_array_equal(places.numpy(), order)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(given_, order, axis))
        most = np.maximum.accumulate(given_, axis)
        np.testing.assert_array_equal(tensor.cummax(axis).numpy(), most)


def test_in_a_recorded_function(cpu: Device) -> None:
    """A sampler: the most likely of a row, and what they add up to."""

    @jit
    def sample(scores: Tensor) -> tuple[Tensor, Tensor]:
        values, places = scores.softmax().topk(3)
        return places, values.cumsum(-1)

    for seed in range(4):
        scores = np.random.default_rng(seed).normal(size=40).astype(np.float32)
        places, totals = sample(Tensor(scores, device=cpu))
        best = np.argsort(-scores, kind="stable")[:3]
        assert places.tolist() == best.tolist()
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(totals.numpy(), np.cumsum(weights[best] / weights.sum()), 1e-5)


def test_parts(cpu: Device) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 12)
    tensor = Tensor(array, device=cpu)
    assert [part.shape for part in tensor.split(5, 1)] == [(2, 5), (2, 5), (2, 2)]
    assert [part.shape for part in tensor.split([1, 0, 11], -1)] == [(2, 1), (2, 0), (2, 11)]
    assert [part.shape for part in tensor.chunk(5, 1)] == [(2, 3)] * 4
    assert tensor.unflatten(1, (3, -1)).shape == (2, 3, 4)
    assert np.array_equal(tensor.roll(5).numpy(), np.roll(array, 5))
    assert np.array_equal(Tensor([1, 2], device=cpu).diag().numpy(), np.diag([1, 2]))
    picked = tensor.masked_select(tensor > 20)
    assert picked.tolist() == [21, 22, 23]
    assert tensor.lerp(tensor + 2, 0.5).tolist() == (array + 1).tolist()
    attended = tensor.scaled_dot_product_attention(
        tensor, tensor, mask=Tensor.eye(2, device=cpu) > 0
    )
    assert np.array_equal(attended.numpy(), array)


def test_refusals(cpu: Device) -> None:
    tensor = Tensor(np.zeros((2, 3), np.float32), device=cpu)
    for call, words in (
        (lambda: tensor.split([1, 1], 1), r"split: sizes \[1, 1\] do not add up to axis 1"),
        (lambda: tensor.chunk(0), "chunk: count must be positive, got 0"),
        (lambda: tensor[0].tril(), "tril: expected at least two axes"),
        (lambda: tensor.topk(4, 1), r"topk: count must be .* got 4"),
        (
            lambda: tensor.roll((1, 2), 0),
            "roll: expected as many shifts as axes, got 2 shifts for 1 axes",
        ),
        (lambda: tensor.one_hot(3), "one_hot: expected integers"),
        (lambda: tensor.cumsum(2), "cumsum: axis 2"),
        (lambda: tensor.unsqueeze(0).diag(), "diag: expected one axis or two"),
    ):
        with pytest.raises(BadArgument, match=words):
            call()


def test_limits_of_integers_and_sums_of_all(cpu: Device) -> None:
    whole = Tensor([-3, -1, 0, 2, 5], device=cpu)
    assert whole.hardtanh(-1.5, 2.5).tolist() == [-1, -1, 0, 2, 2]  # as PyTorch: -1 and 2
    assert whole.hardtanh(-1.5, 2.5).dtype is whole.dtype
    assert Tensor(True, device=cpu).sum_to_size(()).dtype.name == "int64"


def test_borders_have_no_gradient(cpu: Device) -> None:
    """A position on the border of an image counts as outside, as in PyTorch."""
    image = Tensor(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), device=cpu)
    grid = Tensor(np.array([[[[-1.0, 0.5], [1.0, 1.0], [0.5, -0.5]]]], np.float32), device=cpu)
    grid.requires_grad_()
    image.grid_sample(grid, "bilinear", "border", True).sum().backward()
    assert grid.grad is not None
    np.testing.assert_allclose(grid.grad.numpy(), [[[[0, 3], [0, 0], [1, 3]]]])
