"""Gradients against PyTorch's where deriving them is delicate: ties, edges, masks, blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.gradients import attention

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
EDGES = np.array([-3.0, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 3.0, 6.0], np.float32)

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "relu": (lambda x: x.relu(), F.relu),
    "relu6": (lambda x: x.relu6(), F.relu6),
    "leaky_relu": (lambda x: x.leaky_relu(0.1), lambda x: F.leaky_relu(x, 0.1)),
    "elu": (lambda x: x.elu(0.5), lambda x: F.elu(x, 0.5)),
    "celu": (lambda x: x.celu(0.5), lambda x: F.celu(x, 0.5)),
    "selu": (lambda x: x.selu(), F.selu),
    "hardtanh": (lambda x: x.hardtanh(), F.hardtanh),
    "hardsigmoid": (lambda x: x.hardsigmoid(), F.hardsigmoid),
    "hardswish": (lambda x: x.hardswish(), F.hardswish),
    "clip": (lambda x: x.clip(-0.5, 1.0), lambda x: x.clip(-0.5, 1.0)),
    "abs": (lambda x: x.abs(), lambda x: x.abs()),
    "softplus": (lambda x: x.softplus(), F.softplus),
    "mish": (lambda x: x.mish(), F.mish),
    "square": (lambda x: x**2, lambda x: x**2),
    "maximum": (lambda x: x.maximum(0.5), lambda x: x.maximum(torch.tensor(0.5))),
    "max": (lambda x: x.max(), lambda x: x.max()),
    "amax": (lambda x: x.reshape(3, 3).max(0), lambda x: x.reshape(3, 3).amax(0)),
    "std": (lambda x: (x * 0 + 2).std(), lambda x: (x * 0 + 2).std()),
    "normalize": (lambda x: (x * 0).normalize(0), lambda x: F.normalize(x * 0, dim=0)),
    "cumprod": (lambda x: x.cumprod(0), lambda x: x.cumprod(0)),
    "prod": (lambda x: x[3:].prod(), lambda x: x[3:].prod()),
    "cummax": (lambda x: x.cummax(0), lambda x: x.cummax(0)[0]),
    "logsumexp": (lambda x: x.logsumexp(0), lambda x: x.logsumexp(0)),
    "max_pool": (lambda x: x.reshape(1, 1, 3, 3).max_pool2d(2, stride=1),
                 lambda x: F.max_pool2d(x.reshape(1, 1, 3, 3), 2, 1)),
    "tf32": (lambda x: x.tf32() * 2, lambda x: x * 2),
    "floor": (lambda x: x.floor() * x, lambda x: x.floor() * x),
    "gelu": (lambda x: x.gelu("none"), F.gelu),
    "pow": (lambda x: x.abs().add(1) ** x, lambda x: x.abs().add(1) ** x),
    "remainder": (lambda x: (x * 1.3).remainder(x + 7), lambda x: (x * 1.3).remainder(x + 7)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_edges(name: str) -> None:
    mine, theirs = ACTIVATIONS[name]
    x, y = Tensor(EDGES).requires_grad_(), torch.from_numpy(EDGES.copy()).requires_grad_()
    found, wanted = mine(x), theirs(y)
    weight = np.random.default_rng(0).uniform(0.5, 1.5, tuple(wanted.shape)).astype(np.float32)
    found.backward(Tensor(weight))
    wanted.backward(torch.from_numpy(weight))
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("scores", "by_products"), [(1 << 22, False), (1 << 22, True), (40, True)],
    ids=["in one kernel", "at once", "by blocks of rows"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["plain", "causal", "bools", "floats", "shared"])
def test_attention(
    kind: str, scores: int, by_products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SCORES", scores)
    monkeypatch.setattr(attention, "KEYS", 0 if by_products else attention.KEYS)
    torch.manual_seed(0)
    heads = (1, 1) if kind == "shared" else (2, 3)
    shapes = [(2, 3, 5, 4), (*heads, 5, 4), (*heads, 5, 3)]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    own = [Tensor(each.detach().numpy()).requires_grad_() for each in given]
    mask = None
    if kind == "bools":
        mask = torch.rand(5, 5) > 0.4
        mask[2] = False  # a row that sees nothing
    if kind == "floats":
        mask = torch.randn(2, 1, 5, 5)
        mask[0, 0, 1, 2] = -torch.inf
        given.append(mask.requires_grad_())
        own.append(Tensor(mask.detach().numpy()).requires_grad_())
    wanted = F.scaled_dot_product_attention(*given[:3], mask, is_causal=kind == "causal")
    ours = own[3] if kind == "floats" else None if mask is None else Tensor(mask.numpy())
    found = own[0].scaled_dot_product_attention(own[1], own[2], ours, kind == "causal")
    weight = torch.randn(wanted.shape)
    wanted.backward(weight)
    found.backward(Tensor(weight.numpy()))
    for mine, theirs in zip(own, given, strict=True):
        np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), atol=2e-6)


def test_second_derivatives_of_a_network() -> None:
    """Through a convolution, a pool and attention's products."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)

    def theirs(w: Any) -> Any:
        return F.avg_pool2d(F.conv2d(x, w, padding=1).tanh(), 2).softmax(1).square().sum()

    wanted = torch.autograd.functional.hvp(theirs, w, w)[1].numpy()
    mine, given = Tensor(x.numpy()), Tensor(w.numpy()).requires_grad_()
    loss = mine.conv2d(given, padding=1).tanh().avg_pool2d(2).softmax(1).square().sum()
    loss.backward(create_graph=True)
    first = given.grad
    given.grad = None
    (first * Tensor(w.numpy())).sum().backward()
    np.testing.assert_allclose(given.grad.numpy(), wanted, atol=1e-4)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["prod", "prod of all", "cumprod", "cumprod of rows"])
def test_second_derivatives_of_products_at_zeros(name: str, zeros: int) -> None:
    """Each product of the others that has a zero too: derived again, one factor less."""
    given = np.array([[1.5, -2.0, 0.5, 3.0], [2.0, 1.0, -1.0, 0.25]], np.float32)
    given[0, 4 - zeros :] = 0
    given[1, :zeros] = 0
    method, axis = {
        "prod": ("prod", (1,)), "prod of all": ("prod", ()),
        "cumprod": ("cumprod", (1,)), "cumprod of rows": ("cumprod", (0,)),
    }[name]  # fmt: skip
    weight = np.linspace(0.5, 1.5, given.size, dtype=np.float32).reshape(given.shape)
    x, y = Tensor(given).requires_grad_(), torch.tensor(given, requires_grad=True)

    def first(total: Any, weights: Any) -> Any:
        return (total * weights.reshape(-1)[: total.numel()].reshape(tuple(total.shape))).sum()

    first(getattr(x, method)(*axis), Tensor(weight)).backward(create_graph=True)
    found, x.grad = x.grad, None
    (found * Tensor(weight)).sum().backward()
    theirs = first(getattr(y, method)(*axis), torch.from_numpy(weight))
    (wanted,) = torch.autograd.grad(theirs, y, create_graph=True)
    (again,) = torch.autograd.grad((wanted * torch.from_numpy(weight)).sum(), y)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), again.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zeros", [0, 1])
@pytest.mark.parametrize("rows", [4, 5], ids=["oblong", "square"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax"])
def test_second_derivatives_of_scatters(reduce: str, rows: int, zeros: int) -> None:
    """The gradient reads by indices of which one counts, along another axis than its own."""
    random = np.random.default_rng(0)
    source = random.uniform(1, 2, (rows, 5)).astype(np.float32)
    source[0, :zeros] = 0
    index = random.integers(0, 5, (rows, 5))
    weight = random.uniform(1, 2, (rows, 5)).astype(np.float32)
    y = torch.tensor(source, requires_grad=True)
    value = torch.ones(rows, 5).scatter_reduce(1, torch.from_numpy(index), y, reduce).square()
    (first,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    (wanted,) = torch.autograd.grad((first * torch.from_numpy(weight)).sum(), y)
    x = Tensor(source).requires_grad_()
    total = Tensor.ones(rows, 5).scatter_reduce(1, Tensor(index), x, reduce).square().sum()
    total.backward(create_graph=True)
    found, x.grad = x.grad, None
    (found * Tensor(weight)).sum().backward()
    np.testing.assert_allclose(found.numpy(), first.detach().numpy(), rtol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


AT_ZERO: dict[str, Callable[[Any], Any]] = {
    "softplus": lambda x: F.softplus(x) if isinstance(x, torch.Tensor) else x.softplus(),
    "logsigmoid": lambda x: F.logsigmoid(x) if isinstance(x, torch.Tensor) else x.logsigmoid(),
    "logaddexp": lambda x: x.logaddexp(x.flip(0)),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "mish": lambda x: F.mish(x) if isinstance(x, torch.Tensor) else x.mish(),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_ZERO)
def test_second_derivatives_at_zero_and_ties(name: str) -> None:
    """Where a formula without overflow has an edge, the function has none."""
    given = np.array([0, 0, 1, 1, -1, 2, 0], np.float32)
    weight = np.linspace(0.5, 1.5, 7, dtype=np.float32)
    y = torch.tensor(given, dtype=torch.float64, requires_grad=True)
    value = AT_ZERO[name](y)
    own = weight[: value.numel()].reshape(tuple(value.shape))
    (first,) = torch.autograd.grad((value * torch.from_numpy(own)).sum(), y, create_graph=True)
    (wanted,) = torch.autograd.grad((first * torch.from_numpy(weight)).sum(), y)
    x = Tensor(given).requires_grad_()
    (AT_ZERO[name](x) * Tensor(own)).sum().backward(create_graph=True)
    found, x.grad = x.grad, None
    (found * Tensor(weight)).sum().backward()
    np.testing.assert_allclose(found.numpy(), first.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_second_derivative_of_sinc_at_zero() -> None:
    """PyTorch's is NaN there: -pi^2 / 3."""
    x = Tensor([0.0]).requires_grad_()
    x.sinc().backward(create_graph=True)
    found, x.grad = x.grad, None
    found.backward()
    np.testing.assert_allclose(x.grad.numpy(), [-(np.pi**2) / 3], rtol=1e-6)


@pytest.mark.slow
def test_opinfo() -> None:
    """PyTorch's own samples: at most one of each operation that Tensor has under the same name. No
    value and no gradient is wrong; what is refused (other signatures) is counted."""
    pytest.importorskip("expecttest", reason="expecttest is not installed")
    from tests.support.compiler.opinfo.judge import judged
    from tests.support.compiler.opinfo.names import operations, samples

    counts: Counter[str] = Counter()
    for name, mine, operation in operations():
        if torch.float32 in operation.supported_dtypes("cpu"):
            for sample in samples(operation, torch.float32)[:1]:
                outcome = judged(mine, operation, sample, torch.float32)
                assert not outcome.startswith(("wrong", "crashed")), (name, outcome)
                counts[outcome.split(":")[0]] += 1
    assert counts["right"] > 100 and counts["right"] > 0.9 * counts.total()
