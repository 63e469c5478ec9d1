"""Gradients of maxima of windows, of one to three axes: all to the first of equals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor


def _expected(x: np.ndarray[Any, Any], size: int, step: int) -> np.ndarray[Any, Any]:
    """Of the sum of the maxima of all windows of the last axes of [batch, channels, ...]."""
    result = np.zeros_like(x)
    counts = [-(-(length - size) // step) + 1 for length in x.shape[2:]]  # as by ceil_mode
    for place in np.ndindex(x.shape[0], x.shape[1], *counts):
        index = (*place[:2], *(slice(step * at, step * at + size) for at in place[2:]))
        window = x[index]
        result[index].flat[int(window.argmax())] += 1
    return result


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(("size", "step"), [(2, 2), (3, 2)])
def test_the_first_of_equals_gets_the_gradient(axes: int, size: int, step: int) -> None:
    values = np.random.default_rng(axes).integers(0, 3, (1, 2, 6, 7, 5)[: axes + 2])
    x = Tensor(values.astype(np.float32))
    x.requires_grad = True
    pool = getattr(x, f"max_pool{axes}d")
    pool(size, stride=step, ceil_mode=True).sum().backward()
    assert np.array_equal(x.grad.numpy(), _expected(values.astype(np.float32), size, step))
