"""Graphs that compute the same: the fastest is found by measuring, kept, and taken from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.clocks import Looks
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods import convolution
from ugpu.compiler.pattern import cost
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.compiler.search import forms
from ugpu.compiler.search.forms import Makes, preferred
from ugpu.compiler.search.tune import tuning
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.config import Config


@pytest.fixture
def cpu(tmp_path: Path) -> Iterator[Device]:
    with hcq.open("cpu") as device:
        use_cache(device, tmp_path / "cache" / "kernels")
        yield device


class Clock:
    """Time that passes at each look, by as much as the form that was built last takes."""

    def __init__(self) -> None:
        self.now, self.step = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def form(self, seconds: float) -> Makes:
        def make() -> tuple[Sequence[Node], Callable[[Sequence[Node]], Node]]:
            def build(_: Sequence[Node]) -> Node:
                self.step = seconds
                return Node("contiguous", float32, (3,), (graph.full(1, float32, (3,)),))

            return [], build

        return make


def test_the_fastest_is_kept(cpu: Device, tmp_path: Path) -> None:
    clock = Clock()
    both = {"slow": clock.form(0.2), "quick": clock.form(0.1)}
    assert preferred(cpu, "work", both, clock) is None  # nobody has searched
    with tuning(budget_s=60) as report:
        assert preferred(cpu, "work", both, clock) == "quick"
        looks = clock.now
        assert preferred(cpu, "work", both, clock) == "quick" and clock.now == looks
    (line,) = [kernel.summary() for kernel in report.kernels if kernel.name == "work"]
    assert "quick" in line and "slow" in line
    assert preferred(cpu, "work", both, clock) == "quick"
    assert preferred(cpu, "other work", both, clock) is None
    use_cache(cpu, tmp_path / "cache" / "kernels")  # as another process would
    assert preferred(cpu, "work", both, clock) == "quick"


def test_without_time_nothing_is_measured(cpu: Device) -> None:
    clock = Clock()
    with tuning(budget_s=1e-9) as report:
        assert preferred(cpu, "work", {"one": clock.form(1.0)}, clock) is None
    assert "used up" in report.kernels[0].summary() and clock.now == 0


def small(device: Device) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(0)
    image = random.normal(size=(1, 3, 8, 8)).astype(np.float32)
    weight = random.normal(size=(2, 3, 3, 3)).astype(np.float32)
    return Tensor(image, device=device).realize(), Tensor(weight, device=device).realize()


@pytest.mark.parametrize("fastest", ["tiles", "windows"])
def test_convolutions_take_what_was_faster(
    cpu: Device, fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the estimate, whatever that is."""
    image, weight = small(cpu)
    monkeypatch.setattr(cost, "winograd", lambda *_: fastest != "tiles")
    kernels = {
        name: image.conv2d(weight, padding=1, winograd=name == "tiles").memory_plan().kernels
        for name in ("tiles", "windows")
    }
    assert kernels["tiles"] < kernels["windows"], "only windows need a padded image"

    def times(_: Device, each: dict[str, Makes], __: object) -> dict[str, float]:
        return {name: 1.0 + (name != fastest) for name in each}

    monkeypatch.setattr(forms, "_times", times)
    with tuning(budget_s=60):
        image.conv2d(weight, padding=1)
    assert image.conv2d(weight, padding=1).memory_plan().kernels == kernels[fastest]
    other = image.conv2d(weight, padding=2)  # for which nobody searched
    least = image.conv2d(weight, padding=2, winograd=fastest != "tiles")
    assert other.memory_plan().kernels == least.memory_plan().kernels
    monkeypatch.setattr(convolution, "config", lambda: Config(winograd=False))
    off = image.conv2d(weight, padding=1).memory_plan().kernels
    assert off == kernels["windows"]


def test_convolutions_are_measured(cpu: Device) -> None:
    """Both forms run, and the result is right whichever was faster."""
    image, weight = small(cpu)
    with tuning(beam=1, budget_s=40, clock=Looks()) as report:
        image.conv2d(weight).realize()
    lines = [kernel.summary() for kernel in report.kernels]
    assert any(line.startswith("conv2d") and "tiles" in line for line in lines)
    found = image.conv2d(weight).numpy()
    wanted = image.conv2d(weight, winograd=False).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
