"""Rates of matrix products, each checked against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab.hw.budget import Budget, median_s
from lab.hw.report import Result
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported, UgpuError

TITLE = "Matrix products"
SIZE, SMALL = 4096, 128
#: name -> (element type, how near; of the largest element, the goal beside cuBLAS)
KINDS = {
    "float32": ("float32", 1e-4, ""),
    "tf32": ("float32", 2e-3, ""),
    "float16": ("float16", 2e-3, ""),
    "bfloat16": ("bfloat16", 2e-2, ">= 0.5"),
}


def run(device: str, budget: Budget) -> Iterator[Result]:
    """One product per element type."""
    with hcq.open(device) as opened:
        for place, name in enumerate(KINDS):
            try:
                yield from product(opened, name, budget.part(1 / (len(KINDS) - place)))
            except UgpuError as error:
                remark = f"{type(error).__name__}: {error}"[:200]
                yield Result(TITLE, f"matmul {name}", "failed", remark=remark)
                if opened.failure is not None:
                    opened.reset()


def product(device: Device, name: str, budget: Budget) -> Iterator[Result]:
    """Multiply two square matrices of one element type."""
    dtype, near, goal = KINDS[name]
    size = SMALL if budget.small else SIZE
    random = np.random.default_rng(7)
    left, right = (random.standard_normal((size, size), np.float32) for _ in range(2))
    title = f"matmul {name}"
    try:
        a, b = (Tensor(each, device=device).to(dtype).realize() for each in (left, right))

        @jit
        def work(x: Tensor, y: Tensor) -> Tensor:
            return (x.tf32() @ y.tf32() if name == "tf32" else x @ y).realize()

        def step() -> None:
            work(a, b)
            device.synchronize()

        for _ in range(3):
            step()
        rows = work(a, b)[:4].to("float32").numpy()
        wanted = a[:4].to("float32").numpy().astype("f8") @ b.to("float32").numpy().astype("f8")
    except NotSupported as error:
        yield Result(TITLE, title, "skipped", remark=str(error)[:200])
        return
    wrong = float(np.abs(rows - wanted).max() / np.abs(wanted).max())
    seconds, times = median_s(step, budget, 50)
    remark = f"{size}^3, median of {times}, largest error {wrong:.1e} of the largest element"
    rate = 2 * size**3 / seconds / 1e12
    outcome = "measured" if wrong <= near else "failed"
    yield Result(TITLE, title, outcome, rate, "TFLOP/s", remark, goal)
