"""What CUDA does on the same GPU, through PyTorch, where PyTorch is: the numbers to stand beside.

python -m lab.hw.peer_torch FILE         writes {name: value} with the names of the sections
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab.hw.sections.rows import ATTENTION, ROWS

MB = 1 << 20
COPY = 256 * MB
SIZE = 4096
ROUNDS = 50


def _median(work: Callable[[], object], wait: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return sorted(times)[rounds // 2]


def measure(torch: Any) -> dict[str, float]:  # Any: PyTorch has no part in our types
    """Everything the sections measure, in their units."""
    wait = torch.cuda.synchronize
    found: dict[str, float] = {}
    x = torch.ones(64, device="cuda")
    y = torch.empty_like(x)
    for _ in range(10):
        torch.mul(x, 3, out=y)
    wait()
    found["launch and wait"] = _median(lambda: torch.mul(x, 3, out=y), wait, 1000) * 1e6
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            torch.mul(x, 1, out=y)
    found["replay of 100 kernels and wait"] = _median(graph.replay, wait, 500) * 1e6
    host = torch.ones(COPY, dtype=torch.uint8).pin_memory()
    near, other = (torch.empty(COPY, dtype=torch.uint8, device="cuda") for _ in range(2))
    for name, to, source in (
        ("copy to the device", near, host),
        ("copy within the device", other, near),
        ("copy from the device", host, near),
    ):
        work = partial(to.copy_, source, non_blocking=True)
        work()
        wait()
        found[name] = COPY / _median(work, wait, 20) / 1e9
    found["copy within the device, by a kernel"] = found["copy within the device"]
    # The goal of elementwise work is the copy bandwidth: what is read and written by a copy.
    found["elementwise float32"] = 2 * found["copy within the device"]
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, dtype, tf32 in (
        ("matmul float32", torch.float32, False),
        ("matmul tf32", torch.float32, True),
        ("matmul float16", torch.float16, False),
        ("matmul bfloat16", torch.bfloat16, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
        for _ in range(3):
            a @ b
        wait()
        found[name] = 2 * SIZE**3 / _median(partial(torch.matmul, a, b), wait, 20) / 1e12
    for name, row in rows(torch).items():
        for _ in range(3):
            row()
        wait()
        found[name] = _median(row, wait) * 1e6
    return found


def rows(torch: Any) -> dict[str, Callable[[], object]]:
    """The works of lab.hw.sections.rows."""
    functional = torch.nn.functional
    heads = [torch.randn(*ATTENTION, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    attend = partial(functional.scaled_dot_product_attention, *heads)
    x = torch.randn(*ROWS, device="cuda")
    return {
        "attention bfloat16": attend,
        "causal attention bfloat16": partial(attend, is_causal=True),
        "softmax": partial(functional.softmax, x, -1),
        "layer norm": partial(functional.layer_norm, x, ROWS[-1:]),
        "sum of rows": partial(x.sum, -1),
        "largest of rows": partial(x.amax, -1),
        "places of the largest": partial(x.argmax, -1),
        "sum of all": x.sum,
    }


def main() -> int:
    """0 when measured, 3 without PyTorch or a GPU it can use."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return 3
    if not torch.cuda.is_available():
        return 3
    Path(sys.argv[1]).write_text(json.dumps(measure(torch)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
