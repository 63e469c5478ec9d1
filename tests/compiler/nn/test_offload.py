"""States of optimisers in host memory: the same steps, less memory of the device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu import Placement
from ugpu.compiler import Tensor, jit, nn, optim
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31", "virtual:gh100")
SIDE = 96
KINDS: dict[str, Callable[..., optim.Optimizer]] = {
    "AdamW": optim.AdamW,
    "amsgrad": lambda params, **more: optim.Adam(params, amsgrad=True, **more),
    "SGD": lambda params, **more: optim.SGD(params, momentum=0.9, dampening=0.1, **more),
    "LAMB": optim.LAMB,
    "Muon": optim.Muon,
}


def steps(
    device: Device, kind: str, offload: bool, wrap: Callable[[Any], Any] = lambda step: step
) -> tuple[Any, optim.Optimizer, int]:
    """Take three steps; return the parameters, the optimiser, and the most bytes in use."""
    random = np.random.default_rng(5)
    start = random.standard_normal((SIDE, SIDE)).astype(np.float32)
    x = Tensor(random.standard_normal((4, SIDE)).astype(np.float32), device=device).realize()
    weight = nn.Parameter(start, device=device)
    optimizer = KINDS[kind]([weight], lr=0.01, offload=offload)
    gc.collect()
    device.memory_peak(restart=True)
    used = device.memory_peak()

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = wrap(step)
    for _ in range(4):
        step(x).realize()
    peak = device.memory_peak() - used
    return weight.numpy(), optimizer, peak


def in_host_memory(state: Tensor) -> bool:
    storage = state.node.storage
    assert isinstance(storage, Storage)
    return storage.pool.placement is Placement.HOST


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_same(device: Device, kind: str) -> None:
    plain, _, most = steps(device, kind, False)
    offloaded, optimizer, least = steps(device, kind, True)
    np.testing.assert_array_equal(plain, offloaded)
    states = optimizer.param_groups[0].states
    assert set(states) == set(optimizer.arrays)
    assert all(map(in_host_memory, states.values()))
    # of each state there are an old and a new array during a step
    assert least <= most - len(states) * SIDE * SIDE * 4


def test_a_recorded_step_keeps_states_in_host_memory(device: Device) -> None:
    plain, *_ = steps(device, "AdamW", False)
    recorded, optimizer, _ = steps(device, "AdamW", True, jit)
    np.testing.assert_array_equal(plain, recorded)
    assert all(map(in_host_memory, optimizer.param_groups[0].states.values()))


def test_states_are_saved_and_loaded(device: Device) -> None:
    _, first, _ = steps(device, "AdamW", False)
    _, second, _ = steps(device, "AdamW", True)
    saved = second.state_dict()["state"][0]
    for name, value in first.state_dict()["state"][0].items():
        np.testing.assert_array_equal(value.numpy(), saved[name].numpy())
    second.load_state_dict(first.state_dict())
    assert all(map(in_host_memory, second.param_groups[0].states.values()))


def test_a_memory_plan_counts_the_memory_of_the_device(device: Device) -> None:
    x = Tensor(np.ones((64, 64), np.float32), device=device) + 1
    there = x._new(graph.contiguous(x.node, graph.HOST))
    assert (x.memory_plan().peak, there.memory_plan().peak) == (64 * 64 * 4, 0)
    device.memory_peak(restart=True)
    before = device.memory_peak()
    np.testing.assert_array_equal(there.numpy(), np.full((64, 64), 2, np.float32))
    assert device.memory_peak() == before
