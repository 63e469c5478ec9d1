"""Schedule and code of whole networks, nothing cached and nothing run, beside tinygrad.

Each side has compiled a small kernel before, so that what is loaded once is not counted. One turn
each: the second one would find everything.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.compiler import models
from ugpu import hcq
from ugpu.compiler import Tensor, function
from ugpu.compiler.runtime.runtime import use_cache

Build = Callable[[models.Make], Any]


def _tinygrad() -> Any:  # a module without types, or None
    compilers = ("clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14")
    found = next((name for name in compilers if shutil.which(name)), None)
    if found is None or importlib.util.find_spec("tinygrad") is None:
        return None
    os.environ.setdefault("CC", found)
    os.environ["CACHELEVEL"] = "0"  # or it finds on disk what it compiled last time
    return importlib.import_module("tinygrad")


def _ours(build: Build) -> tuple[float, int]:
    """Seconds, and kernels."""
    with hcq.open("cpu") as device:
        runtime = use_cache(device, None)

        def make(*shape: int) -> Tensor:
            return Tensor(np.zeros(shape, np.float32), device=device)

        (make(4, 4) @ make(4, 4)).realize()
        network = build(make)
        start = time.perf_counter()
        kernels = runtime.prepare([network.node])
        return time.perf_counter() - start, kernels


def _layers(wrap: Callable[..., Any]) -> float:
    """Seconds to plan 12 layers whose kernels are known, and have never run together."""
    with hcq.open("cpu") as device:
        runtime = use_cache(device, None)

        def make(*shape: int) -> Tensor:
            return Tensor(np.zeros(shape, np.float32), device=device)

        layer = wrap(models.decoder_layer)
        runtime.prepare([models.transformer(make, layers=2, layer=layer).node])
        times = []
        for layers in (11, 12, 13):  # each a graph of its own
            network = models.transformer(make, layers=layers, layer=layer)
            start = time.perf_counter()
            runtime.prepare([network.node])
            times.append(time.perf_counter() - start)
        return min(times)


def _theirs(peer: Any, build: Build) -> float:
    def make(*shape: int) -> Any:
        return peer.Tensor(np.zeros(shape, np.float32), device="CPU").realize()

    (make(4, 4) @ make(4, 4)).realize()
    network = build(make)
    compile_linear = importlib.import_module("tinygrad.engine.realize").compile_linear
    start = time.perf_counter()
    compile_linear(network.schedule_linear())
    return time.perf_counter() - start


def measure() -> list[dict[str, object]]:
    peer = _tinygrad()
    networks: dict[str, Build] = {
        "ResNet-50": models.resnet50,
        "12-layer transformer": models.transformer,
    }
    results = []
    for name, build in networks.items():
        seconds, kernels = _ours(build)
        title = f"schedule and code of a {name}, {kernels} kernels"
        result: dict[str, object] = {"name": title, "value": seconds, "unit": "s"}
        if peer is not None:
            theirs = _theirs(peer, build)
            result |= {"peer": "tinygrad", "peer_value": theirs, "ratio": theirs / seconds}
        results.append(result)
    plain, nested = _layers(lambda layer: layer), _layers(function)
    results.append(
        {
            "name": "plan of a 12-layer transformer, kernels known, layers as functions",
            "value": nested,
            "unit": "s",
            "peer": "without compiler.function",
            "peer_value": plain,
            "ratio": plain / nested,
        }
    )
    return results
