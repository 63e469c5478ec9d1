"""The compiler: matrix products cold and warm on the virtual GPU, host time per operation.

bench_compiler_peers compares kernels on `cpu` with libraries.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device


def _best(work: Callable[[], object], turns: int) -> float:
    """Seconds, best of several turns."""
    best = float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def _product(matrix: Tensor, device: Device) -> None:
    (matrix @ matrix).realize()
    device.synchronize()


def _matmul(name: str, size: int, turns: int) -> tuple[float, float]:
    """Seconds of the first product (compiled with an empty cache) and of later ones."""
    array = np.random.default_rng(0).random((size, size), np.float32)
    with tempfile.TemporaryDirectory() as folder, hcq.open(name) as device:
        use_cache(device, Path(folder))
        matrix = Tensor(array, device=device)
        first = _best(lambda: _product(matrix, device), 1)
        return first, _best(lambda: _product(matrix, device), turns)


def _host_time(turns: int = 300) -> float:
    """Seconds of Python per small operation whose kernel is known, submission included."""
    with hcq.open("cpu") as device:
        use_cache(device, None)
        tensor = Tensor(np.zeros(16, np.float32), device=device)
        (tensor + 1).realize()
        start = time.perf_counter()
        for _ in range(turns):
            tensor = (tensor + 1).realize()
        elapsed = time.perf_counter() - start
        device.synchronize()
        return elapsed / turns


def measure() -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    first, warm = _matmul("virtual:navi31", 256, 20)
    results += [
        {"name": "matmul 256 f32 on virtual:navi31, first", "value": first, "unit": "s"},
        {"name": "matmul 256 f32 on virtual:navi31, warm", "value": warm * 1e3, "unit": "ms"},
    ]
    results.append({"name": "host time per operation", "value": _host_time() * 1e6, "unit": "us"})
    return results
