"""Memory of the program and dma-bufs, imported without a copy, on the model of KGSL."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.mesa import needs_mesa
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.hcq.errors import BadArgument, Closed, DriverRefused, NotSupported, OutOfMemory
from ugpu.hcq.state.memory import Placement
from ugpu.qcom.device.device import AdrenoDevice
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.qcom.kernel_driver.kgsl import Kgsl
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.node import VirtualNode

PAGES = 3 * mmap.PAGESIZE


@pytest.fixture(params=["a630", "a740"])
def device(request: pytest.FixtureRequest) -> Iterator[AdrenoDevice]:
    with hcq.open(f"virtual:{request.param}") as opened:
        assert isinstance(opened, AdrenoDevice)
        before = held(opened)
        yield opened
        if not opened.closed:
            opened.driver.core.copies.close()  # staging memory, which is kept
            assert held(opened) == before, "an import leaks"


@pytest.fixture(params=["a630", "a740+msm"])
def either(request: pytest.FixtureRequest) -> Iterator[AdrenoDevice]:
    """A device above each kernel driver."""
    with hcq.open(f"virtual:{request.param}") as opened:
        assert isinstance(opened, AdrenoDevice)
        yield opened
        assert not machine_of(opened).violations


@pytest.fixture
def camera() -> Iterator[int]:
    """A descriptor of a buffer that another driver made."""
    file = os.memfd_create("camera", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, PAGES)
    yield file
    os.close(file)


def kgsl_of(device: AdrenoDevice) -> Kgsl:
    assert isinstance(device.driver, AdrenoDriver) and isinstance(device.driver.interface, Kgsl)
    return device.driver.interface


def node_of(device: AdrenoDevice) -> VirtualNode:
    assert isinstance(device.driver, AdrenoDriver)
    node = device.driver.interface.node
    assert isinstance(node, VirtualNode)
    return node


def machine_of(device: AdrenoDevice) -> VirtualMachine:
    return node_of(device).machine


def held(device: AdrenoDevice) -> tuple[int, int]:
    assert isinstance(device.driver, AdrenoDriver)
    return len(device.driver.interface.memories), len(node_of(device).objects)


def pages(value: int, size: int = PAGES) -> NDArray[np.uint8]:
    array = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    array[:] = value
    return array


def test_arrays_are_read_and_written_in_place(device: AdrenoDevice) -> None:
    source, target = pages(7), pages(0)
    with device.import_memory(source) as one, device.import_memory(target) as two:
        assert one.placement is Placement.HOST and one.size == PAGES
        device.queue().copy(two[100:5000], one[:4900]).submit()
        device.synchronize()
        assert (target[100:5000] == 7).all() and not target[:100].any()
        two.copy_from(np.full(4, 9, np.uint8))
        assert (target[:4] == 9).all() and (two.numpy()[100:5000] == 7).all()
    source[:] = 1  # it is ours as before


def test_without_coherent_caches_sync_is_needed(device: AdrenoDevice) -> None:
    kgsl_of(device)._coherent = False
    source, target = pages(7), pages(0)
    with device.import_memory(source) as one, device.import_memory(target) as two:
        assert two.placement is Placement.DEVICE
        source[:] = 8
        device.queue().copy(two, one).submit()
        device.synchronize()
        device.sync(two, to_gpu=False)
        assert (target == 7).all(), "the model keeps what the host stored in its caches"
        device.sync(one[:4096], to_gpu=True)
        device.queue().copy(two, one).submit()
        device.synchronize()
        device.sync(two, to_gpu=False)
        assert (target[:4096] == 8).all() and (target[4096:] == 7).all()
        two.copy_from(np.full(PAGES, 3, np.uint8))  # copies take care of it themselves
        assert (two.numpy() == 3).all()


def test_a_dma_buf_outlives_its_descriptor(either: AdrenoDevice, camera: int) -> None:
    before = held(either)
    descriptor = os.dup(camera)
    with mmap.mmap(camera, PAGES) as seen, either.import_dma_buf(descriptor) as buffer:
        os.close(descriptor)
        seen[:4] = b"abcd"
        assert buffer.size == PAGES and bytes(buffer.numpy()[:4]) == b"abcd"
        buffer.fill(0x01010101)
        buffer[4096:4098].copy_from(np.array([5, 6], np.uint8))
        assert seen[4095:4099] == b"\1\5\6\1"
    either.driver.core.copies.close()  # staging memory, which is kept
    assert held(either) == before, "an import leaks"


def test_a_dma_buf_may_be_imported_twice(either: AdrenoDevice, camera: int) -> None:
    """msm gives both the same handle, which counts no references."""
    before = held(either)
    with mmap.mmap(camera, PAGES) as seen:
        first = either.import_dma_buf(camera, read_only=True)
        second = either.import_dma_buf(camera)
        second.fill(0x03030303)
        either.synchronize()
        second.close()
        seen[:4] = b"once"
        assert bytes(first.numpy()[:8]) == b"once\3\3\3\3"
        first.close()
        with either.import_dma_buf(camera) as again:
            assert bytes(again.numpy()[:4]) == b"once"
    either.driver.core.copies.close()
    assert held(either) == before, "an import leaks"


def test_an_imported_buffer_cannot_vanish_under_the_gpu(either: AdrenoDevice, camera: int) -> None:
    """Its exporter may close it, but neither shrink it nor take its pages back."""
    descriptor = os.dup(camera)
    os.pwrite(camera, b"\7" * PAGES, 0)
    with either.import_dma_buf(descriptor) as buffer, either.alloc(PAGES) as target:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
        either.queue().copy(target, buffer).submit()
        assert (target.numpy() == 7).all()


def test_a_file_that_can_shrink_is_not_a_dma_buf(either: AdrenoDevice, tmp_path: Path) -> None:
    """The GPU would meet pages that are no longer there."""
    before = held(either)
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(PAGES))
    unsealed = os.memfd_create("camera")
    os.ftruncate(unsealed, PAGES)
    with plain.open("r+b") as file:
        for descriptor in (file.fileno(), unsealed):
            with pytest.raises(DriverRefused):
                either.import_dma_buf(descriptor)
    os.close(unsealed)
    assert held(either) == before


def test_an_imported_buffer_that_was_closed(either: AdrenoDevice, camera: int) -> None:
    """While work that uses it runs it stays; what comes later is refused, a graph too."""
    os.pwrite(camera, b"\5" * PAGES, 0)
    with either.alloc(PAGES) as target:
        buffer = either.import_dma_buf(camera)
        with either.capture() as graph, either.queue() as queue:
            queue.copy(target, buffer)
        recorded = either.queue().copy(target, buffer)
        graph.replay()
        buffer.close()
        assert (target.numpy() == 5).all(), "the replay was under way"
        with pytest.raises(Closed):
            graph.replay()
        with pytest.raises(Closed):
            recorded.submit()
        with pytest.raises(Closed):
            buffer.copy_to(np.empty(4, np.uint8))
        graph.close()


@pytest.mark.parametrize("call", ["PRIME_FD_TO_HANDLE", "MSM_INFO_GET_IOVA"])
def test_a_refused_dma_buf_leaves_nothing_on_msm(camera: int, call: str) -> None:
    with hcq.open("virtual:a630+msm") as opened:
        assert isinstance(opened, AdrenoDevice)
        before = held(opened)
        machine_of(opened).refuse(call, errno.EINVAL)
        with pytest.raises(DriverRefused):
            opened.import_dma_buf(camera)
        assert held(opened) == before


def test_read_only_memory(device: AdrenoDevice) -> None:
    array = np.frombuffer(mmap.mmap(-1, PAGES, prot=mmap.PROT_READ), np.uint8)
    with pytest.raises(BadArgument, match="read-only"):
        device.import_memory(array)
    with device.import_memory(array, read_only=True) as buffer, device.alloc(PAGES) as target:
        device.queue().copy(target, buffer).submit()
        assert not target.numpy().any()


def test_what_is_no_memory_is_refused_before_the_kernel_is_asked(device: AdrenoDevice) -> None:
    array = pages(0)
    before = list(machine_of(device).refused)
    for wrong in (array[1:], array[:100], array[: 4096 + 8], array[64 : 64 + 4096], array[:0]):
        with pytest.raises(BadArgument, match="whole pages"):
            device.import_memory(wrong)
    for odd in (array[::2], np.array([device])):
        with pytest.raises(BadArgument, match="array"):
            device.import_memory(odd)
    reading, writing = os.pipe()
    os.close(writing)
    try:
        for descriptor in (-1, 1 << 20, 1 << 40, reading, "3", True):
            with pytest.raises(BadArgument, match="descriptor"):
                device.import_dma_buf(descriptor)  # type: ignore[arg-type]
    finally:
        os.close(reading)
    assert machine_of(device).refused == before


def test_refused_imports_leave_nothing(device: AdrenoDevice) -> None:
    machine, array = machine_of(device), pages(0)
    machine.refuse("GPUOBJ_IMPORT", errno.ENOMEM)
    with pytest.raises(OutOfMemory):
        device.import_memory(array)
    machine.refuse("GPUOBJ_INFO", errno.EINVAL)
    with pytest.raises(DriverRefused):
        device.import_memory(array)


def test_imports_and_the_end_of_a_device(device: AdrenoDevice) -> None:
    memory = mmap.mmap(-1, PAGES)
    buffer = device.import_memory(memory)
    with pytest.raises(BufferError):
        memory.close()  # it cannot vanish under the GPU
    device.close()
    with pytest.raises(Closed):
        device.sync(buffer, to_gpu=True)
    with pytest.raises(Closed):
        device.import_memory(memory)


def test_msm_says_that_it_has_none() -> None:
    with hcq.open("virtual:a630+msm") as opened:
        assert isinstance(opened, AdrenoDevice)
        with pytest.raises(NotSupported):
            opened.import_memory(pages(0))


# ---- tensors in imported memory ------------------------------------------------------------------


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_a_tensor_in_memory_of_the_program(chip: str) -> None:
    """A frame that the GPU may only read, computed on where it is."""
    frame = pages(0)
    with hcq.open(f"virtual:{chip}") as device:
        assert isinstance(device, AdrenoDevice)
        buffer = device.import_memory(frame, read_only=True)
        picture = Tensor.from_buffer(buffer, (3, 4096), "uint8")
        for value in (3, 200):
            frame[:] = value
            device.sync(buffer, to_gpu=True)
            assert (picture.cast("float32").sum(axis=1) / 4096).tolist() == [value] * 3
        picture[0, :] = 1  # into memory of its own: the import is read-only
        total = picture.cast("int64").sum().item()
        assert (total, int(frame[0])) == (4096 + 2 * 4096 * 200, 200)
        assert not machine_of(device).violations


@needs_mesa
def test_a_tensor_in_a_cameras_buffer(either: AdrenoDevice, camera: int) -> None:
    os.pwrite(camera, bytes(range(256)) * 16, 0)
    with either.import_dma_buf(camera, read_only=True) as buffer:
        picture = Tensor.from_buffer(buffer, 4096, "uint8")
        assert (picture.cast("int32") + 1).sum().item() == 16 * sum(range(1, 257))
        del picture
