"""Results in the memory of what they replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit, nn, optim
from ugpu.compiler.nn.parameter import replace
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.hcq.device.device import Device

device = device_fixture("cpu", "virtual:navi31", "virtual:gh100")
SIZE = 1000


def address(x: Tensor) -> int:
    storage = x.node.storage
    assert isinstance(storage, Storage)
    return storage.address


def together(tensors: Sequence[Tensor]) -> None:
    runtime_of(tensors[0].device).realize([each.node for each in tensors])


Values = Callable[[Sequence[Tensor]], Sequence[Tensor]]
CASES: dict[str, tuple[Values, Sequence[bool]]] = {
    "alone": (lambda x: [x[0] * 2 + 1], [True]),
    "each by itself": (lambda x: [x[0] * 2, x[1] + 1, x[2] - 3], [True] * 3),
    # the first needs all old values, which the others replace
    "one of all": (lambda x: [x[0] - x[1] * x[2], x[1] * 3, x[2] + x[1]], [True] * 3),
    "of others": (lambda x: [x[0] + 1, x[1] + x[0], x[2] + x[1]], [True] * 3),
    # no order of stores has read both when one is overwritten
    "exchanged": (lambda x: [x[1] + 1, x[0] + 2], [False] * 2),
    "of other places": (lambda x: [x[0].flip(0) + 1], [False]),
    "of neighbours": (lambda x: [x[0] + x[0].roll(1)], [False]),
    "with its sum": (lambda x: [x[0] / x[0].sum()], [False]),
    "not read": (lambda x: [x[1] * 2, x[2] * 3], [True] * 2),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_and_values(device: Device, name: str) -> None:
    function, kept = CASES[name]
    arrays = [np.arange(SIZE, dtype=np.float32) * (n + 1) % 97 + n for n in range(3)]
    wanted = [each.numpy() for each in function([Tensor(array) for array in arrays])]
    states = [Tensor(array, device=device).realize() for array in arrays]
    before = [address(each) for each in states]
    for state, value in zip(states, function(states), strict=False):
        replace(state, value)
    together(states)
    for state, array in zip(states, wanted, strict=False):
        assert np.array_equal(state.numpy(), array)
    found = [address(each) == old for each, old in zip(states, before, strict=True)]
    assert found[: len(kept)] == list(kept)


def test_what_others_hold_stays(device: Device) -> None:
    """An array of the program, another tensor, and a value that a later kernel of the run reads."""
    x = Tensor(np.arange(SIZE, dtype=np.float32), device=device).realize()
    held = x.detach()
    replace(x, x + 1)
    x.realize()
    assert np.array_equal(held.numpy(), np.arange(SIZE))
    assert np.array_equal(x.numpy(), np.arange(SIZE) + 1)
    later = x.reshape(10, 100).sum(1)
    replace(x, x * 2)
    together([x, later])
    assert np.array_equal(later.numpy(), (np.arange(SIZE) + 1.0).reshape(10, 100).sum(1))
    assert np.array_equal(x.numpy(), (np.arange(SIZE) + 1) * 2)


def test_a_step_of_an_optimiser_needs_no_memory(device: Device) -> None:
    """Parameters and both moments stay where they are, called and replayed; what a step needs is
    the array of the gradients."""
    arrays = [np.full((64, 64), number + 1.0, np.float32) for number in range(8)]
    size = sum(array.nbytes for array in arrays)
    parameters = [nn.Parameter(array, device=device) for array in arrays]
    optimizer = optim.AdamW(parameters)
    gradients = [Tensor(array / 8, device=device).realize() for array in arrays]

    def plain() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    def places() -> list[int]:
        (group,) = optimizer.param_groups
        assert group.array is not None
        return [address(each) for each in (group.array.tensor, *group.states.values())]

    def needed(step: Callable[[], None]) -> int:
        device.synchronize()
        device.memory_peak(restart=True)
        used = device.memory_peak()
        step()
        device.synchronize()
        return device.memory_peak() - used

    plain()
    first = places()
    assert size <= needed(plain) < size * 5 // 4
    recorded = jit(plain)
    for _ in range(2):
        recorded()
    assert needed(recorded) < size // 8
    assert needed(recorded) < size // 8
    assert places() == first
    assert recorded.kernels <= 3
