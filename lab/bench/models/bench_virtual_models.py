"""Whole models on a virtual Navi31 as captured graphs: processor time of a call, of `cpu`'s in the
same run, when the second versions of translated kernels are ready, and of the first call with
kernels in the caches (with empty ones: `compiler_first`)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from lab.bench.models import networks
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects import recompile
from ugpu.virtual.shader import versions

DEVICE = "virtual:navi31"
ROUNDS = 5


MODELS: dict[str, tuple[Callable[[networks.Weights, Tensor], Tensor], tuple[int, ...]]] = {
    "MiniLM, 32 tokens": (networks.minilm, networks.MINILM),
    "ResNet-18 at 64^2": (networks.resnet18, (1, 3, 64, 64)),
    "MobileNetV2 at 64^2": (networks.mobilenet, (1, 3, 64, 64)),
}


def run(device: Device, name: str) -> tuple[float, float]:
    """Processor seconds of the first call and of a replayed one, the least of ROUNDS."""
    network, shape = MODELS[name]
    weights = networks.Weights(lambda array: Tensor(array, device=device).realize())
    given = Tensor(np.ones(shape, np.float32), device=device).realize()
    network(weights, given)  # makes the weights

    @jit
    def captured(x: Tensor) -> Tensor:
        weights.restart()
        return network(weights, x).realize()

    start = time.process_time()
    captured(given).numpy()
    first = time.process_time() - start
    for _ in range(versions.OFTEN):
        captured(given).numpy()
    recompile.SHARED.get().wait()
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        captured(given).numpy()
        taken.append(time.process_time() - start)
    return first, min(taken)


def measure() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    with hcq.open(DEVICE) as virtual, hcq.open("cpu") as host:
        for name in MODELS:
            ours, theirs = run(virtual, name), run(host, name)
            rows += [
                {"name": f"{name} on {DEVICE}", "value": ours[1] * 1e3, "unit": "ms"},
                {
                    "name": f"{name} on {DEVICE}, of cpu's",
                    "value": ours[1] / theirs[1],
                    "unit": "x",
                },
                {"name": f"{name} on {DEVICE}, first call", "value": ours[0], "unit": "s"},
                {
                    "name": f"{name}, first call, of cpu's",
                    "value": ours[0] / theirs[0],
                    "unit": "x",
                },
            ]
    return rows
