"""Calls of torch.linalg, written once for both: results and gradients, also at singularities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.numeric import linalg

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SQUARE = np.random.default_rng(0).normal(size=(3, 3, 3)).astype(np.float32)
TALL = np.random.default_rng(1).normal(size=(2, 4, 2)).astype(np.float32)
EMPTY = np.zeros((0, 3, 3), np.float32)
ZERO = np.zeros((2, 3), np.float32)

CALLS: dict[str, tuple[np.ndarray, Callable[[Any, Any], Any]]] = {
    "inverse of as many as rows": (SQUARE, lambda m, x: m.inv(x)),
    "inverse of none": (EMPTY, lambda m, x: m.inv(x)),
    "negative power": (SQUARE, lambda m, x: m.matrix_power(x, -2)),
    "triangle of as many": (SQUARE, lambda m, x: m.solve_triangular(x, x[0], upper=True)),
    "norm of first axes": (SQUARE, lambda m, x: m.matrix_norm(x, 1, (0, 1), True)),
    "nuclear norm": (TALL, lambda m, x: m.matrix_norm(x, "nuc", dim=(-2, -1))),
    "norm of three at zero": (ZERO, lambda m, x: m.norm(x, 3, dim=1)),
    "norm of a half at zero": (ZERO, lambda m, x: m.vector_norm(x, 0.5)),
    "norm of minus one at zero": (ZERO, lambda m, x: m.vector_norm(x, -1.0)),
    "rank above a limit": (TALL, lambda m, x: m.matrix_rank(x, atol=1.5)),
    "rank of symmetric": (SQUARE, lambda m, x: m.matrix_rank(x + x.mT, hermitian=True)),
    "rank of nothing": (EMPTY[:, :, :0], lambda m, x: m.matrix_rank(x)),
    "upper triangle": (SQUARE, lambda m, x: m.eigvalsh(x, UPLO="U")),
    "pseudo-inverse of rank one": (TALL, lambda m, x: m.pinv(x[:, :, :1] @ x[:, :2, 1:].mT,
                                                             rtol=1e-3)),
    "pseudo-inverse of symmetric": (SQUARE, lambda m, x: m.pinv(x + x.mT, hermitian=True)),
    "pseudo-inverse of nothing": (EMPTY[:, :0], lambda m, x: m.pinv(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    given, call = CALLS[name]
    x, y = Tensor(given).requires_grad_(), torch.tensor(given, requires_grad=True)
    mine, theirs = call(linalg, x), call(torch.linalg, y)
    assert tuple(mine.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=2e-4, atol=1e-5)
    if theirs.requires_grad and theirs.numel():
        weight = np.linspace(0.5, 1.5, theirs.numel(), dtype=np.float32)
        weight = weight.reshape(tuple(theirs.shape))
        mine.backward(Tensor(weight))
        theirs.backward(torch.from_numpy(weight))
        largest = float(y.grad.abs().max())
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), 2e-3, 2e-4 * max(1, largest))
