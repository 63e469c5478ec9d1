"""The compiler's kernels on `cpu` beside libraries: NumPy, PyTorch and tinygrad, where installed.

Ours and the peer take turns in one process, with as many threads each, and the best of several
turns counts on both sides: whatever else the machine does meets both alike. `ratio` is of wall
time, `median_ratio` of the medians of all turns. `cpu_ratio` is of processor time, which other
processes disturb less; it is fair on one processor (`taskset -c 0`), since threads of the peers
burn time while they wait for each other. For the same reason these turns begin after a pause:
OpenBLAS' and OpenMP's threads look for work for tens of milliseconds after their last, and whoever
comes next would share the processors with them.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.dtype import bfloat16
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.device.device import Device

Work = Callable[[], object]
TURNS = 12
SETTLE_S = 0.05
ROWS, COLUMNS = 16384, 1024  # 64 MB of float32
# channels, size, out channels, window, stride
BOTTLENECK = ((256, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (128, 56, 128, 3, 2),
              (256, 56, 512, 1, 2), (512, 7, 512, 3, 1))  # fmt: skip


def _peer(name: str) -> Any:  # a module without types, or None
    """A library to compare with; None where it is not installed."""
    if importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


class _Best:
    """The shortest times of several turns, in seconds."""

    def __init__(self) -> None:
        self.wall = self.processor = float("inf")
        self.walls: list[float] = []

    @property
    def median(self) -> float:
        return statistics.median(self.walls)

    def turn(self, work: Work, pause_s: float) -> None:
        time.sleep(pause_s)
        start, busy = time.perf_counter(), time.process_time()
        work()
        self.walls.append(time.perf_counter() - start)
        self.wall = min(self.walls)
        self.processor = min(self.processor, time.process_time() - busy)


def _versus(
    name: str, ours: Work, peers: dict[str, Work], turns: int = TURNS, pause_s: float = SETTLE_S
) -> list[Any]:
    """One result per peer, or one without a peer. All have run once before they are timed."""
    for work in (ours, *peers.values()):
        work()
    mine, theirs = _Best(), {peer: _Best() for peer in peers}
    for _ in range(turns):
        mine.turn(ours, pause_s)
        for peer, work in peers.items():
            theirs[peer].turn(work, pause_s)
    result: dict[str, object] = {"name": name, "value": mine.wall * 1e3, "unit": "ms"}
    if not peers:
        return [result]
    return [
        {
            **result,
            "peer": peer,
            "peer_value": best.wall * 1e3,
            "ratio": best.wall / mine.wall,
            "median_ratio": best.median / mine.median,
            "cpu_ratio": best.processor / mine.processor,
        }
        for peer, best in theirs.items()
    ]


class _Bench:
    """The device, the peers, and inputs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.torch = _peer("torch")
        self.tinygrad = _peer("tinygrad")
        if shutil.which("clang") is None:
            self.tinygrad = None  # its CPU device compiles with it
        if self.torch is not None:
            self.torch.set_num_threads(len(os.sched_getaffinity(0)))

    def ours(self, build: Callable[[], Tensor]) -> Work:
        def work() -> None:
            build().realize()
            self.device.synchronize()

        return work

    def matmul(self, size: int) -> list[Any]:
        array = np.random.default_rng(0).random((size, size), np.float32)
        tensor = Tensor(array, device=self.device)
        peers: dict[str, Work] = {"NumPy": lambda: array @ array}
        if self.torch is not None:
            theirs = self.torch.from_numpy(array)
            peers["PyTorch"] = lambda: theirs @ theirs
        results = _versus(f"matmul {size} f32", self.ours(lambda: tensor @ tensor), peers)
        if self.tinygrad is not None and size <= 1024:
            small = self.tinygrad.Tensor(array, device="CPU").realize()
            tiny: dict[str, Work] = {"tinygrad": lambda: _finished(small @ small)}
            results += _versus(f"matmul {size} f32", self.ours(lambda: tensor @ tensor), tiny, 3)
        return results

    def matmul_bfloat16(self, size: int) -> list[Any]:
        array = np.random.default_rng(0).random((size, size), np.float32)
        tensor = Tensor(array, device=self.device).cast(bfloat16).realize()
        peers: dict[str, Work] = {}
        if self.torch is not None:
            theirs = self.torch.from_numpy(array).bfloat16()
            peers["PyTorch"] = lambda: theirs @ theirs
        return _versus(f"matmul {size} bf16", self.ours(lambda: tensor @ tensor), peers)

    def convolutions(self) -> list[Any]:
        """The convolutions of a ResNet-50's bottleneck blocks."""
        rng = np.random.default_rng(0)
        results = []
        for batch in (1, 8):
            for channels, size, out, window, stride in BOTTLENECK:
                image = rng.random((batch, channels, size, size), np.float32)
                weight = rng.random((out, channels, window, window), np.float32)
                x, w = (Tensor(array, device=self.device) for array in (image, weight))
                around = window // 2
                peers: dict[str, Work] = {}
                if self.torch is not None:
                    y, v = self.torch.from_numpy(image), self.torch.from_numpy(weight)
                    convolve = self.torch.nn.functional.conv2d
                    peers["PyTorch"] = partial(convolve, y, v, stride=stride, padding=around)
                name = f"conv2d {window} x {window} / {stride}, {channels} to {out} of {size}^2"
                build = partial(x.conv2d, w, stride=stride, padding=around)
                results += _versus(f"{name}, batch {batch}", self.ours(build), peers)
        return results

    def over_memory(self) -> list[Any]:
        """Work on 64 MB whose speed is that of memory."""
        array = np.random.default_rng(0).random((ROWS, COLUMNS), np.float32)
        x = Tensor(array, device=self.device)

        def normalised() -> Tensor:
            centred = x - x.mean(-1, keepdims=True)
            return centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5).sqrt()

        works: dict[str, Callable[[], Tensor]] = {
            "chain of 6": lambda: (((x * 2.0 + 1.0).relu() - 0.5) * x) + 0.25,
            "sum": x.sum,
            "softmax": x.softmax,
            "layer norm": normalised,
        }
        theirs: dict[str, Work] = {}
        if self.torch is not None:
            y, functional = self.torch.from_numpy(array), self.torch.nn.functional
            theirs = {
                "chain of 6": lambda: (((y * 2.0 + 1.0).relu() - 0.5) * y) + 0.25,
                "sum": y.sum,
                "softmax": lambda: functional.softmax(y, -1),
                "layer norm": lambda: functional.layer_norm(y, (COLUMNS,)),
            }
        results = []
        for name, build in works.items():
            peers = {"PyTorch": theirs[name]} if name in theirs else {}
            results += _versus(f"{name}, 64 MB f32", self.ours(build), peers)
        return results

    def orders(self) -> list[Any]:
        """Rows in order, beside NumPy's sort of values alone and its stable order."""
        results = []
        for size in (64, 4096, 100_000, 1_000_000):
            array = np.random.default_rng(0).random(size, np.float32)
            tensor = Tensor(array, device=self.device)

            def work(tensor: Tensor = tensor) -> None:
                values, places = tensor.sort()
                values.realize(places)
                self.device.synchronize()

            peers: dict[str, Work] = {
                "NumPy sort": partial(np.sort, array),
                "NumPy stable argsort": partial(np.argsort, array, kind="stable"),
            }
            results += _versus(f"sort {size} f32", work, peers, pause_s=0)
        return results

    def attention(self) -> list[Any]:
        """8 heads x 1024 x 64, forward."""
        random = np.random.default_rng(0)
        arrays = [random.random((1, 8, 1024, 64), np.float32) for _ in range(3)]
        query, key, value = (Tensor(array, device=self.device) for array in arrays)
        peers: dict[str, Work] = {}
        if self.torch is not None:
            theirs = [self.torch.from_numpy(array) for array in arrays]
            functional = self.torch.nn.functional
            peers["PyTorch SDPA"] = lambda: functional.scaled_dot_product_attention(*theirs)

        def build() -> Tensor:
            scores = (query @ key.transpose(-1, -2)) * 0.125
            return scores.softmax() @ value

        results = _versus("attention 8 x 1024 x 64 f32", self.ours(build), peers)
        peak = build().memory_plan().peak
        memory: dict[str, object] = {
            "name": "attention 8 x 1024 x 64 f32, peak memory", "value": peak / 1e6, "unit": "MB",
        }  # fmt: skip
        for peer, work in peers.items():
            most = _torch_peak(self.torch, work)
            memory |= {"peer": peer, "peer_value": most / 1e6, "ratio": most / peak}
        return [*results, memory]


def _torch_peak(torch: Any, work: Work) -> int:
    """The most bytes that PyTorch has allocated at any time of a call, the result included."""
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profile:
        kept = work()
    del kept
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def _finished(tensor: Any) -> object:
    """Wait for a tensor of tinygrad's: its CPU device runs behind a queue."""
    done = tensor.realize()
    importlib.import_module("tinygrad").Device["CPU"].synchronize()
    return done


def _matrix_units(size: int) -> list[Any]:
    """A product of float16 on the virtual GPU, with its matrix units and without."""
    array = np.random.default_rng(0).random((size, size)).astype(np.float16)
    with hcq.open("virtual:navi31") as device, hcq.open("virtual:navi31") as plain:
        driver = vars(plain)["_Device__driver"]
        driver.target = dataclasses.replace(plain.target, matrix="")
        works = []
        for each in (device, plain):
            use_cache(each, None)
            works.append(_product(Tensor(array, device=each), each))
        name = f"matmul {size} f16 on virtual:navi31"
        # No thread of either looks for work between the turns: without a pause, host and caches are
        # warm for both.
        peers = {"without matrix units": works[1]}
        return _versus(name, works[0], peers, turns=4 * TURNS, pause_s=0)


def _product(matrix: Tensor, device: Device) -> Work:
    def work() -> None:
        (matrix @ matrix).realize()
        device.synchronize()

    return work


def measure() -> list[dict[str, object]]:
    with hcq.open("cpu") as device:
        use_cache(device, None)
        bench = _Bench(device)
        return [
            *_matrix_units(512),
            *bench.matmul(1024),
            *bench.matmul(2048),
            *(row for size in (256, 512, 1024, 2048) for row in bench.matmul_bfloat16(size)),
            *bench.convolutions(),
            *bench.over_memory(),
            *bench.attention(),
            *bench.orders(),
        ]
