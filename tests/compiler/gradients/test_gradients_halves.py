"""16-bit floats beside float64 in NumPy: nothing between is rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.gradients.test_gradients_attention import wanted
from ugpu.compiler import Tensor
from ugpu.compiler.gradients import attention

BOUND = {"float16": 2e-3, "bfloat16": 1.6e-2}  # of the largest element: two roundings to the type


def rounded(array: NDArray[Any], name: str) -> NDArray[Any]:
    return Tensor(array.astype(np.float32)).cast(name).cast("float32").numpy().astype(np.float64)


@pytest.mark.parametrize("blocks", [False, True], ids=["in one kernel", "by blocks of rows"])
@pytest.mark.parametrize("name", BOUND)
def test_attention_with_large_scores(
    name: str, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of some hundreds: rounded to the type, weights would be wrong by whole factors."""
    if blocks:
        monkeypatch.setattr(attention, "_in_one_kernel", lambda g, xs: False)
        monkeypatch.setattr(attention, "SCORES", 40)
    random = np.random.default_rng(3)
    shapes = [(4, 3, 8), (4, 6, 8), (4, 6, 8), (4, 3, 8)]
    q, k, v, g = (rounded(random.uniform(-9, 9, shape), name) for shape in shapes)
    mine = [Tensor(each.astype(np.float32)).cast(name).requires_grad_() for each in (q, k, v)]
    result = mine[0].scaled_dot_product_attention(mine[1], mine[2])
    assert result.dtype.name == name
    result.backward(Tensor(g.astype(np.float32)).cast(name))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = [weights / weights.sum(-1, keepdims=True) @ v]
    exact += wanted(q, k, v, g, np.ones((3, 6), bool), np.zeros((3, 6)))
    for own, true in zip([result, *(each.grad for each in mine)], exact, strict=True):
        assert own is not None and own.dtype.name == name
        apart = np.abs(own.cast("float32").numpy() - true).max()
        assert apart <= BOUND[name] * np.abs(true).max()


def test_powers_whose_results_exceed_a_half() -> None:
    base = Tensor(np.array([8.0, 4.0], np.float16)).requires_grad_()
    exponent = Tensor(np.array([5.5, 9.0], np.float16)).requires_grad_()  # 92,682 and 262,144
    (base**exponent).backward(Tensor(np.array([1 / 64, 1 / 1024], np.float16)))
    assert base.grad is not None and exponent.grad is not None
    np.testing.assert_allclose(base.grad.numpy(), [5.5 * 8**4.5 / 64, 9 * 4**8 / 1024], rtol=1e-3)
    np.testing.assert_allclose(
        exponent.grad.numpy(), [8**5.5 / 64 * math.log(8), 256 * math.log(4)], rtol=1e-3
    )
