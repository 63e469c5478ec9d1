"""Buffers on every device: copies in and out, fills, slices, wrong use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ugpu.hcq.copies.bulk_transfer import BulkTransfer
from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed, OutOfMemory
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind

relaxed = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def pattern(size: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("size", [1, 3, 256, 4097, 1_000_003])
def test_what_goes_in_comes_out(device: Device, placement: Placement, size: int) -> None:
    data = pattern(size)
    with device.alloc(size, placement=placement) as buffer:
        assert len(buffer) == size and buffer.address % 256 == 0
        buffer.copy_from(data)
        assert (buffer.numpy() == data).all()


def test_host_memory_is_reached_directly(device: Device) -> None:
    with device.alloc(64, placement=Placement.HOST) as buffer, device.alloc(64) as other:
        assert buffer.access is not None
        buffer.access[:] = bytes(range(64))
        with device.queue(QueueKind.COPY) as queue:
            queue.copy(other, buffer)
        assert other.numpy().tolist() == list(range(64))
        assert other.access is None


@pytest.mark.parametrize("shape", [(4, 5), (0,), (), (3, 0, 2)])
def test_arrays_of_any_shape_and_type(device: Device, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(2).standard_normal(shape), np.float16)
    with device.alloc(64) as buffer:
        buffer.copy_from(array)
        assert np.array_equal(buffer.numpy(np.float16, shape), array)


def test_views_that_are_not_contiguous_are_copied_in_c_order(device: Device) -> None:
    array = np.arange(100, dtype=np.int32).reshape(10, 10)[::2, ::3].T
    with device.alloc(array.nbytes) as buffer:
        buffer.copy_from(array)
        assert np.array_equal(buffer.numpy(np.int32, array.shape), array)
        with pytest.raises(BadArgument):
            buffer.copy_to(np.zeros((10, 10), np.uint8)[:, ::2])


def test_transfers_larger_than_the_staging_buffers(device: Device) -> None:
    """Several rounds through both staging buffers, with a rest."""
    transfer = device.driver.core.copies
    if not isinstance(transfer, BulkTransfer):  # that one has the memory that there is
        transfer = Transfer(device.driver.core, staging_size=4096)
    data = pattern(5 * transfer.staging_size + 77)
    with device.alloc(len(data) + 8) as buffer:
        transfer.send(buffer, data.data)
        out = np.zeros_like(data)
        transfer.receive(buffer, out.data)
        assert (out == data).all()
        short = np.zeros(10, np.uint8)
        transfer.receive(buffer[4090:4100], short.data)
        assert (short == data[4090:4100]).all()
    transfer.close()


@relaxed
@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_slices_are_the_same_memory(device: Device, start: int, stop: int, size: int) -> None:
    data = pattern(256)
    with device.alloc(256) as buffer:
        buffer.copy_from(data)
        part = buffer[start:stop]
        assert (part.numpy() == data[start:stop]).all()
        new = pattern(min(size, part.size), seed=7)
        part.copy_from(new)
        data[start : start + len(new)] = new
        assert (buffer.numpy() == data).all()


def test_slices_of_slices(device: Device) -> None:
    with device.alloc(100) as buffer:
        buffer.copy_from(np.arange(100, dtype=np.uint8))
        assert buffer[10:50][5:20].numpy().tolist() == list(range(15, 30))
        assert buffer[-10:].numpy().tolist() == list(range(90, 100))
        with pytest.raises(BadArgument):
            buffer[::2]


def test_copies_between_buffers(device: Device) -> None:
    data = pattern(10_000)
    with device.alloc(10_000) as one, device.alloc(10_000) as two:
        one.copy_from(data)
        two.fill(0)
        for kind in QueueKind:
            with device.queue(kind) as queue:
                queue.copy(two[1:], one, 4999).copy(two[6001:], one[77:], 3)
            device.synchronize()
            expected = np.zeros(10_000, np.uint8)
            expected[1:5000] = data[:4999]
            expected[6001:6004] = data[77:80]
            assert (two.numpy() == expected).all()
            two.fill(0)


@pytest.mark.parametrize("kind", list(QueueKind))
def test_fills(device: Device, kind: QueueKind) -> None:
    with device.alloc(4096) as buffer:
        buffer.fill(0xDEADBEEF)
        with device.queue(kind) as queue:
            queue.fill(buffer[4:12], 0x01020304)
        values = buffer.numpy(np.uint32)
        assert values[:4].tolist() == [0xDEADBEEF, 0x01020304, 0x01020304, 0xDEADBEEF]
        assert (values[4:] == 0xDEADBEEF).all()
        buffer.fill(-1)
        assert (buffer.numpy() == 255).all()


def test_wrong_sizes_are_refused(device: Device) -> None:
    with device.alloc(64) as buffer, device.alloc(32) as small:
        with pytest.raises(BadArgument):
            buffer.copy_from(bytes(65))
        with pytest.raises(BadArgument):
            buffer.copy_to(np.zeros(65, np.uint8))
        with pytest.raises(BadArgument):
            buffer[:6].fill(1)
        queue = device.queue()
        with pytest.raises(BadArgument):
            queue.copy(small, buffer)
        with pytest.raises(BadArgument):
            queue.copy(buffer, small, 33)
        with pytest.raises(BadArgument, match="overlap"):
            queue.copy(buffer[8:40], buffer[:16])
        with pytest.raises(BadArgument):
            queue.fill(buffer[:7])
        with pytest.raises(BadArgument):
            queue.timestamp(buffer, 60)
        assert not queue.commands
    with pytest.raises(BadArgument):
        device.alloc(-1)


def test_more_than_there_is(device: Device) -> None:
    with pytest.raises(OutOfMemory):
        device.alloc(1 << 50)
    with device.alloc(64) as buffer:
        buffer.copy_from(bytes(64))


def test_empty_buffers(device: Device) -> None:
    with device.alloc(0) as buffer:
        buffer.copy_from(b"")
        assert len(buffer.numpy()) == 0
        with device.queue() as queue:
            queue.fill(buffer).copy(buffer, buffer, 0)


def test_use_after_close(device: Device) -> None:
    buffer = device.alloc(64)
    part = buffer[:8]
    buffer.close()
    buffer.close()
    for use in (
        lambda: buffer.copy_from(b"1"),
        lambda: part.copy_from(b"1"),
        lambda: buffer.numpy(),
        lambda: buffer.fill(0),
        lambda: device.queue().fill(part),
        lambda: device.queue().copy(part, part, 0),
    ):
        with pytest.raises(Closed):
            use()


def test_closing_waits_for_work_in_flight(device: Device) -> None:
    """Memory is released only when nothing in flight uses it any more."""
    data = pattern(1 << 20)
    with device.alloc(1 << 20) as result:
        source = device.alloc(1 << 20)
        source.copy_from(data)
        for _ in range(5):
            with device.queue(QueueKind.COPY) as queue:
                queue.copy(result, source)
        source.close()
        with device.alloc(1 << 20) as other:
            other.fill(0)
            assert (result.numpy() == data).all()


class ByDlpack:
    """Offers an array by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class ByInterface:
    """Offers an array by __array_interface__ alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("wrap", [memoryview, bytes, bytearray, list, ByDlpack, ByInterface])
def test_arrays_go_in_and_out_by_every_protocol(device: Device, wrap: type) -> None:
    array = np.arange(8, dtype=np.int64)
    with device.alloc(64) as buffer:
        buffer.copy_from(wrap(array))
        assert (buffer.numpy(np.int64) == array).all()
        assert (np.asarray(buffer).view(np.int64) == array).all()
        assert (np.from_dlpack(buffer).view(np.int64) == array).all()
        assert np.asarray(buffer, dtype=np.int16).dtype == np.int16


def test_what_is_no_array_is_refused(device: Device) -> None:
    with device.alloc(64) as buffer:
        for wrong in (None, object(), "text", [1, object()], [[1], [2, 3]]):
            with pytest.raises(BadArgument):
                buffer.copy_from(wrong)
        with pytest.raises(BadArgument):
            buffer.numpy("nonsense")
        with pytest.raises(BadArgument):
            buffer[3]


@pytest.mark.parametrize("size", ["4096", 2.5, None, -1])
def test_sizes_are_whole_numbers(device: Device, size: object) -> None:
    with pytest.raises(BadArgument):
        device.alloc(size)


@pytest.mark.parametrize("image", ["text", 5, None])
def test_code_objects_are_bytes(device: Device, image: object) -> None:
    with pytest.raises(BadArgument):
        device.load(image)
