"""Virtual Adreno: import, first result, kernels to machine code, submissions of a replay."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np

from lab.bench.devices.bench_start import import_ms
from tests.support.compiler import models
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.codegen import emit
from ugpu.compiler.codegen.process.objects import compile_here
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.runtime.kernels import programs
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.state.target import TargetSpec
from ugpu.virtual.adreno.engine import Engine

ROOT = Path(__file__).resolve().parents[3]
KERNELS, TURNS = 100, 5
CHIPS = ("a630", "a740")
# A process of its own, as a program is: seconds from opening to a checked result.
_FIRST = """
import sys, time
import numpy as np
from ugpu import hcq
from ugpu.compiler import Tensor
start, busy = time.perf_counter(), time.process_time()
with hcq.open("virtual:" + sys.argv[1]) as gpu:
    found = (Tensor(np.arange(1024, dtype=np.float32), device=gpu) * 2 + 1).numpy()
    print(time.perf_counter() - start, time.process_time() - busy)
assert (found == np.arange(1024) * 2 + 1).all()
"""


def first_result(chip: str) -> tuple[float, float]:
    """Seconds and processor seconds to the first result, caches warm; best of so many turns."""
    command = [sys.executable, "-c", _FIRST, chip]
    found = [subprocess.check_output(command, cwd=ROOT).split() for _ in range(TURNS + 1)][1:]
    wall, busy = zip(*found, strict=True)
    return min(map(float, wall)), min(map(float, busy))


def compiled(chip: str) -> list[float]:
    """Processor seconds for each kernel of a decoder's layers and of a convolution network, from
    kernel IR to the object; best of so many turns."""
    kernels: list[tuple[Kernel, TargetSpec]] = []
    made = emit.emitted

    def noted(kernel: Kernel, target: TargetSpec) -> emit.Emitted:
        kernels.append((kernel, target))
        return made(kernel, target)

    with hcq.open(f"virtual:{chip}") as device:
        runtime = use_cache(device, None)

        def tensor(*shape: int) -> Tensor:
            return Tensor(np.zeros(shape, np.float32), device=device)

        x = tensor(1, 8, 32, 32).conv2d(tensor(16, 8, 3, 3), padding=1).relu()
        wanted = [models.transformer(tensor, layers=2), x.mean(axis=(2, 3)).softmax(axis=-1)]
        with mock.patch.object(programs, "emitted", noted):
            runtime.prepare([each.node for each in wanted])
    times = []
    for kernel, target in kernels:
        turns = []
        for _ in range(TURNS):
            start = time.process_time()
            compile_here(made(kernel, target).text, target)
            turns.append(time.process_time() - start)
        times.append(min(turns))
    return times


def submissions(chip: str) -> int:
    """Submissions of one replay of a graph of a hundred kernels."""
    count, run = 0, Engine._run

    def noted(engine: Engine, submission: object) -> object:
        nonlocal count
        count += 1
        return run(engine, submission)

    with hcq.open(f"virtual:{chip}") as device:

        @jit
        def chain(x: Tensor) -> Tensor:
            for _ in range(KERNELS):
                x = (x + 1).realize()
            return x

        given = Tensor(np.zeros(64, np.float32), device=device)
        for _ in range(4):
            chain(given)
        device.synchronize()
        with mock.patch.object(Engine, "_run", noted):
            chain(given)
            device.synchronize()
    return count


def measure() -> list[dict[str, object]]:
    """Measure all of it."""
    rows: list[tuple[str, float, str]] = [
        ("from ugpu import qcom", import_ms("ugpu.qcom.device.device"), "ms")
    ]
    for chip in CHIPS:
        wall, busy = first_result(chip)
        rows += [
            (f"virtual:{chip}: open to first result", wall, "s"),
            (f"virtual:{chip}: the same, processor time", busy, "s"),
        ]
        times = compiled(chip)
        rows += [
            (f"{chip}: kernel IR to ir3, median of {len(times)}, processor time",
             statistics.median(times) * 1e3, "ms"),
            (f"{chip}: the same, largest", max(times) * 1e3, "ms"),
            (f"virtual:{chip}: submissions of a replay of {KERNELS} kernels",
             submissions(chip), ""),
        ]  # fmt: skip
    return [{"name": name, "value": value, "unit": unit} for name, value, unit in rows]
