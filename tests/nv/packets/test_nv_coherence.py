"""Barriers and invalidations of global data: the driver has them all, and each that is taken away
shows on a machine that watches for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened, powered, work
from ugpu import hcq
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Kernel
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.launch import LaunchDetails
from ugpu.nv.packets.pushbuffer import word
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.options import MachineOptions

COUNT = 2048
BYTES = 4 * COUNT
ramp = np.arange(COUNT, dtype=np.uint32)
WATCHED = MachineOptions(coherence=True)


@pytest.fixture(params=["tu102", "ga102", "gh100", "gb202"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[VirtualMachine, NvDevice]]:
    with powered(request.param, WATCHED) as machine, opened(machine) as device:
        yield machine, device


def without(kernel: Kernel, version: str, field: str) -> None:
    """Take a field out of a kernel's launch descriptor."""
    details = kernel.details
    assert isinstance(details, LaunchDetails)
    qmd = bytearray(details.qmd)
    abi.qmd(version).set(qmd, field, 0)
    details.qmd = bytes(qmd)
    kernel.templates.clear()  # images that have the field


def scale(device: NvDevice, kernel: Kernel, result: hcq.Buffer, source: hcq.Buffer) -> None:
    arguments = (result, source, np.uint32(COUNT), np.uint32(3))
    with device.queue() as queue:
        queue.launch(kernel, grid=(COUNT // 64,), block=(64,), args=arguments)
    device.synchronize()


def test_the_driver_has_them_all(pair: tuple[VirtualMachine, NvDevice]) -> None:
    machine, device = pair
    for _ in range(2):
        work(device)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(BYTES) as first,
        device.alloc(BYTES) as second,
        device.alloc(BYTES, placement=Placement.HOST) as seen,
    ):
        arguments = (second, first, np.uint32(COUNT), np.uint32(3))
        for number in range(1, 4):
            first.copy_from(number * ramp)
            with device.queue() as queue:
                queue.launch(program["scale"], grid=(COUNT // 64,), block=(64,), args=arguments)
                queue.copy(seen, second)
                queue.fill(second, 5)
                queue.barrier()
                queue.copy(second, seen)
            device.synchronize()
            assert (seen.numpy(np.uint32) == 3 * number * ramp).all()
            assert (second.numpy(np.uint32) == 3 * number * ramp).all()
    assert machine.violations == []


def test_a_launch_that_does_not_invalidate_data(pair: tuple[VirtualMachine, NvDevice]) -> None:
    machine, device = pair
    version = device.driver.family.qmd
    device.driver.compute_queue.encoder._invalidate = ()
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(BYTES) as source,
        device.alloc(BYTES) as result,
    ):
        kernel = program["scale"]
        for number in (1, 1, 2):
            source.copy_from(number * ramp)
            scale(device, kernel, result, source)
        assert machine.violations == [], "each launch invalidates"
        without(kernel, version, "INVALIDATE_SHADER_DATA_CACHE")
        scale(device, kernel, result, source)
        assert machine.violations == [], "nothing has changed"
        source.copy_from(5 * ramp)
        scale(device, kernel, result, source)
        pages = [text for text in machine.violations if "global data at" in text]
        assert len(pages) == len(machine.violations) == BYTES // 4096, machine.violations
        assert f"{int(source.address):#x} changed since a launch fetched it" in pages[0]


def test_a_grid_that_ends_without_a_barrier(pair: tuple[VirtualMachine, NvDevice]) -> None:
    machine, device = pair
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(BYTES) as source,
        device.alloc(BYTES) as result,
        device.alloc(BYTES) as seen,
    ):
        kernel = program["scale"]
        source.copy_from(ramp)
        without(kernel, device.driver.family.qmd, "CWD_MEMBAR_TYPE")
        scale(device, kernel, result, source)
        assert (result.numpy(np.uint32) == 3 * ramp).all()
        assert machine.violations == [], "the release that waits for idle has a barrier"
        arguments = (result, source, np.uint32(COUNT), np.uint32(3))
        with device.queue() as queue:
            queue.launch(kernel, grid=(COUNT // 64,), block=(64,), args=arguments)
            queue.copy(seen, result)
        device.synchronize()
        text = "a copy reads 2 pages that scale wrote, and no barrier has made that visible"
        assert machine.violations == [text]


def test_a_copy_without_a_flush(pair: tuple[VirtualMachine, NvDevice]) -> None:
    machine, device = pair
    encoder = device.driver.compute_queue.encoder
    encoder._copy_line = word(
        encoder.classes.copy, "LAUNCH_DMA", DATA_TRANSFER_TYPE="NON_PIPELINED",
        SRC_MEMORY_LAYOUT="PITCH", DST_MEMORY_LAYOUT="PITCH",
    )  # fmt: skip
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(BYTES) as source,
        device.alloc(BYTES) as middle,
        device.alloc(BYTES) as result,
    ):
        source.copy_from(ramp)
        arguments = (result, middle, np.uint32(COUNT), np.uint32(3))
        with device.queue() as queue:
            queue.copy(middle, source)
            queue.launch(program["scale"], grid=(COUNT // 64,), block=(64,), args=arguments)
        device.synchronize()
        assert (result.numpy(np.uint32) == 3 * ramp).all()
        text = "scale reads 1 pages that a copy wrote, and no barrier has made that visible"
        assert machine.violations == [text] * 2, "one for each page"


def test_nothing_is_watched_unless_it_is_asked_for() -> None:
    with hcq.open("virtual:gh100") as device, powered() as machine:
        assert machine.coherence is None
        assert isinstance(device, NvDevice)
        work(device)
    with hcq.open("virtual:gh100", coherence=True) as device:
        assert isinstance(device, NvDevice)
        work(device)
