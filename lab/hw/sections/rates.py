"""Launch latency, replay of a graph, copy rates, elementwise rates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from lab.hw.budget import Budget, median_s
from lab.hw.report import Result
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind

TITLE = "Rates"
KERNELS = 100
MB = 1 << 20
COPY, SMALL_COPY = 256 * MB, 4 * MB
COUNT = np.uint32(64)


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Measure; names and units are those of lab/hw/peer_torch.py."""
    with hcq.open(device) as opened:
        yield from launches(opened, budget.part(0.3))
        yield from copies(opened, budget.part(0.6))
        yield from elementwise(opened, budget)


def launches(device: Device, budget: Budget) -> Iterator[Result]:
    """One small kernel at a time, and a hundred of them as a graph, each on what the last wrote."""
    program = device.load(contract_object(device.target))
    kernel = program["scale"]
    buffers = [device.alloc(256) for _ in range(KERNELS + 1)]
    numbers = np.arange(64, dtype=np.uint32)
    buffers[0].copy_from(numbers)

    def launch() -> None:
        with device.queue() as queue:
            args = (buffers[1], buffers[0], COUNT, np.uint32(3))
            queue.launch(kernel, grid=(1,), block=(64,), args=args)

    def launch_and_wait() -> None:
        launch()
        device.synchronize()

    seconds, times = median_s(launch_and_wait, budget.part(0.4))
    yield _time("launch and wait", seconds, times)
    with device.capture() as graph, device.queue() as queue:
        for source, destination in itertools.pairwise(buffers):
            args = (destination, source, COUNT, np.uint32(3 if source is buffers[0] else 1))
            queue.launch(kernel, grid=(1,), block=(64,), args=args)
            queue.barrier()  # as in a stream of CUDA's: the next one waits for this one

    def replay() -> None:
        graph.replay()
        graph.wait()

    numbers += np.uint32(1)
    buffers[0].copy_from(numbers)
    replay()  # once: many replays would hide a missing order
    right = np.array_equal(buffers[-1].numpy(dtype=np.uint32), numbers * np.uint32(3))
    seconds, times = median_s(replay, budget)
    yield _time("replay of 100 kernels and wait", seconds, times)
    right &= np.array_equal(buffers[-1].numpy(dtype=np.uint32), numbers * np.uint32(3))
    yield Result(TITLE, "the graph computed right", "passed" if right else "failed")
    graph.close()
    for buffer in buffers:
        buffer.close()
    program.close()


def copies(device: Device, budget: Budget) -> Iterator[Result]:
    """Between memory of the host that the device reaches and the device's own; within the device
    by a copy engine and by a kernel."""
    size = SMALL_COPY if budget.small else COPY
    with (
        device.alloc(size, placement=Placement.HOST) as host,
        device.alloc(size) as near,
        device.alloc(size) as other,
    ):
        pattern = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        assert host.view is not None
        host.view[:] = pattern.data
        for name, destination, source in (
            ("copy to the device", near, host),
            ("copy within the device", other, near),
            ("copy from the device", host, near),
        ):
            copy = partial(_copy, device, destination, source)
            seconds, times = median_s(copy, budget.part(0.3), 50)
            yield _rate(name, size, seconds, times, ">= 0.95" if "within" not in name else "")
        right = np.array_equal(other.numpy(dtype=np.uint8), pattern)
        source = Tensor.from_buffer(near, (size // 4,), np.uint32)
        work = jit(_plus_nothing)
        for _ in range(3):
            made = work(source)
        device.synchronize()
        seconds, times = median_s(partial(_run, device, work, source), budget.part(0.5), 50)
        yield _rate("copy within the device, by a kernel", size, seconds, times)
        right &= np.array_equal(made.numpy(), pattern.view(np.uint32))
        yield Result(TITLE, "what was copied is right", "passed" if right else "failed")


def _copy(device: Device, destination: Buffer, source: Buffer) -> None:
    device.queue(QueueKind.COPY).copy(destination, source).submit()
    device.synchronize()


def _plus_nothing(given: Tensor) -> Tensor:
    """A copy: of whole numbers, so that no bits change."""
    return (given + 0).realize()


def _run(device: Device, work: Callable[[Tensor], Tensor], given: Tensor) -> None:
    work(given)
    device.synchronize()


def elementwise(device: Device, budget: Budget) -> Iterator[Result]:
    """x + 1 of float32: bytes read and written in a second."""
    count = (SMALL_COPY if budget.small else COPY) // 4
    x = Tensor(np.ones(count, np.float32), device=device)

    @jit
    def work(given: Tensor) -> Tensor:
        return (given + 1).realize()

    for _ in range(3):
        _run(device, work, x)
    seconds, times = median_s(partial(_run, device, work, x), budget, 50)
    yield _rate("elementwise float32", count * 8, seconds, times, ">= 0.9")


def _time(name: str, seconds: float, times: int) -> Result:
    remark = f"median of {times}"
    return Result(TITLE, name, "measured", seconds * 1e6, "us", remark, "<= 1.0")


def _rate(name: str, size: int, seconds: float, times: int, goal: str = "") -> Result:
    remark = f"{size // MB} MB, median of {times}"
    return Result(TITLE, name, "measured", size / seconds / 1e9, "GB/s", remark, goal)
