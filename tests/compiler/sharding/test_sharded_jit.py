"""@jit of functions on several devices: replays give what runs give, bit for bit, with as many
kernels; what each call gives is new: arguments, captured tensors, random numbers, positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import nn, optim
from ugpu.compiler.front.jit import jit
from ugpu.compiler.sharding import collectives
from ugpu.compiler.sharding.methods import create
from ugpu.compiler.sharding.sharded import parts_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument

slow = pytest.mark.slow
CALLS = 5


@pytest.fixture(
    params=[
        "cpu cpu",
        "cpu cpu cpu",
        pytest.param("virtual:navi31 virtual:navi31", marks=slow),
        pytest.param("cpu virtual:navi31", marks=slow),
        pytest.param("virtual:gh100 cpu virtual:navi31", marks=slow),
    ]
)
def devices(request: pytest.FixtureRequest) -> Iterator[list[Device]]:
    with ExitStack() as stack:
        yield [stack.enter_context(hcq.open(name)) for name in request.param.split()]


def numbers(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def launches(devices: list[Device]) -> int:
    return sum(core_of(device).launches for device in devices)


def test_replays_equal_runs(devices: list[Device]) -> None:
    weights = Tensor(numbers(0, 6, 5), device=devices[0]).shard(devices, 1)

    def layer(x: Any, scale: int) -> dict[str, Any]:
        y = (x @ weights.reduced()).relu() * scale
        total = y.sum(0)
        return {"y": y, "partial": total, "whole": total.reduced(), "mean": y.mean(),
                "turned": x.shard(axis=1), "x": x, "first": y.to(devices[0])}  # fmt: skip

    recorded = jit(layer)
    for call in range(CALLS):
        x = Tensor(numbers(call, 7, 6), device=devices[0]).shard(devices, 0).realize()
        weights.assign(numbers(call + 9, 6, 5)).realize()
        before = launches(devices)
        expected = {name: each.realize() for name, each in layer(x, 3).items()}
        eager = launches(devices) - before
        results = recorded(x, 3)
        replayed = launches(devices) - before - eager
        for name, each in results.items():
            assert (each.numpy() == expected[name].numpy()).all(), (call, name)
            placed = getattr(each, "placement", None), getattr(expected[name], "placement", None)
            assert placed[0] == placed[1]
        assert results["x"].parts[0] is x.parts[0]
        if call > 1:
            assert replayed == recorded.kernels == eager


def model(device: Device) -> nn.Module:
    Tensor.manual_seed(5)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 3)
    ).to(device)


def train(devices: list[Device], recorded: bool) -> tuple[list[float], list[np.ndarray[Any, Any]]]:
    network = model(devices[0]).shard(devices)
    optimizer = optim.AdamW(network.parameters(), lr=1e-2)

    def step(x: Any, y: Any) -> Any:
        loss = network(x).cross_entropy(y)
        loss.backward()
        optim.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = jit(step) if recorded else step
    Tensor.manual_seed(7)
    losses = []
    for call in range(CALLS):
        x = Tensor(numbers(call, 7, 6), device=devices[0]).shard(devices, 0)
        y = Tensor(np.arange(7) % 3, device=devices[0]).shard(devices, 0)
        optimizer.param_groups[0]["lr"] = 1e-2 / (call + 1)
        losses.append(run(x, y).item())
    return losses, [each.numpy() for own in network.parameters() for each in parts_of(own)]


def test_training_with_random_numbers(devices: list[Device]) -> None:
    losses, parameters = train(devices, recorded=False)
    replayed, same = train(devices, recorded=True)
    np.testing.assert_allclose(replayed, losses, rtol=2e-6)
    for one, two in zip(parameters, same, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    assert len(set(losses)) == CALLS


def test_random_numbers_are_new_and_those_of_one_device(devices: list[Device]) -> None:
    @jit
    def draw(x: Any) -> tuple[Any, Any]:
        return x + create("rand", 9, 2, devices=devices, axis=0), x.dropout(0.5, training=True)

    Tensor.manual_seed(3)
    ones = Tensor(np.ones((9, 2), np.float32), device=devices[0])
    got = [[each.numpy() for each in draw(ones.shard(devices, 0))] for _ in range(CALLS)]
    Tensor.manual_seed(3)
    for sums, dropped in got:
        assert (sums == (ones + Tensor.rand(9, 2, device=devices[0])).numpy()).all()
        assert (dropped == ones.dropout(0.5, training=True).numpy()).all()


def test_positions_are_data(devices: list[Device]) -> None:
    """A cache split by heads, written at a position, as a decoder's."""
    cache = create("zeros", 4, 8, 3, devices=devices, axis=0).realize()
    keys = Tensor.arange(8, device=devices[0]).shard(devices)

    @jit
    def write(row: Any, position: Any) -> Any:
        cache.assign((keys == position).unsqueeze(1).where(row.unsqueeze(1), cache))
        return cache.sum(1).sum(0).reduced()

    expected = np.zeros((4, 8, 3), np.float32)
    for call in range(CALLS + 1):
        row = numbers(call, 4, 3)
        total = write(
            Tensor(row, device=devices[0]).shard(devices, 0),
            Tensor(np.array([call]), device=devices[0]).shard(devices),
        )
        expected[:, call] = row
        assert (total.numpy() == expected.sum((0, 1))).all()
    assert (cache.numpy() == expected).all()


def test_collectives_of_large_tensors(devices: list[Device]) -> None:
    @jit
    def reduce(*parts: Tensor) -> list[Tensor]:
        doubled = [each * 2 for each in parts]
        return collectives.all_gather(collectives.reduce_scatter(doubled, 0), 0)

    for call in range(CALLS):
        given = [numbers(call + place, 5001) for place in range(len(devices))]
        pairs = zip(given, devices, strict=True)
        results = reduce(*(Tensor(each, device=device) for each, device in pairs))
        for each, device in zip(results, devices, strict=True):
            assert each.device is device
            assert (each.numpy() == 2 * sum(given)).all()


def test_copies_between_devices_of_plain_tensors(devices: list[Device]) -> None:
    first, last = devices[0], devices[-1]
    bias = Tensor(numbers(1, 4), device=last)

    @jit
    def there_and_back(x: Tensor) -> tuple[Tensor, Tensor]:
        there = (x * 2).to(last) + bias
        bias[...] = bias + 1
        return (there * there).to(first) - x, x.to(last)

    for call in range(CALLS):
        x = numbers(call, 3, 4)
        was = bias.numpy()
        square, copied = there_and_back(Tensor(x, device=first))
        assert (square.numpy() == (2 * x + was) ** 2 - x).all()
        assert copied.device is last and (copied.numpy() == x).all()
        assert (bias.numpy() == was + 1).all()


def test_another_placement_is_refused(devices: list[Device]) -> None:
    double = jit(lambda x: x * 2)
    x = Tensor(numbers(0, 6, 6), device=devices[0])
    for _ in range(3):
        double(x.shard(devices, 0))
    with pytest.raises(BadArgument, match="use one jit for each, or reset"):
        double(x.shard(devices, 1))
    with pytest.raises(BadArgument, match="use one jit for each, or reset"):
        double(x.shard([*devices[1:], devices[0]], 0))
    assert (double(x.shard(devices, 0)).numpy() == 2 * x.numpy()).all()


def test_an_error_in_a_recording_leaves_the_devices_free(devices: list[Device]) -> None:
    calls = 0

    @jit
    def fails_once(x: Any) -> Any:
        nonlocal calls
        calls += 1
        total = (x * 2).sum(0).reduced()
        if calls == 2:
            total.numpy()
        return total

    x = Tensor(numbers(0, 6, 6), device=devices[0]).shard(devices, 0)
    fails_once(x)
    with pytest.raises(BadArgument, match="cannot be read while"):
        fails_once(x)
    assert all(core_of(device).capturing is None for device in devices)
    for _ in range(4):
        assert (fails_once(x).numpy() == numbers(0, 6, 6).sum(0) * 2).all()
