"""Training as a whole: a recorded step equals the plain one; few kernels; modules and states."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor, grad, jit, nn, no_grad, optim, watch
from ugpu.hcq.errors import BadArgument

ROOT = Path(__file__).resolve().parents[3]


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def network() -> nn.Sequential:
    Tensor.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(16, 3),
    )  # fmt: skip


def trained(wrap: Callable[[Any], Any]) -> tuple[list[float], dict[str, np.ndarray], Any]:
    """Train for six steps; return the losses, the state, and the step."""
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    x, y = rng().standard_normal((8, 1, 4, 4), np.float32), rng().integers(0, 3, 8)
    Tensor.manual_seed(2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    step = wrap(step)
    losses = []
    for number in range(6):
        if number == 4:
            optimizer.param_groups[0]["lr"] = 0.03
        losses.append(float(step(Tensor(x), Tensor(y)).item()))
    return losses, {name: value.numpy() for name, value in model.state_dict().items()}, step


@pytest.mark.slow
def test_a_recorded_step_equals_the_plain_one() -> None:
    """Random numbers, running statistics and a changed learning rate included; bit for bit."""
    plain, recorded = trained(lambda step: step), trained(jit)
    assert plain[0] == recorded[0]
    for name, value in plain[1].items():
        assert np.array_equal(value, recorded[1][name]), name
    assert recorded[2].kernels > 0  # it was replayed
    assert plain[0][-1] < plain[0][0]


def test_a_step_over_many_parameters_is_a_few_kernels() -> None:
    parameters = [
        nn.Parameter(rng().standard_normal((n % 7 + 1, 9), np.float32)) for n in range(100)
    ]
    optimizer = optim.AdamW(parameters)
    kernels = []
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = Tensor(np.ones(parameter.shape, np.float32))
        with watch() as runs:
            optimizer.step()
        kernels.append(sum(len(run.kernels) for run in runs))
    assert kernels[-1] <= 3
    assert parameters[5].grad.shape == parameters[5].shape  # a part of one array


def test_a_step_computes_the_loss_and_the_statistics() -> None:
    """In one run, without a second forward pass later; old steps leave no graph behind."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(Tensor(rng().standard_normal((5, 3), np.float32))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(each.node.storage is not None for each in (loss, *model.buffers()))
    with watch() as runs:
        loss.item()
    assert not runs


def test_parameters_of_an_optimiser_are_parts_of_one_array() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.numpy()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    model(Tensor(np.ones((1, 3), np.float32))).sum().backward()
    optimizer.step()
    assert np.allclose(model.weight.numpy(), before - 1)
    with no_grad():
        model.weight.assign(np.zeros((2, 3), np.float32))
        model.bias[1] = 5.0
    assert model(Tensor(np.ones((1, 3), np.float32))).tolist()[0][1] == 5.0
    assert model.weight.requires_grad and model.weight.is_leaf
    model.weight.requires_grad = False
    assert (
        not model(Tensor(np.ones((1, 3), np.float32)))[0, 0].reshape(1).cast("int32").requires_grad
    )
    model.zero_grad()
    model(Tensor(np.ones((1, 3), np.float32))).sum().backward()
    assert model.weight.grad is None and model.bias.grad.tolist() == [1.0, 1.0]


def test_gradients_accumulate_over_batches() -> None:
    x = rng().standard_normal((8, 3), np.float32)
    found = []
    for pieces in (1, 4):
        Tensor.manual_seed(4)
        model = nn.Linear(3, 2)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for part in np.split(x, pieces):
            (model(Tensor(part)).square().sum() / len(x)).backward()
        optimizer.step()
        found.append(model.weight.numpy())
    assert np.allclose(found[0], found[1], atol=1e-6)


def test_lamb_follows_its_paper() -> None:
    """One step from zero moments: the direction is the gradient's sign, its length the weights'."""
    weight = np.array([[3.0, 4.0]], np.float32)
    parameter = nn.Parameter(weight)
    optimizer = optim.LAMB([parameter], lr=0.1)
    parameter.grad = Tensor([[0.5, -2.0]])
    optimizer.step()
    move = np.array([[1.0, -1.0]])
    assert np.allclose(parameter.numpy(), weight - 0.1 * 5 / np.sqrt(2) * move, atol=1e-4)


def test_errors_of_optimisers() -> None:
    parameter = nn.Parameter(np.zeros(3, np.float32))
    with pytest.raises(BadArgument, match="expected at least one parameter"):
        optim.SGD([])
    with pytest.raises(BadArgument, match="expected float32 Parameters"):
        optim.SGD([Tensor([1.0])])
    with pytest.raises(BadArgument, match="lr must be at least 0"):
        optim.Adam([parameter], lr=-1.0)
    with pytest.raises(BadArgument, match="given twice"):
        optim.SGD([parameter, parameter])
    with pytest.raises(BadArgument, match="expected matrices"):
        optim.Muon([parameter])
    other = nn.Parameter(np.zeros(2, np.float32))
    optimizer = optim.SGD([parameter, other])
    parameter.grad, other.grad = Tensor([1.0, 1.0, 1.0]), Tensor([1.0, 1.0])
    optimizer.step()
    other.grad = None
    with pytest.raises(BadArgument, match=r"parameters \[1\] of these have none now"):
        optimizer.step()
    with pytest.raises(BadArgument, match="must have one type and device"):
        given = [nn.Parameter(np.zeros(2, np.float32)) for _ in range(2)]
        given[1] = nn.Parameter(Tensor([0.0], device="virtual:navi31"))
        optim.SGD(given).param_groups[0].parameters[0].grad = Tensor([0.0, 0.0])
        given[0].grad = Tensor([0.0, 0.0])
        given[1].grad = Tensor([0.0], device="virtual:navi31")
        optim.SGD(given).step()


def test_load_state_dict_lists_all_that_does_not_fit() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    state: dict[str, Any] = {name: value.numpy() for name, value in model.state_dict().items()}
    state["0.weight"] = np.zeros((2, 4), np.float32)
    state["2.bias"] = state.pop("1.bias")
    before = model.state_dict()["0.bias"].numpy()
    state["0.bias"] = before + 1
    with pytest.raises(BadArgument) as caught:
        model.load_state_dict(state)
    for part in ("3 mismatches", "missing 1.bias [2]", "unexpected 2.bias",
                 "0.weight: expected shape [2, 3], got [2, 4]"):  # fmt: skip
        assert part in str(caught.value)
    assert np.array_equal(model.state_dict()["0.bias"].numpy(), before)  # nothing has changed


def test_modules() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.inner[1].weight = self.inner[0].weight
            self.register_buffer("scale", Tensor([2.0]))
            self.register_buffer("scratch", Tensor([1.0]), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.inner:
                x = layer(x)
            return x * self.scale

    model = Twice()
    assert list(model.state_dict()) == ["scale", "inner.0.weight", "inner.0.bias", "inner.1.weight",
                                        "inner.1.bias"]  # fmt: skip
    assert [name for name, _ in model.named_parameters()] == [
        "inner.0.weight", "inner.0.bias", "inner.1.bias"]  # fmt: skip
    assert "Linear(2, 2" in repr(model)
    model(Tensor([[1.0, 1.0]])).sum().backward()
    assert model.inner[0].weight.grad is not None
    assert model.eval().inner[0].training is False and model.train().training is True
    with pytest.raises(BadArgument, match="call super"):
        type("Bad", (nn.Module,), {"__init__": lambda self: setattr(self, "x", 1)})()
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = model.missing


def test_a_copy_of_a_module_is_trained_apart() -> None:
    model = nn.Linear(2, 1)
    other = copy.deepcopy(model)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    model(Tensor([[1.0, 1.0]])).sum().backward()
    assert other.weight.grad is None and isinstance(other.weight, nn.Parameter)
    before = other.weight.numpy()
    optimizer.step()
    assert np.array_equal(other.weight.numpy(), before)
    assert not np.array_equal(model.weight.numpy(), before)


def test_initialisers() -> None:
    Tensor.manual_seed(0)
    weight = nn.Parameter(np.zeros((400, 100), np.float32))
    for fill, spread in ((nn.init.xavier_uniform_, 2 / 500), (nn.init.xavier_normal_, 2 / 500),
                         (nn.init.kaiming_normal_, 2 / 100), (nn.init.kaiming_uniform_, 2 / 100),
                         (nn.init.normal_, 1.0), (nn.init.trunc_normal_, 0.774)):  # fmt: skip
        values = fill(weight).numpy()
        assert abs(values.mean()) < 0.02 and values.var() == pytest.approx(spread, rel=0.05)
    assert np.abs(values).max() <= 2


def example() -> ModuleType:
    path = ROOT / "examples" / "training" / "train_digits.py"
    spec = importlib.util.spec_from_file_location("train_digits", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_digits_are_learned() -> None:
    """Two passes over the digits; the example itself reaches 98.5% and more with 15."""
    right, losses = example().train(2)
    assert right > 0.9 and losses[1] < 0.6 * losses[0]


def test_digits_from_a_font() -> None:
    pictures, labels = example().drawn(50, rng())
    assert pictures.shape == (50, 8, 8) and set(labels) <= set(range(10))
    assert pictures.min() >= 0 and pictures.max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
def test_gradients_on_a_virtual_gpu(name: str) -> None:
    """A convolution, a norm, a matrix product and a loss: as on cpu."""
    x, w, v = (rng().standard_normal(shape, np.float32) for shape in
               ((2, 2, 6, 6), (3, 2, 3, 3), (12, 4)))  # fmt: skip

    def loss(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        inner = x.conv2d(w, padding=1, stride=2).relu().max_pool2d(2, stride=1).flatten(1)
        return (inner.layernorm() @ v).cross_entropy(np.array([1, 3]))

    found = []
    for device in ("cpu", name):
        given = [Tensor(each, device=device) for each in (x, w, v)]
        found.append([each.numpy() for each in grad(loss, (0, 1, 2))(*given)])
    for mine, theirs in zip(*found, strict=True):
        assert np.abs(mine - theirs).max() < 1e-4 * (1 + np.abs(mine).max())


def test_pooling_of_one_axis_takes_one_size() -> None:
    x = Tensor(np.arange(8, dtype=np.float32).reshape(1, 1, 8))
    assert nn.MaxPool1d((2,))(x).tolist() == [[[1, 3, 5, 7]]]
    with pytest.raises(BadArgument, match="one int"):
        nn.MaxPool1d((2, 2))(x)
