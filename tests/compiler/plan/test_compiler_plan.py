"""Plans by content, and the memory they say they take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.plan.plan import structure
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage
from ugpu.compiler.runtime.runtime import runtime_of, use_cache
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.buffer import Buffer


def chain(x: Tensor, length: int) -> Tensor:
    for _ in range(length):
        x = (x + 1).contiguous()
    return x


CASES: dict[str, Callable[[Tensor], list[Tensor]]] = {
    "one": lambda x: [x + 1],
    "chain": lambda x: [chain(x, 6)],
    "softmax": lambda x: [x.softmax()],
    "two results": lambda x: [(y := (x * 2).contiguous()), chain(y, 3)],
    "diamond": lambda x: [chain(x, 2) + chain(x, 3).flip(0) + x.sum(1, keepdims=True)],
    "nothing": lambda x: [x[:0] + 1],
}


class Watched(MemoryPool):
    """Keeps no unused memory, and remembers the most that was taken at once."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.now = self.most = 0

    def take(self, size: int) -> Storage:
        storage = super().take(size)
        self.now += storage.buffer.size
        self.most = max(self.most, self.now)
        return storage

    def give_back(self, buffer: Buffer) -> None:
        self.now -= buffer.size
        super().give_back(buffer)


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("held", [False, True])
def test_the_peak_is_what_a_run_takes(name: str, held: bool) -> None:
    with hcq.open("cpu", threads=2) as device:
        runtime = use_cache(device, None)
        pool = runtime.pool = Watched(device)
        x = Tensor(np.ones((50, 60), np.float32), device=device)
        before = pool.now
        pool.most = before
        wanted = CASES[name](x)
        middle = [wanted[0].node.sources] if held else []
        plan = wanted[0].memory_plan(*wanted[1:])
        assert pool.now == before, "planning allocates nothing"
        del middle
        wanted[0].realize(*wanted[1:])
        assert pool.most - before == plan.peak
        assert pool.now - before == plan.results
        assert wanted[0].memory_plan(*wanted[1:]).kernels == 0


def test_a_chain_takes_two_buffers(cpu: Device) -> None:
    x = Tensor(np.ones(1 << 16, np.float32), device=cpu)
    assert chain(x, 20).memory_plan().peak == 2 * (1 << 18)
    assert np.all(chain(x, 20).numpy() == 21)


def test_what_somebody_holds_is_kept(cpu: Device) -> None:
    x = Tensor(np.ones(1 << 16, np.float32), device=cpu)
    middle = (x + 1).contiguous()
    end = (middle * 2).contiguous() + 1
    assert end.memory_plan().results == 2 * (1 << 18)
    assert np.all(end.numpy() == 5)
    assert middle.node.storage is not None and np.all(middle.numpy() == 2)


@given(numbers=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0]), min_size=2, max_size=2))
def test_equal_structure_means_equal_plans(cpu: Device, numbers: list[float]) -> None:
    one, two = (Tensor([1.0, 2.0], device=cpu) * number + 1 for number in numbers)
    alike = repr(numbers[0]) == repr(numbers[1])
    assert (structure([one.node])[0] == structure([two.node])[0]) is alike
    assert one.tolist() == [1 + numbers[0], 1 + 2 * numbers[0]]


def test_a_repeated_call_is_not_scheduled_again(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(seed: int) -> Tensor:
        array = np.full((4, 4), seed, np.float32)
        return Tensor(array, device=cpu).softmax() @ Tensor(array, device=cpu)

    work(1).realize()
    plans = len(runtime_of(cpu)._plans)
    monkeypatch.setattr("ugpu.compiler.runtime.runtime.arrange", None)
    np.testing.assert_allclose(work(3).numpy(), np.full((4, 4), 3), rtol=1e-6)
    assert len(runtime_of(cpu)._plans) == plans
