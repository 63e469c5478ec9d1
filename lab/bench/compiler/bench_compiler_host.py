"""Python's share: host time per small operation, and per kernel of a replay, beside tinygrad's.

The peer is left out where it is not installed, or lacks the C compiler that it calls.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.runtime import use_cache

KERNELS = 100
TURNS = 15
REPEATS = 5


def _tinygrad() -> Any:  # a module without types, or None
    compilers = ("clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14")
    found = next((name for name in compilers if shutil.which(name)), None)
    if found is None or importlib.util.find_spec("tinygrad") is None:
        return None
    os.environ.setdefault("CC", found)
    return importlib.import_module("tinygrad")


def _microseconds(work: Callable[[], None], times: int, wait: Callable[[], None]) -> float:
    """Of one operation, where `work` makes `times` of them: the best of REPEATS calls, each waited
    for outside its time. The first finds the caches full of the peer's work."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        wait()
    return best / times * 1e6


def _entry(name: str, ours: list[float], peer: str, theirs: list[float]) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "value": statistics.median(ours), "unit": "us"}
    if theirs:
        median = statistics.median(theirs)
        entry |= {"peer": peer, "peer_value": median, "ratio": median / statistics.median(ours)}
    return entry


def _operations(make: Callable[[], Any]) -> Callable[[], None]:
    """50 small operations, each realized, none waited for."""

    def work() -> None:
        tensor = make()
        for _ in range(50):
            tensor = (tensor + 1).realize()

    return work


def measure() -> list[dict[str, object]]:
    peer = _tinygrad()
    zeros = np.zeros(16, np.float32)
    with hcq.open("cpu") as device:
        use_cache(device, None)
        start = Tensor(zeros, device=device)
        replayed = jit(_chain)
        works = [(_operations(lambda: start), 50), (lambda: _keep(replayed(start)), KERNELS)]
        others: list[tuple[Callable[[], None], int]] = []
        if peer is not None:
            first = peer.Tensor(zeros, device="CPU").realize()
            theirs = peer.TinyJit(lambda x: _chain(x).realize())
            others = [(_operations(lambda: first), 50), (lambda: _keep(theirs(first)), KERNELS)]
        times: list[list[float]] = [[] for _ in range(4)]
        for _ in range(TURNS):
            for place, (work, count) in enumerate([*works, *others]):
                wait = device.synchronize if place < 2 else _finish
                times[place].append(_microseconds(work, count, wait))
    names = ("host time per operation, 16 elements", f"replay of {KERNELS} small kernels, each")
    return [
        _entry(names[0], times[0], "tinygrad", times[2]),
        _entry(names[1], times[1], "tinygrad TinyJit", times[3]),
    ]


def _finish() -> None:
    """Wait for tinygrad's CPU device."""
    importlib.import_module("tinygrad").Device["CPU"].synchronize()


def _keep(_: object) -> None:
    """Nothing to wait for."""


def _chain(tensor: Any) -> Any:
    for _ in range(KERNELS):
        tensor = (tensor + 1).contiguous()
    return tensor
