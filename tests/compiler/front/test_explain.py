"""What `watch` tells of kernels: those that run, their work, and times that are not the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning
from ugpu.compiler.front.explain import watch
from ugpu.compiler.kernel.choices import Choices
from ugpu.compiler.kernel.lower import spaces
from ugpu.compiler.runtime.kernels.programs import Programs
from ugpu.compiler.runtime.kernels.store import key_of
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.compiler.runtime.watch import RUNS, SHARE_S, measure
from ugpu.hcq.device.device import Device

Run = Callable[[Callable[[], float]], float]


def fixed(seconds: list[float]) -> tuple[Run, Callable[[], float]]:
    """A run that takes these times one after the other, and the clock that shows it."""
    now = [0.0]
    coming = iter(seconds)

    def run(clock: Callable[[], float]) -> float:
        start = clock()
        now[0] += next(coming)
        return clock() - start

    return run, lambda: now[0]


def test_the_best_of_all_runs_but_the_first() -> None:
    run, clock = fixed([0.001, 0.02, 0.01, 0.025, 1.0])
    times = measure(run, clock)
    assert times.first == 0.001 and times.best == pytest.approx(0.01) and times.runs == 4


def test_runs_are_bounded_in_number_and_time() -> None:
    assert measure(*fixed([5.0] * 9)).runs == 2
    run, clock = fixed([SHARE_S / 1000] * 100)
    assert measure(run, clock).runs == RUNS + 1


@pytest.mark.parametrize("device_name", ["cpu", "virtual:navi31"])
def test_runs_again_change_nothing(device_name: str) -> None:
    """Kernels that write into memory in place see each time what was there before."""
    with hcq.open(device_name) as device:
        use_cache(device, None)
        with watch() as runs:
            x = Tensor(np.arange(100, dtype=np.float32), device=device).realize()
            x += 1
            x.realize()
            x[3:7] = x[3:7] * 2
            x.realize()
            x[[1, 1, 2]] = Tensor([7.0, 8.0, 9.0], device=device)
            found = x.numpy()
        expected = np.arange(100, dtype=np.float32) + 1
        expected[3:7] *= 2
        expected[1:3] = 8, 9
        np.testing.assert_array_equal(found, expected)
        kernels = [kernel for run in runs for kernel in run.kernels]
        assert len(kernels) >= 3
        for kernel in kernels:
            assert kernel.runs >= 2 and kernel.seconds and kernel.first_seconds


def test_work_is_that_of_the_operations(cpu: Device) -> None:
    a = Tensor(np.ones((20, 30), np.float32), device=cpu)
    b = Tensor(np.ones((30, 40), np.float32), device=cpu)
    with watch() as runs:
        (a @ b).realize()
        a.softmax().realize()
        (a[0, :4] + 1).realize()
    product, softmax, added = (run.kernels[0] for run in runs)
    assert product.flops == 2 * 20 * 30 * 40
    assert product.bytes == 4 * (20 * 30 + 30 * 40 + 20 * 40)
    assert softmax.flops == 7 * 20 * 30  # max; subtraction, exp, sum; those two and a division
    assert added.flops == 4


def other_choices(computation: Computation, device: Device) -> Choices:
    """What a search might have found: not the default."""
    space = spaces(computation, device.target)[0]
    return next(iter(space.neighbours(space.start)))


def test_the_kernel_that_runs_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Computation] = []
    lowered = Programs.lowered

    def noting(programs: Programs, computation: Computation) -> object:
        seen.append(computation)
        return lowered(programs, computation)

    monkeypatch.setattr(Programs, "lowered", noting)
    with hcq.open("cpu", threads=1) as device:
        names = []
        for tuned in (False, True):
            runtime = use_cache(device, tmp_path / "kernels")
            if tuned:
                with interning:
                    key, choices = key_of(seen[0], device), other_choices(seen[0], device)
                runtime.programs.tuned.put(key, choices)
            x = Tensor(np.ones((64, 64), np.float32), device=device)
            with watch() as runs, kernel_log() as ran:
                (x * 2 + 1).realize()
            assert runs[0].kernels[0].name == ran[0].name
            assert runs[0].kernels[0].name in runs[0].kernels[0].ir
            names.append(ran[0].name)
        assert names[0] != names[1]
