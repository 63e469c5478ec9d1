"""A program that computes ever new shapes keeps a limited number of kernels."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.runtime import runtime
from ugpu.compiler.runtime.kernels import programs
from ugpu.compiler.runtime.recent import Recent
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

MOST = 3


def test_what_is_used_stays() -> None:
    recent: Recent[str, int] = Recent(2)
    recent["one"], recent["two"] = 1, 2
    assert recent.get("one") == 1
    recent["three"] = 3
    assert [*recent] == ["one", "three"] and recent.get("two") is None
    recent["one"] = 4
    recent["five"] = 5
    assert [*recent] == ["one", "five"] and len(recent) == 2
    recent.clear()
    assert [*recent] == []


def doubled(device: Device, size: int) -> bool:
    made = Tensor(np.ones((2, size), "f4"), device=device)
    return bool(((made * 2).sum(axis=0).numpy() == 4).all())


def test_new_shapes(cpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "KERNELS", MOST)
    monkeypatch.setattr(runtime, "PLANS", MOST)
    gc.collect()
    before = len([*cpu.driver.core.programs])
    kernels = use_cache(cpu, tmp_path / "kernels").programs
    for size in range(2, 2 + 4 * MOST):
        assert doubled(cpu, size)
    assert len(kernels._kernels) <= MOST and len(kernels._groups) <= MOST
    gc.collect()
    assert len([*cpu.driver.core.programs]) - before <= 2 * MOST  # of kernels, and of plans
    assert doubled(cpu, 2)
