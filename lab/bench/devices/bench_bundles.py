"""How long a bundle of evidence takes and how large it is: after a page fault and a hang on the
virtual Navi31, with everything that it takes in, and after a page fault of an NVIDIA chip."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run, start_forever
from tests.support.nvidia.nv_machine import opened as nv_opened
from tests.support.nvidia.nv_machine import powered, work
from ugpu.hcq.device import crash
from ugpu.hcq.errors import UgpuError
from ugpu.virtual.nvidia.faults import Fault

ROUNDS = 5
FAR = np.uint64(0x2040_0000_0000)


class _Timed(crash.Keeper):
    """Measures `keep`."""

    def __init__(self, device: str, folder: Path) -> None:
        super().__init__(device, folder)
        self.seconds: list[float] = []
        self.sizes: list[int] = []

    def keep(self, error: UgpuError, gather: crash.Gather) -> None:
        start = time.perf_counter()
        super().keep(error, gather)
        self.seconds.append(time.perf_counter() - start)
        assert self.kept is not None
        self.sizes.append(self.kept.stat().st_size)


def _figures(what: str, device: Any, provoke: Callable[[], object]) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        keeper = _Timed(device.name, Path(folder))
        device.driver.core.keeper = keeper
        for _ in range(ROUNDS):
            with contextlib.suppress(UgpuError):
                provoke()
            device.reset()
    # The first one imports what bundles need.
    seconds = sorted(keeper.seconds[1:])[(ROUNDS - 1) // 2]
    return [
        {"name": f"bundle of {what}", "value": seconds * 1e3, "unit": "ms"},
        {"name": f"bundle of {what}, first", "value": keeper.seconds[0] * 1e3, "unit": "ms"},
        {"name": f"bundle of {what}, size", "value": max(keeper.sizes) / 1e6, "unit": "MB"},
    ]


def measure() -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    chip: Any = build_chip()
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        results += _figures(
            "a page fault (navi31)", device, lambda: run(device, program, "read_at", out, FAR)
        )

        def hang() -> None:
            start_forever(chip, device, program, out)
            device.synchronize(0.2)

        results += _figures("a hang (navi31)", device, hang)
    chip.close()
    with powered() as machine, nv_opened(machine) as gpu:

        def fault() -> None:
            machine.inject(Fault.UNMAPPED)
            work(gpu)

        work(gpu)
        results += _figures("a page fault (gh100)", gpu, fault)
    return results
