"""How long after the event a fault is its own error, on the virtual Navi31, and how long a reset
takes; and the same with the bundle of the evidence, also on the virtual H100."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests.support import faulty_work
from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.errors import UgpuError

ROUNDS = 5
BUNDLES = 15  # whose time is measured; the least is that of an idle machine
UNMAPPED = np.uint64(0x1234_5678_9000)


def _error_s(provoke: Callable[[], None]) -> float:
    """Seconds from the submission that faults to the error."""
    start = time.perf_counter()
    try:
        provoke()
    except UgpuError:
        return time.perf_counter() - start
    raise SystemExit("the fault was not reported")


def measure() -> list[dict[str, object]]:
    chip = build_chip()
    figures: dict[str, float] = {}
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        faults: dict[str, tuple[str, tuple[object, ...]]] = {
            "page fault": ("read_at", (out, UNMAPPED)),
            "page fault of an instruction": ("jump_to", (out, np.uint64(out.address))),
            "illegal instruction": ("illegal", (out,)),
        }
        check_runs(device, program, out, 1)
        for what, (kernel, args) in faults.items():
            errors, resets = [], []
            for _ in range(ROUNDS):
                errors.append(_error_s(partial(run, device, program, kernel, *args)))
                start = time.perf_counter()
                device.reset()
                resets.append(time.perf_counter() - start)
                check_runs(device, program, out, 2)
            # The first round translates the kernel.
            figures[f"{what}, from submission to error"] = sorted(errors[1:])[(ROUNDS - 1) // 2]
            figures[f"{what}, reset"] = sorted(resets)[ROUNDS // 2]
        chip.unplug()
        figures["surprise removal, to error"] = _error_s(
            lambda: run(device, program, "good", out, np.uint32(3))
        )
    chip.close()
    for name in ("virtual:navi31", "virtual:gh100"):
        figures |= _with_bundle(name)
    return [{"name": name, "value": value * 1e3, "unit": "ms"} for name, value in figures.items()]


def _with_bundle(name: str) -> dict[str, float]:
    """Return the time from a page fault's submission to its error, whose bundle is then on the
    disk."""
    walls, processors = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        hcq.open(name) as device,
        device.load(contract_object(device.target)) as program,
    ):
        device.driver.core.keeper.folder = Path(folder)
        timeline = device.queue().timeline
        for _ in range(BUNDLES):
            wall, processor = time.perf_counter(), time.process_time()
            try:
                timeline.wait(faulty_work.submit(device, program))
            except UgpuError as error:
                walls.append(time.perf_counter() - wall)
                processors.append(time.process_time() - processor)
                if "bundle" not in error.facts:
                    raise SystemExit("the fault has no bundle") from error
            device.reset()
    what = f"{name}: page fault, from submission to error and bundle"
    return {
        f"{what}, least": min(walls),
        f"{what}, processor time": sorted(processors)[BUNDLES // 2],
    }
