"""Gradients against finite differences and against themselves: no other library is needed.

test_gradients_torch.py and test_gradients_opinfo.py compare with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ugpu
from ugpu.compiler import Tensor, checkpoint, custom_gradient, dtypes, grad, no_grad, value_and_grad
from ugpu.hcq.errors import BadArgument

NULL = "null:gfx1100"

Function = Callable[..., Any]


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def positive(*shape: int) -> np.ndarray:
    return rng().uniform(0.5, 2.0, shape).astype(np.float32)


def signed(*shape: int) -> np.ndarray:
    return rng().uniform(-2.0, 2.0, shape).astype(np.float32)


CASES: dict[str, tuple[Function, list[np.ndarray]]] = {
    "add mul div": (lambda x, y: (x * y + x / y).sum(), [positive(3, 4), positive(4)]),
    "pow": (lambda x, y: (x**y + x**3 + x**0.5).sum(), [positive(5), positive(5)]),
    "exp log": (lambda x: (x.exp().log1p() * x.log()).sum(), [positive(5)]),
    "trigonometry": (lambda x: (x.sin() * x.cos() + x.tanh().atan()).sum(), [signed(6)]),
    "where": (lambda x, y: (x > y).where(x * x, y).sum(), [signed(8), signed(8)[::-1].copy()]),
    "softmax": (lambda x: (x.softmax(0) * x.log_softmax(1)).sum(), [signed(3, 4)]),
    "matmul": (lambda x, y: (x @ y).square().sum(), [signed(2, 3, 4), signed(4, 5)]),
    "einsum": (lambda x, y: Tensor.einsum("bij,bkj->ik", x, y).square().sum(),
               [signed(2, 3, 4), signed(2, 5, 4)]),
    "reductions": (lambda x: (x.mean(0) * x.var(0) + x.max(0) * x.min(0)).sum(), [signed(4, 3)]),
    "prod": (lambda x: x.prod(1).sum(), [positive(2, 4)]),
    "movement": (lambda x: (x.flip((0,)).transpose(0, 1).pad([(1, 2), (0, 1)], 3.0)[::2, 1:]
                            * Tensor.arange(3).reshape(1, 3)).square().sum(), [signed(3, 4)]),
    "cat roll": (lambda x, y: (x.cat(y).roll(2, 0) * Tensor.arange(5).reshape(5, 1)).square().sum(),
                 [signed(2, 3), signed(3, 3)]),
    "take": (lambda x: x[np.array([0, 2, 2])].square().sum(), [signed(3, 4)]),
    "gather": (lambda x: x.gather(1, Tensor([[0, 0], [2, 1]])).square().sum(), [signed(2, 3)]),
    "scatter": (lambda x, y: x.scatter(0, Tensor([[0, 1, 0]]), y).square().sum(),
                [signed(2, 3), signed(1, 3)]),
    "scatter_add": (lambda x, y: x.index_add(0, Tensor([1, 1, 0]), y).square().sum(),
                    [signed(2, 3), signed(3, 3)]),
    "scatter_reduce": (lambda x, y: x.scatter_reduce(0, Tensor([0, 0, 1]), y, "prod").exp().sum(),
                       [positive(3), positive(3)]),
    "cumsum cumprod": (lambda x: (x.cumsum(1) * x.cumprod(1)).sum(), [positive(2, 5)]),
    "cummax": (lambda x: (x.cummax(0) * Tensor.arange(6)).sum(), [signed(6)]),
    "sort": (lambda x: (x.sort(0)[0] * Tensor.arange(6)).sum(), [signed(6)]),
    "topk": (lambda x: (x.topk(3)[0] * Tensor.arange(3)).sum(), [signed(6)]),
    "conv2d": (lambda x, w: x.conv2d(w, stride=2, padding=1, dilation=1).square().sum(),
               [signed(1, 2, 5, 6), signed(3, 2, 3, 3)]),
    "conv_transpose2d": (lambda x, w: x.conv_transpose2d(w, stride=2).square().sum(),
                         [signed(1, 2, 3, 3), signed(2, 2, 2, 2)]),
    "max_pool2d": (lambda x: x.max_pool2d(3, stride=2, padding=1).square().sum(),
                   [signed(1, 2, 5, 5)]),
    "interpolate": (lambda x: x.interpolate(7, mode="linear").square().sum(), [signed(1, 2, 4)]),
    "attention": (lambda q, k, v: q.scaled_dot_product_attention(k, v, None, True).square().sum(),
                  [signed(2, 5, 4), signed(2, 5, 4)[::-1].copy(), signed(2, 5, 3)]),
    "layernorm": (lambda x: (x.layernorm() * Tensor.arange(5)).square().sum(), [signed(3, 5)]),
    "cross_entropy": (lambda x: x.cross_entropy(np.array([1, 0, 3]), label_smoothing=0.1),
                      [signed(3, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_finite_differences(name: str) -> None:
    """In float32: central differences of a step near 1e-2 agree to about 1e-2 of the largest."""
    function, arrays = CASES[name]
    found = grad(function, range(len(arrays)))(*map(Tensor, arrays))
    for place, array in enumerate(arrays):
        wanted = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for step in (-5e-3, 5e-3):
                moved = [each.copy() for each in arrays]
                moved[place][index] += step
                ends.append(float(function(*map(Tensor, moved)).item()))
            wanted[index] = (ends[1] - ends[0]) / 1e-2
        scale = max(1.0, float(np.abs(wanted).max()))
        assert np.abs(found[place].numpy() - wanted).max() < 1.5e-2 * scale


def test_equal_elements_share_the_gradient_of_a_maximum() -> None:
    """As in PyTorch: the array's own element counts as one of them."""
    x, y = Tensor([1.0, 2.0]), Tensor([2.0, 2.0, 1.0])
    index = Tensor([1, 1, 0])

    def total(x: Tensor, y: Tensor) -> Tensor:
        return (x.scatter_reduce(0, index, y, "amax") * Tensor([1.0, 6.0])).sum()

    of_x, of_y = grad(total, (0, 1))(x, y)
    assert of_x.tolist() == [0.5, 2.0]
    assert of_y.tolist() == [2.0, 2.0, 0.5]


def test_backward_adds_to_the_leaves() -> None:
    x = Tensor([1.0, 2.0, 3.0]).requires_grad_()
    (x * x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [4.0, 6.0, 8.0]
    assert x.is_leaf and not (x * 2).is_leaf and (x * 2).requires_grad


def test_gradients_are_lazy_and_survive_a_computed_result() -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    loss = (x.exp() * 2).realize().sum()
    assert loss.item() > 0  # everything is computed, and its history kept
    loss.backward()
    assert x.grad.node.storage is None
    assert np.allclose(x.grad.numpy(), 2 * np.exp([1, 2]))


def test_higher_order() -> None:
    third = grad(grad(grad(lambda x: x**4)))
    assert third(Tensor(2.0)).item() == pytest.approx(48.0)
    x = Tensor(3.0).requires_grad_()
    (x**3).backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.backward()
    assert (first.item(), x.grad.item()) == (27.0, 18.0)


def test_value_and_grad_with_more_results() -> None:
    def loss(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        made = x @ w
        return made.sum(), made

    (value, made), g = value_and_grad(loss, has_aux=True)(
        Tensor([[1.0], [2.0]]), Tensor([[3.0, 4.0]])
    )
    assert (value.item(), made.tolist(), g.tolist()) == (11.0, [[11.0]], [[3.0], [4.0]])
    assert not value.requires_grad and not g.requires_grad


def test_no_grad_and_detach_end_the_graph() -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    with no_grad():
        assert not (x * 2).requires_grad
        assert not x.reshape(2).requires_grad  # the same node
    assert not x.detach().requires_grad
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]
    with no_grad():
        moved = x.reshape(1, 2)
    assert not moved.reshape(2, 1).requires_grad


def test_custom_gradient() -> None:
    @custom_gradient
    def doubled(x: Tensor, y: Tensor) -> Any:
        return x * y, lambda g: (g * 100, None)

    x, y = Tensor([1.0]).requires_grad_(), Tensor([5.0]).requires_grad_()
    doubled(x, y).sum().backward()
    assert x.grad.tolist() == [100.0] and y.grad is None

    wrong = custom_gradient(lambda x: (x * 2, lambda g: g.reshape(1, 1)))
    with pytest.raises(BadArgument, match="expected a gradient of shape"):
        wrong(x).sum().backward()


def test_checkpoint_computes_again_with_the_same_random_numbers() -> None:
    weight = Tensor(signed(4, 4)).requires_grad_()
    found = []
    calls = []
    for wrapped in (False, True):
        Tensor.manual_seed(5)
        x = Tensor(signed(3, 4)).requires_grad_()
        weight.grad = None

        def part(x: Tensor) -> Tensor:
            calls.append(1)
            return (x @ weight).relu().dropout(0.5, training=True)

        made = checkpoint(part, x) if wrapped else part(x)
        made.square().sum().backward()
        found.append([made.numpy(), x.grad.numpy(), weight.grad.numpy()])
    assert len(calls) == 3
    for plain, again in zip(*found, strict=True):
        assert np.array_equal(plain, again)


def test_assignments_to_results_are_part_of_the_graph() -> None:
    x = Tensor([1.0, 2.0, 3.0]).requires_grad_()
    y = x * 2
    squares = y * y  # of the value before
    y[1] = 10.0
    (squares + y).sum().backward()
    assert x.grad.tolist() == [10.0, 16.0, 26.0]


def test_errors() -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    with pytest.raises(BadArgument, match="only floats have gradients, expected a float tensor"):
        Tensor([1, 2]).requires_grad_()
    with pytest.raises(BadArgument, match=r"depends on no tensor.*item\(\)"):
        (Tensor([3.0]) * x.sum().item()).backward()
    with pytest.raises(BadArgument, match="depends on no tensor"):
        x.cast(dtypes.int32).sum().backward()
    with pytest.raises(BadArgument, match="one element is expected"):
        (x * 2).backward()
    with pytest.raises(BadArgument, match="gradient's shape"):
        (x * 2).backward(Tensor([1.0]))
    with pytest.raises(BadArgument, match=r"expected no_grad\(\) around"):
        x[0] = 1.0
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(BadArgument, match="freed by an earlier backward"):
        loss.backward()
    with pytest.raises(BadArgument, match="does not depend on argument"):
        grad(lambda x: Tensor(x.sum().item()))(x)
    with pytest.raises(BadArgument, match="must be a Tensor of floats"):
        grad(lambda x: x.sum())(Tensor([1]))


def test_a_gradient_of_another_device_is_refused() -> None:
    x, other = Tensor([1.0, 2.0], device="cpu").requires_grad_(), Tensor.ones(2, device=NULL)
    with pytest.raises(BadArgument, match=f"grad: tensors on cpu and {NULL}"):
        x.grad = other
    with pytest.raises(BadArgument, match=f"backward: tensors on cpu and {NULL}"):
        (x * 2).backward(other)
    with pytest.raises(BadArgument, match=f"mul: tensors on cpu and {NULL}"):
        x * other


def test_a_leaf_is_assigned_without_tracking() -> None:
    x = Tensor([1.0, 2.0]).requires_grad_()
    with no_grad():
        x[0] = 5.0
    assert x.is_leaf and x.requires_grad
    (x * x).sum().backward()
    assert x.grad.tolist() == [10.0, 4.0]


def test_a_nested_function_has_gradients() -> None:
    weight = Tensor(signed(3, 3)).requires_grad_()

    def layer(x: Tensor) -> Tensor:
        return (x @ weight).tanh()

    found, kernels = [], []
    for wrapped in (layer, ugpu.function(layer)):
        weight.grad = None
        x = Tensor(signed(2, 3))
        with ugpu.watch() as runs:
            wrapped(wrapped(x)).sum().backward()
            found.append(weight.grad.numpy())
        kernels.append([kernel.name for run in runs for kernel in run.kernels])
    assert np.array_equal(found[0], found[1])
    assert kernels[0] == kernels[1]  # inner values are computed once
    with no_grad(), ugpu.watch() as runs:
        wrapped(x).numpy()
    assert runs[0].calls  # without gradients it is a call


def test_a_used_graph_is_dropped() -> None:
    """After a backward pass a kept loss holds no activations."""
    x = Tensor(signed(64)).requires_grad_()
    loss = (x.exp().realize() * x).sum().realize()
    loss.backward()
    assert loss.node.history is not None and loss.node.history.sources == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype: str) -> None:
    x = Tensor(signed(4, 8), dtype=dtype).requires_grad_()
    w = Tensor(signed(8, 3)).requires_grad_()
    (x @ w.cast(dtype)).float().square().sum().backward()
    assert x.grad.dtype.name == dtype and w.grad.dtype.name == "float32"
    exact = x.numpy().astype(np.float32), w.numpy()
    wanted = 2 * exact[0].T @ (exact[0] @ exact[1])
    assert np.abs(w.grad.numpy() - wanted).max() < 0.05 * np.abs(wanted).max()
