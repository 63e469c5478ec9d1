"""Calls that PyTorch accepts, written once for both: same results, types and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.numeric import linalg
from ugpu.hcq.errors import BadArgument

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
X = np.linspace(-2, 3, 24, dtype=np.float32).reshape(2, 3, 4)
Y = np.cos(X * 7)


def _functional(x: Any) -> Any:
    """Where functions are that PyTorch has not as methods."""
    return Tensor if isinstance(x, Tensor) else F


def _hardtanh(x: Any) -> Any:
    return x.hardtanh(-1, 1) if isinstance(x, Tensor) else F.hardtanh(x, -1, 1)


# Of both: a method of the first tensor, with the second.
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "max of two": lambda x, y: x.max(y),
    "normalize": lambda x, y: _functional(x).normalize(x, p=1, dim=-1),
    "limits that are tensors": lambda x, y: x.clamp(y * 0 + x.detach(), y + 2),
    "a limit that is a tensor": lambda x, y: x.clamp_max(y * 0 + x.detach()),
    "ldexp of halves": lambda x, y: x.half().ldexp(y.int()),
    "bools summed to a size": lambda x, y: (x > 0).sum_to_size(1, 4),
    "cov of halves": lambda x, y: x[0].half().cov(aweights=y[0, 0].abs()),
    "square of bools": lambda x, y: (x > 0).square(),
    "full of bools": lambda x, y: (x > 0).new_full((2,), True),
    "limits of integers": lambda x, y: _hardtanh((x * 3).int()),
    "min of two": lambda x, y: x.min(y[0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    one, two = (Tensor(each).requires_grad_() for each in (X, Y))
    their_one, their_two = (torch.tensor(each, requires_grad=True) for each in (X, Y))
    mine, theirs = CALLS[name](one, two), CALLS[name](their_one, their_two)
    assert tuple(mine.shape) == tuple(theirs.shape)
    assert mine.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    if theirs.requires_grad:
        mine.sum().backward()
        theirs.sum().backward()
        for own, their in ((one, their_one), (two, their_two)):
            if their.grad is not None:
                np.testing.assert_allclose(own.grad.numpy(), their.grad.numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("pairs", [[(0, 0), (1, -2), (-1, 3)], [(0, -1), (-3, 0), (0, 0)]])
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_negative_padding_removes(mode: Any, pairs: list[tuple[int, int]]) -> None:
    flat = [amount for pair in reversed(pairs) for amount in pair]
    try:
        wanted = F.pad(torch.from_numpy(X[None]), flat, mode)[0].numpy()
    except RuntimeError:  # refused by PyTorch: nothing would be left
        wanted = None
    x = Tensor(X)
    if mode == "constant":
        found = x.pad(pairs)
    else:
        found = x.pad_with(pairs, mode)
    assert wanted is None or np.array_equal(found.numpy(), wanted)
    with pytest.raises(BadArgument):
        x.pad([(-1, -2), (0, 0), (0, 0)])


def test_numbers_may_be_tensors_without_axes() -> None:
    create: Any = Tensor
    start, end = Tensor(-1), Tensor(2.5)
    assert np.array_equal(create.linspace(start, end, 5).numpy(), np.linspace(-1, 2.5, 5))
    assert create.arange(start, end=end).tolist() == [-1, 0, 1, 2]
    with pytest.raises(BadArgument, match="end must be a number"):
        create.linspace(start, end.requires_grad_(), 5)
    with pytest.raises(BadArgument, match="end must be a number"):
        create.linspace(start, Tensor([2.5]), 5)


def test_one_equation_of_each_matrix() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(4, 3, 3)), random.normal(size=(4, 3))
    wanted = torch.linalg.solve(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    found = linalg.solve(Tensor(a), Tensor(b)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    empty = linalg.solve(Tensor.zeros(0, 0, 0), Tensor.zeros(0, 0))
    assert empty.shape == (0, 0)


@pytest.mark.parametrize("tensor", [False, True], ids=["a number", "a tensor"])
def test_a_factor_of_a_gradient_may_exceed_a_half(tensor: bool) -> None:
    x = Tensor([0.1], dtype="float16").requires_grad_()
    x.pow(Tensor([-4.0], dtype="float16") if tensor else -4.0).backward(Tensor([0.05], dtype="float16"))
    np.testing.assert_allclose(x.grad.float().numpy(), [-0.05 * 4 * 0.1**-5], rtol=5e-3)
