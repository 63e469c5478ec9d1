"""How long recovery takes on the virtual Navi31, by rung, and when a hang is an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run, start_forever
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program

ROUNDS = 10
LIMIT_S = 0.2  # of the wait that meets a hang


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _error(provoke: Callable[[], object]) -> None:
    try:
        provoke()
    except UgpuError:
        return
    raise SystemExit("the fault was not reported")


def _by_failure(device: AmDevice, provoke: Callable[[], object]) -> float:
    """Mean seconds of the reset after a failure, by the rung that the diagnosis chose."""
    taken = []
    for _ in range(ROUNDS + 1):
        _error(provoke)
        taken.append(_seconds(device.reset))
    return mean(taken[1:])  # the first round translates the kernel


def _hang_s(chip: Any, device: AmDevice, program: Program, out: Buffer) -> float:
    """Seconds beyond the limit after which a kernel that never ends is an error."""
    start_forever(chip, device, program, out)
    return _seconds(lambda: _error(lambda: device.synchronize(limit_s=LIMIT_S))) - LIMIT_S


def measure() -> list[dict[str, object]]:
    chip = build_chip()
    figures: dict[str, float] = {}
    with opened(chip) as device, device.load(faulty_object()) as program:
        device.driver.core.keeper.folder = None
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        wild = np.uint64(0x1234_5678_9000)
        figures["queue, after a page fault"] = _by_failure(
            device, lambda: run(device, program, "read_at", out, wild)
        )
        figures["queue, after an illegal instruction"] = _by_failure(
            device, lambda: run(device, program, "illegal", out)
        )
        beyond, resets = [], []
        for _ in range(ROUNDS):
            beyond.append(_hang_s(chip, device, program, out))
            resets.append(_seconds(device.reset))
        figures["queue, after a hang"] = mean(resets)
        for rung in ("block", "warm", "mode1"):
            figures[rung] = mean(_seconds(partial(device.reset, rung)) for _ in range(ROUNDS))
        figures["hang, from its limit to the error"] = mean(beyond)
        check_runs(device, program, out, 2)
    chip.close()
    return [
        {"name": f"recovery, {name}", "value": value * 1e3, "unit": "ms"}
        for name, value in figures.items()
    ]
