"""No operation leaves anything behind: descriptors, mappings, threads, Python objects, memory."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from tests.support import holdings
from tests.support.collector import apart
from tests.support.devices import DEVICES
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

pytestmark = pytest.mark.each_driver

CYCLES, MANY = 8, 100
RUNS = 3
# Caches with a bound of their own: of the virtual NVIDIA chips' launches, 256. pytest's records of
# what was logged.
BOUNDED = ("LaunchDescriptor", "LogRecord")


def _launch(device: Device, program: Program) -> None:
    with device.alloc(64) as out:
        with device.queue() as queue:
            args = (out, np.uint64(3), np.uint8(2))
            queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
        device.synchronize()


def alloc(device: Device, _: Program) -> None:
    device.alloc(5 << 20).close()
    device.alloc(64, placement=Placement.HOST).close()


def copies(device: Device, _: Program) -> None:
    with device.alloc(100) as buffer:
        buffer.copy_from(bytes(100))
        buffer.numpy()
        buffer.fill(1)


def load(device: Device, _: Program) -> None:
    with device.load(contract_object(device.target)) as program:
        _launch(device, program)


def submissions(device: Device, program: Program) -> None:
    for _ in range(3):
        _launch(device, program)


def large_image(device: Device, _: Program) -> None:
    """A submission that does not fit the transient memory of a queue."""
    with device.alloc(64) as buffer:
        queue = device.queue(QueueKind.COPY)
        for turn in range(1200 if device.target.abi == "ir3" else 3000):
            queue.fill(buffer, turn)
        queue.submit()
        device.synchronize()


def graph(device: Device, program: Program) -> None:
    with device.alloc(64) as buffer, device.alloc(64) as other:
        with device.capture() as captured, device.queue() as queue:
            queue.fill(buffer, 3)
        captured.replay(inputs={buffer: other})
        captured.wait()
        captured.close()


def dropped(device: Device, _: Program) -> None:
    """Everything is dropped while work is under way, and closed by nobody."""
    program, buffer = device.load(contract_object(device.target)), device.alloc(1 << 16)
    with device.capture() as captured, device.queue() as queue:
        args = (buffer, np.uint64(3), np.uint8(2))
        queue.launch(program["wide"], grid=(1,), block=(1,), args=args)
    captured.replay()
    del program, buffer, captured, queue
    gc.collect()
    device.synchronize()


def reset(device: Device, program: Program) -> None:
    device.reset()
    _launch(device, program)


OPERATIONS = (alloc, copies, load, submissions, large_image, graph, dropped, reset)


def check(
    once: Callable[[], object], cycles: int, device: Device | None = None, slack: int = 1
) -> None:
    """Fail where each of some runs of `cycles` leaves more than there was: what other tests and
    caches add, they add once. slack: of Python objects of a type for each cycle."""
    once()
    with apart():
        for _ in range(RUNS):
            once()
            before = holdings.settled(device)
            for _ in range(cycles):
                once()
            grown = _grown(holdings.settled(device).beyond(before), slack * cycles)
            if not grown:
                return
    raise AssertionError(f"more after {cycles} cycles: {grown}")


def _grown(more: dict[str, int], least: int) -> dict[str, int]:
    strict = ("descriptors", "mappings", "threads", "device_bytes")
    return {
        name: count
        for name, count in more.items()
        if name in strict or name.startswith("kernel: ") or (count >= least and name not in BOUNDED)
    }


def _operation(device: Device, program: Program, operation: Callable[..., None]) -> None:
    operation(device, program)
    device.alloc(64).close()  # collects what was dropped


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_operations(device: Device, program: Program, operation: Callable[..., None]) -> None:
    check(lambda: _operation(device, program, operation), CYCLES, device)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_many_operations(device: Device, program: Program, operation: Callable[..., None]) -> None:
    # Where fills are kernels, those of the large images alone would take a quarter of an hour.
    long = operation is large_image and device.target.abi == "ir3"
    check(lambda: _operation(device, program, operation), 3 if long else MANY, device)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("cycles", [3, pytest.param(MANY, marks=pytest.mark.slow)])
def test_opening_and_closing(name: str, cycles: int) -> None:
    def once() -> None:
        with hcq.open(name) as device, device.load(contract_object(device.target)) as program:
            _launch(device, program)
            copies(device, program)

    check(once, cycles, slack=10)
