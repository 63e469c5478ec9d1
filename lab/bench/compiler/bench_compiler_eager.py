"""Single operations as a user types them, and the first result of a process whose caches are warm.

The peer, PyTorch, is left out where it is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

ROOT = Path(__file__).resolve().parents[3]
TURNS = 25
TIMES = 50

Works = Mapping[str, Callable[[], Any]]

SECOND = """
import time
import numpy as np
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.runtime import device_of
from tests.support.compiler import models
device_of("cpu")
network = models.resnet50(lambda *shape: Tensor(np.empty(shape, np.float32), device="cpu"))
start = time.perf_counter()
network.realize()
print(time.perf_counter() - start)
"""


def _ours(device: Device) -> Works:
    rng = np.random.default_rng(0)
    x, y = (Tensor(rng.random(16).astype("f4"), device=device) for _ in "xy")
    a, b = (Tensor(rng.random((4, 4)).astype("f4"), device=device) for _ in "ab")
    table = Tensor(rng.random((64, 64)).astype("f4"), device=device)
    array = rng.random(256).astype("f4")
    held, half = Tensor(array, device=device), x.half().realize()
    recorded = jit(lambda x, y: x @ y)
    return {
        "add of 16": lambda: (x + y).realize(),
        "softmax of 16": lambda: x.softmax().realize(),
        "4x4 matmul": lambda: (a @ b).realize(),
        "4x4 matmul and its wait": lambda: ((a @ b).realize(), device.synchronize()),
        "4x4 matmul, recorded, and its wait": lambda: (recorded(a, b), device.synchronize()),
        "(x + 1).numpy() of 16": lambda: (x + 1).numpy(),
        "(x + 1).sum() of 16 and its wait": lambda: ((x + 1).sum().realize(), device.synchronize()),
        "softmax of 4x4 matmul and its wait": lambda: (
            ((a @ b) * 2.0).softmax().realize(),
            device.synchronize(),
        ),
        "slice + number": lambda: (table[3:9] + 1.0).realize(),
        "times a new number": lambda: (x * random.random()).realize(),
        "times a new number, float16": lambda: (half * random.random()).realize(),
        "whole quotient by a new number": lambda: (x // random.random()).realize(),
        "where, a new number": lambda: (x > 0.5).where(x, random.random()).realize(),
        "tensor of a 1 KB array": lambda: Tensor(array, device=device),
        "1 KB array of a tensor": held.numpy,
    }


def _theirs() -> Works:
    if importlib.util.find_spec("torch") is None:
        return {}
    torch = importlib.import_module("torch")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    x, y, a, b, table = (torch.rand(*shape) for shape in ((16,), (16,), (4, 4), (4, 4), (64, 64)))
    array = np.random.default_rng(0).random(256).astype("f4")
    held, half = torch.tensor(array), x.half()
    return {
        "add of 16": lambda: x + y,
        "softmax of 16": lambda: x.softmax(-1),
        "4x4 matmul": lambda: a @ b,
        "4x4 matmul and its wait": lambda: a @ b,
        "4x4 matmul, recorded, and its wait": lambda: a @ b,
        "(x + 1).numpy() of 16": lambda: (x + 1).numpy(),
        "(x + 1).sum() of 16 and its wait": lambda: (x + 1).sum(),
        "softmax of 4x4 matmul and its wait": lambda: ((a @ b) * 2.0).softmax(-1),
        "slice + number": lambda: table[3:9] + 1.0,
        "times a new number": lambda: x * random.random(),
        "times a new number, float16": lambda: half * random.random(),
        "whole quotient by a new number": lambda: x // random.random(),
        "where, a new number": lambda: torch.where(x > 0.5, x, random.random()),
        "tensor of a 1 KB array": lambda: torch.tensor(array),
        "1 KB array of a tensor": lambda: held.numpy().copy(),
    }


def _microseconds(work: Callable[[], Any], wait: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(TIMES):
        work()
    elapsed = time.perf_counter() - start
    wait()
    return elapsed / TIMES * 1e6


def _operations() -> list[dict[str, object]]:
    with hcq.open("cpu") as device:
        use_cache(device, None)
        ours, theirs = _ours(device), _theirs()
        results: list[dict[str, object]] = []
        for name, work in ours.items():
            other = theirs.get(name)
            times: tuple[list[float], list[float]] = ([], [])
            _microseconds(work, device.synchronize)  # compiles
            for _ in range(TURNS):
                times[0].append(_microseconds(work, device.synchronize))
                if other is not None:
                    times[1].append(_microseconds(other, lambda: None))
            value = statistics.median(times[0])
            result: dict[str, object] = {"name": f"eager: {name}", "value": value, "unit": "us"}
            if times[1]:
                peer = statistics.median(times[1])
                result |= {"peer": "PyTorch", "peer_value": peer, "ratio": peer / value}
            results.append(result)
        return results


def _second_process() -> dict[str, object]:
    """Seconds from a built ResNet-50 to its submission; the caches are another process's."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"UGPU_CACHE": folder}
        found = []
        for _ in range(5):
            command = [sys.executable, "-c", SECOND]
            done = subprocess.check_output(command, cwd=ROOT, env=environment)
            found.append(float(done))
        return {
            "name": "ResNet-50 in a second process, caches warm: realize",
            "value": statistics.median(found[1:]),
            "unit": "s",
            "peer": "first process",
            "peer_value": found[0],
            "ratio": found[0] / statistics.median(found[1:]),
        }


def _on_models() -> list[dict[str, object]]:
    """Numbers that are new each time on virtual GPUs: processor time of the calling thread."""
    results: list[dict[str, object]] = []
    for name in ("virtual:navi31", "virtual:gh100"):
        with hcq.open(name) as device:
            x = Tensor(np.random.default_rng(0).random(64).astype("f4"), device=device).realize()
            works: Works = {
                "times a new number": lambda x=x: (x * random.random()).realize(),
                "x * 2 + 1": lambda x=x: (x * 2 + 1).realize(),
            }
            for title, work in works.items():
                for _ in range(TIMES):
                    work()
                times = []
                for _ in range(TURNS):
                    device.synchronize()
                    start = time.thread_time()
                    for _ in range(TIMES):
                        work()
                    times.append((time.thread_time() - start) / TIMES * 1e6)
                title = f"eager: {title} on {name}, processor time"
                results.append({"name": title, "value": min(times), "unit": "us"})
    return results


def measure() -> list[dict[str, object]]:
    return [*_operations(), *_on_models(), _second_process()]
