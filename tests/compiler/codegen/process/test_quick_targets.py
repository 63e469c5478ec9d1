"""Kernels of models: compiled with few passes, with the same results as boards' code, under keys of
their own; native code is replaced below a recorded function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.kernels.tiers import target_of
from ugpu.compiler.runtime.runtime import kernel_log, runtime_of, use_cache
from ugpu.hcq.objects import recompile
from ugpu.hcq.state.clock import Clock, ModelClock, WatchedClock
from ugpu.hcq.state.config import setting
from ugpu.virtual.shader import versions

CHIPS = ("virtual:navi31", "virtual:gh100")
rng = np.random.default_rng(3)
X, W = (rng.standard_normal((2, 5, 12, 12)), rng.standard_normal((7, 5, 3, 3)))


@contextmanager
def _opened(chip: str, folder: Path, tiers: str) -> Iterator[hcq.Device]:
    with setting("UGPU_TIERS", tiers), hcq.open(chip) as device:
        use_cache(device, folder)
        yield device
        recompile.SHARED.get().wait()


def _work(x: Tensor, w: Tensor) -> Tensor:
    hidden = x.conv2d(w).relu()
    return (hidden.exp().sum(1).reshape(2, 100) @ hidden.reshape(7, 200).T[:100]).max(1)


def _given(device: hcq.Device) -> tuple[Tensor, Tensor]:
    x, w = (Tensor(array.astype(np.float32), device=device).realize() for array in (X, W))
    return x, w


@pytest.mark.parametrize("chip", CHIPS)
def test_results_are_those_of_boards_code_and_objects_are_apart(chip: str, tmp_path: Path) -> None:
    sizes: dict[str, dict[str, int]] = {}
    results = []
    for tiers, new in (("0", True), ("1", True), ("0", False), ("1", False)):
        with _opened(chip, tmp_path / "kernels", tiers) as device, kernel_log() as kernels:
            results.append(_work(*_given(device)).numpy())
        assert all(each.from_disk is not new for each in kernels)
        sizes[tiers] = {each.name: each.code_bytes for each in kernels}
    assert all(np.array_equal(each, results[0]) for each in results)
    assert sizes["0"].keys() == sizes["1"].keys() and sizes["0"] != sizes["1"]
    with hcq.open("cpu") as cpu:
        expected = _work(*_given(cpu)).numpy()
    np.testing.assert_allclose(results[1], expected, rtol=2e-5)


def test_only_models_are_quick(tmp_path: Path) -> None:
    assert not Clock().of_model and ModelClock().of_model
    assert not WatchedClock(ModelClock(), lambda found: None).of_model  # a recording's
    with setting("UGPU_TIERS", "1"), hcq.open("cpu") as cpu:
        assert target_of(cpu) == cpu.target
    for tiers in "01":
        with _opened("virtual:navi31", tmp_path, tiers) as device:
            assert runtime_of(device).programs.target.quick is (tiers == "1")
            assert not device.target.quick


def test_translations_are_replaced_below_a_recorded_function(tmp_path: Path) -> None:
    with _opened("virtual:navi31", tmp_path, "1") as device:
        x, w = _given(device)
        recorded = jit(_work)
        results = [recorded(x, w).numpy() for _ in range(versions.OFTEN + 1)]
        recompile.SHARED.get().wait()
        results += [recorded(x, w).numpy() for _ in range(2)]
        assert recorded.kernels
    assert all(np.array_equal(each, results[0]) for each in results)
