"""Data parallel training: on several devices the losses and parameters are those of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import nn, optim
from ugpu.compiler.sharding.sharded import parts_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

slow = pytest.mark.slow
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(7, 1, 6, 6)).astype(np.float32)  # 4 and 3, or 2, 2, 2 and 1
LABELS = RNG.integers(0, 3, 7)


@pytest.fixture(
    params=[
        "cpu cpu",
        pytest.param("virtual:navi31 virtual:navi31", marks=slow),
        pytest.param(" ".join(["virtual:navi31"] * 4), marks=slow),
        pytest.param("cpu virtual:navi31 cpu", marks=slow),
    ]
)
def devices(request: pytest.FixtureRequest) -> Iterator[list[Device]]:
    with ExitStack() as stack:
        yield [stack.enter_context(hcq.open(name)) for name in request.param.split()]


def model(device: Device) -> nn.Module:
    Tensor.manual_seed(5)
    made = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.25), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3),
    )  # fmt: skip
    return made.to(device)


def train(network: nn.Module, x: Any, y: Any, steps: int = 3) -> list[float]:
    optimizer = optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
        loss = network(x).cross_entropy(y)
        loss.backward()
        optim.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_gives_the_losses_of_one_device(devices: list[Device]) -> None:
    first = devices[0]
    x, y = Tensor(IMAGES, device=first), Tensor(LABELS, device=first)
    alone = model(first)
    expected = train(alone, x, y)
    network = model(first).shard(devices)
    losses = train(network, x.shard(devices, 0), y.shard(devices, 0))
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert losses[-1] < losses[0]
    state = alone.state_dict()
    for name, value in network.state_dict().items():
        np.testing.assert_allclose(value.numpy(), state[name].numpy(), rtol=2e-3, atol=2e-4)
    for parameter in network.parameters():
        first_part, *others = [each.numpy() for each in parts_of(parameter)]
        assert all((each == first_part).all() for each in others)  # the same bits


def test_gradients_of_integers_are_exact(devices: list[Device]) -> None:
    """Sums of small integers have no rounding, in any order."""
    first = devices[0]
    x = RNG.integers(-9, 9, (7, 5)).astype(np.float32)
    w = RNG.integers(-9, 9, (5, 4)).astype(np.float32)
    alone = Tensor(w, device=first).requires_grad_()
    (Tensor(x, device=first) @ alone).square().sum().backward()
    sharded = Tensor(w, device=first).shard(devices).requires_grad_()
    (Tensor(x, device=first).shard(devices, 0) @ sharded).square().sum().backward()
    for each in sharded.grad.parts:
        assert (each.numpy() == alone.grad.numpy()).all()
    assert (alone.grad.numpy() == 2 * x.T @ (x @ w)).all()


@pytest.fixture(scope="module")
def two() -> Iterator[list[Device]]:
    with hcq.open("cpu") as one, hcq.open("cpu") as other:
        yield [one, other]


def test_split_parameters_train_as_on_one_device(two: list[Device]) -> None:
    """The first layer is split by its outputs, the second by its inputs (arXiv:1909.08053)."""

    def network() -> nn.Module:
        Tensor.manual_seed(6)
        made = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 3))
        return made.to(two[0])

    def steps(made: nn.Module, x: Any, y: Any) -> list[float]:
        optimizer = optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(3):
            loss = made(x).cross_entropy(y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    x, y = Tensor(IMAGES, device=two[0]), Tensor(LABELS, device=two[0])
    expected = steps(network(), x, y)
    split = network().shard(two, {"1.weight": 0, "1.bias": 0, "3.weight": 1})
    np.testing.assert_allclose(steps(split, x.shard(two), y.shard(two)), expected, rtol=1e-5)
    with pytest.raises(BadArgument, match="must be replicated"):
        optim.Muon([next(split.parameters())])
    with pytest.raises(BadArgument, match="all parameters sharded"):
        optim.SGD([next(split.parameters()), nn.Linear(1, 1).weight])
    with pytest.raises(NotSupported, match="split"):
        optim.SGD(split.parameters()).state_dict()
    with pytest.raises(BadArgument, match="names of parameters"):
        network().shard(two, {"weight": 0})


def test_states_load_on_every_device(two: list[Device]) -> None:
    x, y = Tensor(IMAGES, device=two[0]).shard(two, 0), Tensor(LABELS, device=two[0]).shard(two, 0)
    source, target = model(two[0]).shard(two), model(two[0]).shard(two)
    optimizer = optim.AdamW(source.parameters())
    source(x).cross_entropy(y).backward()
    optimizer.step()
    target.load_state_dict({name: each.numpy() for name, each in source.state_dict().items()})
    other = optim.AdamW(target.parameters())
    other.load_state_dict(optimizer.state_dict())
    for own, given in zip(target.parameters(), source.parameters(), strict=True):
        assert all((each.numpy() == given.numpy()).all() for each in parts_of(own))
    for group in (other.param_groups[0], *other.param_groups[0].replicas):
        assert group.clock.numpy()[0] == 1
