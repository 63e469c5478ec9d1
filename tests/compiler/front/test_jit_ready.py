"""Recorded calls that one call of native code replays on `cpu`, and those that take more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.front.jit import Jit
from ugpu.compiler.front.replay import Replay
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed


@pytest.fixture(params=[1, 2])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open("cpu", threads=request.param) as opened:
        use_cache(opened, None)
        yield opened


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each full replay."""
    calls: list[Any] = []
    usual = Replay.run

    def run(replay: Replay, tensors: Any) -> Any:
        calls.append(tensors)
        return usual(replay, tensors)

    monkeypatch.setattr(Replay, "run", run)
    return calls


def vector(device: Device, *values: float) -> Tensor:
    return Tensor(np.array(values, np.float32), device=device).realize()


def recorded(function: Callable[..., Any], *args: Any) -> Jit[..., Any]:
    made = jit(function)
    for _ in range(3):
        made(*args)
    return made


def test_forms_of_results(device: Device, full: list[Any]) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        total = x + y
        return {"sum": total, "both": [total, (x * y, total.reshape(2, 1))]}

    made = recorded(function, vector(device, 1, 2), vector(device, 3, 4))
    full.clear()
    kept = []
    for number in range(20):
        x, y = vector(device, number, 1), vector(device, 2, number)
        kept.append((number, made(x, y)))
    assert not full
    for number, result in kept:  # each call has its own memory
        first, (product, turned) = result["both"]
        assert first is result["sum"]
        assert first.tolist() == [number + 2, 1 + number]
        assert product.tolist() == [2 * number, number]
        assert turned.tolist() == [[number + 2], [1 + number]]


def test_memory_of_arguments_and_weights(device: Device, full: list[Any]) -> None:
    """Slices, a weight that is written in place, and one that moves."""
    weight = vector(device, 1, 1)
    made = recorded(lambda x: x * weight, vector(device, 1, 2))
    table = Tensor(np.arange(8, dtype=np.float32).reshape(4, 2), device=device).realize()
    full.clear()
    for row in range(4):
        weight[...] = vector(device, row, 2)
        assert made((table[row] + 0).realize()).tolist() == [2 * row * row, 4 * row + 2]
    node = weight.node  # a second owner: the next assignment moves the weight
    weight[...] = vector(device, 10, 20)
    assert made(vector(device, 1, 2)).tolist() == [10, 40]
    del node


def test_what_takes_a_full_replay(device: Device, full: list[Any]) -> None:
    made = recorded(lambda x, y: x - y, vector(device, 1, 2), vector(device, 3, 4))
    x = vector(device, 1, 2)
    full.clear()
    assert made(x + 1, vector(device, 1, 1)).tolist() == [1, 2]
    assert made(x, vector(device, 1, 1)).tolist() == [0, 1]
    assert len(full) == 1, "an argument that is not computed"
    with pytest.raises(BadArgument, match="passed as several"):
        made(x, x)
    with pytest.raises(BadArgument, match="recorded with"):
        made(x, vector(device, 1, 1, 1))
    with pytest.raises(BadArgument, match="recorded with"):
        made(x)
    ones = vector(device, 1, 1)
    with device.capture() as graph:  # part of another graph
        inside = made(x, ones).realize()
    graph.replay()
    graph.wait()
    assert inside.tolist() == [0, 1]
    graph.close()


def test_assigned_and_random_are_never_replayed_so(device: Device, full: list[Any]) -> None:
    def step(x: Tensor) -> Tensor:
        x[...] = x + 1
        return x * 2

    x = vector(device, 0, 0)
    made = recorded(step, x)
    full.clear()
    assert made(x).tolist() == [8, 8]
    assert x.tolist() == [4, 4]
    noise = recorded(lambda y: y + Tensor.rand(2, device=device), x)
    assert noise(x).tolist() != noise(x).tolist()
    assert len(full) >= 3


def test_poisoned_results_and_a_closed_device(full: list[Any]) -> None:
    with hcq.open("cpu", threads=1) as opened:
        use_cache(opened, None)
        runtime_of(opened).pool.poison = 0x7FC0_0000
        x = vector(opened, 1, 2)
        made = recorded(lambda x: x + 1, x)
        full.clear()
        assert all(made(x).tolist() == [2, 3] for _ in range(5))
        assert not full
        opened.reset()
        assert made(x).tolist() == [2, 3]
    with pytest.raises(Closed):
        made(x)
