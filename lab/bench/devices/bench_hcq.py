"""The queue runtime: page tables, launches, replay of graphs, copies."""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.devices import DEVICES
from tests.support.kernels import amd_table_object, contract_object
from tests.support.pci.pageformat import PlainMemory, ThreeLevels
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects.code_object import parse_amdhsa
from ugpu.hcq.paging.page_table import PageTable
from ugpu.hcq.work.program import Parameter
from ugpu.virtual.adreno.node import VirtualNode as AdrenoNode

KERNELS = 100
MB = 1 << 20
COUNT = np.uint32(64)


def best_s(
    run: Callable[[], object], times: int = 20, prepare: Callable[[], object] = int
) -> float:
    """Seconds of the quickest run."""
    quickest = float("inf")
    for _ in range(times):
        prepare()
        start = time.perf_counter()
        run()
        quickest = min(quickest, time.perf_counter() - start)
    return quickest


def result(name: str, value: float, unit: str) -> dict[str, object]:
    return {"name": name, "value": value, "unit": unit}


def page_tables() -> list[dict[str, object]]:
    """64 MB as 4 KB pages: one run that is not aligned to larger ones, and pages all over."""
    pages = 64 * MB // 4096
    order = np.random.default_rng(1).permutation(2 * pages)[:pages].astype(np.uint64)
    scattered = np.stack([order * np.uint64(8192), np.full(pages, 4096, np.uint64)], axis=1)
    contiguous = np.array([[4096, 64 * MB]], np.uint64)
    tables: list[PageTable] = []

    def prepare() -> None:
        tables[:] = [PageTable(ThreeLevels(), PlainMemory())]

    return [
        result(
            f"map 64 MB as 4 KB pages, {name}",
            pages / best_s(lambda runs=runs: tables[0].map(2 * MB, runs, 0), 30, prepare) / 1e6,
            "M entries/s",
        )
        for name, runs in (("one run", contiguous), ("scattered", scattered))
    ]


def model_time(device: Any) -> Callable[[], float]:  # Any: looks inside one driver
    """How many seconds doorbells have spent inside the model of a virtual chip, since now; of an
    Adreno, calls of the kernel driver.

    A virtual chip lives in this process and takes its doorbells in Python on the caller's time,
    where a board takes a posted write.
    """
    node = getattr(getattr(device.driver, "interface", None), "node", None)
    if isinstance(node, AdrenoNode):
        return _calls_time(node)
    window = getattr(getattr(device, "chip", None), "doorbells", None)
    if window is None:
        return lambda: 0.0
    write64, spent = window.write64, [0.0]

    class Timed:
        def write64(self, offset: int, value: int) -> None:
            start = time.perf_counter()
            write64(offset, value)
            spent[0] += time.perf_counter() - start

    device.chip.doorbells = Timed()
    return lambda: spent[0]


def _calls_time(node: Any) -> Callable[[], float]:  # Any: a method is replaced
    ioctl, spent = node.ioctl, [0.0]

    def timed(handle: int, request: int, argument: bytearray | memoryview) -> None:
        start = time.perf_counter()
        ioctl(handle, request, argument)
        spent[0] += time.perf_counter() - start

    node.ioctl = timed
    return lambda: spent[0]


def launches(device: Device) -> list[dict[str, object]]:
    """Host time of submitting a kernel at once, and of replaying a hundred of them."""
    kernel = device.load(contract_object(device.target))["scale"]
    buffers = [device.alloc(256) for _ in range(KERNELS + 1)]
    other = device.alloc(256)
    buffers[0].fill(1)
    other.fill(1)

    def submit() -> None:
        args = (buffers[1], buffers[0], COUNT, np.uint32(3))
        with device.queue() as queue:
            queue.launch(kernel, grid=(1,), block=(64,), args=args)

    with device.capture() as graph, device.queue() as queue:
        for source, destination in itertools.pairwise(buffers):
            args = (destination, source, COUNT, Parameter(0, 4))
            queue.launch(kernel, grid=(1,), block=(64,), args=args)
    inside_model = model_time(device)
    turn = iter(range(1 << 30))

    def replay_s() -> tuple[float, float]:
        """Seconds of one replay: the driver's own, and those the chip's model takes in it."""
        graph.wait()
        before, start = inside_model(), time.perf_counter()
        graph.replay(parameters=[3])
        whole = time.perf_counter() - start
        spent = inside_model() - before
        return whole - spent, whole

    own, with_model = (
        min(column) for column in zip(*(replay_s() for _ in range(100)), strict=True)
    )
    changed = best_s(
        lambda: graph.replay(inputs={buffers[0]: other}, parameters=[next(turn)]), 100, graph.wait
    )
    whole = best_s(lambda: (graph.replay(parameters=[3]), graph.wait()), 10)
    name = device.name
    return [
        result(
            f"{name}: submit one launch, host time",
            best_s(submit, 100, device.synchronize) * 1e6,
            "us",
        ),
        result(f"{name}: replay, host time per kernel of 100", own / KERNELS * 1e6, "us"),
        result(
            f"{name}: the same, with the time the model of the chip takes in it",
            with_model / KERNELS * 1e6,
            "us",
        ),
        result(
            f"{name}: replay with a new input and parameter, host time per kernel",
            changed / KERNELS * 1e6,
            "us",
        ),
        result(f"{name}: replay until done, per kernel", whole / KERNELS * 1e6, "us"),
    ]


def copies(device: Device) -> list[dict[str, object]]:
    data = np.random.default_rng(1).integers(0, 256, 64 * MB, np.uint8)
    out = np.empty_like(data)
    with device.alloc(len(data)) as buffer:
        up = best_s(lambda: buffer.copy_from(data), 5)
        down = best_s(lambda: buffer.copy_to(out), 5)
    assert (out == data).all()
    plain = len(data) / best_s(lambda: np.copyto(out, data), 5) / 1e9
    return [
        result(f"{device.name}: upload 64 MB", len(data) / up / 1e9, "GB/s")
        | {"peer": "memcpy", "peer_value": plain, "ratio": len(data) / up / 1e9 / plain},
        result(f"{device.name}: download 64 MB", len(data) / down / 1e9, "GB/s")
        | {"peer": "memcpy", "peer_value": plain, "ratio": len(data) / down / 1e9 / plain},
    ]


def peer_replay_us() -> float | None:
    """tinygrad's time per kernel to replay a captured graph of as many kernels on its CPU
    device."""
    if importlib.util.find_spec("tinygrad") is None:
        return None
    from tinygrad import Tensor, TinyJit

    @TinyJit
    def chain(x: Tensor) -> Tensor:
        for _ in range(KERNELS):
            x = (x + 1).contiguous()
        return x.realize()

    try:
        x = Tensor.zeros(64, device="CPU").contiguous().realize()
    except RuntimeError:  # it found no C compiler (CC names one)
        return None
    for _ in range(3):
        chain(x)
    return best_s(lambda: chain(x), 20) / KERNELS * 1e6


def measure() -> list[dict[str, object]]:
    image = amd_table_object()
    results = page_tables()
    results.append(
        result("parse and link an AMD code object", best_s(lambda: parse_amdhsa(image)) * 1e3, "ms")
    )
    for name in (*DEVICES, "virtual:a630", "virtual:a630+msm"):
        start = time.perf_counter()
        with hcq.open(name) as device:
            results.append(result(f"{name}: open", (time.perf_counter() - start) * 1e3, "ms"))
            results += launches(device)
            results += copies(device)
    peer = peer_replay_us()
    for one in results:
        if peer is not None and str(one["name"]) == "cpu: replay until done, per kernel":
            value = one["value"]
            assert isinstance(value, float)
            one |= {"peer": "tinygrad TinyJit on CPU", "peer_value": peer, "ratio": value / peer}
    return results
