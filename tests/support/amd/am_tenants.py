"""AMD cards with several holders in one process: opened, shared, and put to work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from tests.support.amd.am_faulty import faulty_object
from tests.support.kernels import contract_object
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.device.driver import AmDriver
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions

SECRET = 0x5EC2E75
FAR = 64 << 20
VRAM = 512 << 20


def tenant(device: AmDevice, name: str) -> Device:
    return Device(device.driver.open_tenant(name))


@contextmanager
def card(name: str, **options: Any) -> Iterator[Any]:
    """A virtual card that is not powered yet."""
    made = build_chip(facts_of(name), ChipOptions(vram=VRAM, noise=0, **options))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def opened(chip: Any, **options: Any) -> Iterator[AmDevice]:
    name = chip.facts.name
    with open_device(f"virtual:{name}", attach(name, chip), **options) as device:
        yield device


@contextmanager
def shared(chip: Any, count: int = 2) -> Iterator[tuple[AmDevice, list[Device]]]:
    """A card with tenants."""
    with ExitStack() as stack:
        device = stack.enter_context(opened(chip))
        made = [stack.enter_context(tenant(device, f"tenant {n}")) for n in range(count)]
        yield device, made


def driver_of(device: Device) -> AmDriver:
    driver = device.driver
    assert isinstance(driver, AmDriver)
    return driver


def work(device: Device, factor: int = 7) -> None:
    """A kernel gives the right answer, and so does each copy queue."""
    values = np.arange(128, dtype=np.uint32)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(values.nbytes) as source,
        device.alloc(values.nbytes) as out,
    ):
        source.copy_from(values)
        arguments = (out, source, np.uint32(128), np.uint32(factor))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(2,), block=(64,), args=arguments)
        device.synchronize()
        assert np.array_equal(out.numpy(np.uint32), values * np.uint32(factor))
        for number in range(2):
            with device.queue(QueueKind.COPY, number) as copies:
                copies.fill(out, number + 1).copy(source, out)
            device.synchronize()
            assert (source.numpy(np.uint32) == number + 1).all()


def run(device: Device, kernel: str, *args: object) -> int:
    """Run a kernel of `faulty_object`; what it stored."""
    with device.load(faulty_object(device.target.cpu)) as program, device.alloc(64) as out:
        out.fill(0)
        with device.queue() as queue:
            queue.launch(program[kernel], grid=(1,), block=(32,), args=(out, *args))
        device.synchronize()
        return int(out.numpy(np.uint32)[0])


def computes(device: Device, program: Program, out: Buffer, value: int) -> None:
    """A kernel gives the right answer while other queues of the device are at work."""
    with device.queue() as queue:
        queue.launch(program["good"], grid=(1,), block=(32,), args=(out, np.uint32(value)))
        queue.timeline.wait(queue.submit())
    assert out.view is not None and bytes(out.view[:4]) == value.to_bytes(4, "little")


def peek(device: Device, address: int) -> int:
    return run(device, "read_at", np.uint64(address))
