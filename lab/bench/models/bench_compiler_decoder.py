"""A decoder that makes a token at a time, its caches written in place: Python's share of a step."""

from __future__ import annotations

import time

import numpy as np

from tests.support.compiler.decoder import Decoder
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.hcq.device.device import Device

LAYERS = 32
TOKENS = 20
TURNS = 5


def _plan(device: Device, layers: int) -> tuple[float, float]:
    """Processor time of planning a step whose kernels are known, in seconds: for the first time,
    and again."""
    first = again = float("inf")
    for _ in range(TURNS):
        runtime = use_cache(device, None)
        decoder = Decoder(device, layers)
        start = Tensor(np.zeros((1, 16), np.float32), device=device)
        runtime.prepare([Decoder(device, 2).step(start, decoder.position(3)).node])
        x = decoder.step(start, decoder.position(3))
        times = [time.process_time()]
        for _ in range(2):
            runtime.prepare([x.node])
            times.append(time.process_time())
        first, again = min(first, times[1] - times[0]), min(again, times[2] - times[1])
    return first, again


def _token(device: Device, way: str) -> tuple[float, float]:
    """Processor time of a token in seconds, the best; and kernels compiled for each after the
    first two."""
    use_cache(device, None)
    decoder = Decoder(device, LAYERS)
    step = jit(decoder.step) if way == "jit" else decoder.step
    x = Tensor(np.ones((1, 16), np.float32), device=device)
    times, compiled = [], 0
    for place in range(TOKENS):
        start = time.process_time()
        with kernel_log() as log:
            x = step(x, place if way == "number" else decoder.position(place)).realize()
        device.synchronize()
        times.append(time.process_time() - start)
        compiled += len(log) if place > 1 else 0
    return min(times), compiled / (TOKENS - 2)


def measure() -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    with hcq.open("cpu") as device:
        few, many = _plan(device, 6), _plan(device, LAYERS)
        names = ("first plan of a decoder's step with caches", "the same again")
        for name, one, other in zip(names, few, many, strict=True):
            results.append(
                {
                    "name": f"{name}, {LAYERS} layers",
                    "value": other * 1e3,
                    "unit": "ms",
                    "peer": "6 layers",
                    "peer_value": one * 1e3,
                    "ratio": one / other,
                }
            )
        for way in ("number", "tensor", "jit"):
            seconds, compiled = _token(device, way)
            title = f"a token of {LAYERS} layers, by {way}, {compiled:g} kernels compiled"
            results.append({"name": title, "value": seconds * 1e3, "unit": "ms"})
    return results
