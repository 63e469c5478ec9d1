"""Tensors that lie in a buffer of the program's own: no copy, the right life, nothing written."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.adreno.mesa import MESA
from tests.support.compiler.compiler_devices import device_fixture
from ugpu import hcq
from ugpu.compiler import Tensor, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer

DEVICES = ("cpu", "virtual:navi31", *(("virtual:a630", "virtual:a740") if MESA else ()))
device = device_fixture(*DEVICES)
VALUES = np.arange(1000, dtype=np.float32)


def filled(device: Device, data: np.ndarray[Any, Any], more: int = 0) -> Buffer:
    """A buffer of the program's; `more` bytes longer than the data."""
    buffer = device.alloc(data.nbytes + more)
    buffer.copy_from(data)
    return buffer


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch, device: Device) -> Iterator[list[int]]:
    """Sizes of what is copied to the device."""
    copies, found = device.driver.core.copies, list[int]()
    upload: Callable[..., None] = copies.upload

    def counted(buffer: Buffer, data: memoryview) -> None:
        found.append(len(data))
        upload(buffer, data)

    monkeypatch.setattr(copies, "upload", counted)
    yield found


def test_its_elements_are_the_buffers(device: Device, uploads: list[int]) -> None:
    with filled(device, VALUES, more=24) as buffer:
        uploads.clear()
        x = Tensor.from_buffer(buffer, (10, 100))
        assert (x.shape, x.dtype.name, x.device) == ((10, 100), "float32", device)
        np.testing.assert_array_equal(x.numpy(), VALUES.reshape(10, 100))
        np.testing.assert_array_equal((x * 2).numpy(), VALUES.reshape(10, 100) * 2)
        np.testing.assert_array_equal(x[3, 5:9].numpy(), VALUES[305:309])
        np.testing.assert_array_equal((x.T @ x).numpy().shape, (100, 100))
        assert not uploads


def test_new_contents_are_seen_by_what_is_computed_then(device: Device) -> None:
    with filled(device, VALUES) as buffer:
        x = Tensor.from_buffer(buffer, (1000,))
        first, second = x + 1, x + 1
        first.realize()
        device.synchronize()
        buffer.copy_from(VALUES[::-1].copy())
        np.testing.assert_array_equal(first.numpy(), VALUES + 1)
        np.testing.assert_array_equal(second.numpy(), VALUES[::-1] + 1)


def test_a_host_buffer_is_written_by_the_program(device: Device) -> None:
    with device.alloc(4000, placement=Placement.HOST) as buffer:
        assert buffer.view is not None
        seen = np.frombuffer(buffer.view, np.float32, 1000)
        x = Tensor.from_buffer(buffer, 1000)
        for factor in (1, 2, 3):
            seen[:] = VALUES * factor
            np.testing.assert_array_equal((x + 1).numpy(), VALUES * factor + 1)
        del seen


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bool"])
def test_types(device: Device, dtype: str) -> None:
    data = np.arange(96).reshape(4, 24).astype(dtype)
    with filled(device, data) as buffer:
        x = Tensor.from_buffer(buffer, data.shape, dtype)
        np.testing.assert_array_equal(x.numpy(), data)
        np.testing.assert_array_equal(x.sum(axis=1).numpy(), Tensor(data, device=device).sum(1))


def test_bfloat16(device: Device) -> None:
    data = np.arange(64, dtype=np.float32)
    with filled(device, (data.view(np.uint32) >> 16).astype(np.uint16)) as buffer:
        x = Tensor.from_buffer(buffer, 64, "bfloat16")
        np.testing.assert_array_equal((x + 1).numpy(), data + 1)


def test_parts_of_a_buffer(device: Device) -> None:
    with filled(device, VALUES) as buffer:
        x, y = (Tensor.from_buffer(buffer[start:], 64) for start in (1024, 2048))
        np.testing.assert_array_equal((x + y).numpy(), VALUES[256:320] + VALUES[512:576])
        overlapping = Tensor.from_buffer(buffer, 1000)
        np.testing.assert_array_equal(
            (overlapping.sum() + x.sum()).numpy(), VALUES.sum() + VALUES[256:320].sum()
        )


def test_the_end_of_a_buffer_is_not_passed(device: Device) -> None:
    """Whole pages whose last bytes are the last elements."""
    for count, kind in ((1023, "float32"), (1021, "float16"), (333, "uint8")):
        data = (np.arange(count) % 100).astype(kind)
        start = 4096 - -(-data.nbytes // 256) * 256
        with device.alloc(4096) as buffer:
            buffer[start:].copy_from(data)
            x = Tensor.from_buffer(buffer[start : start + data.nbytes], count, kind)
            np.testing.assert_array_equal((x + x).numpy(), data + data)
            assert x.cast("float32").sum().item() == data.astype(np.float32).sum()


# ---- life ----------------------------------------------------------------------------------------


def test_the_tensor_keeps_the_buffer(device: Device) -> None:
    buffer = filled(device, VALUES)
    gone = weakref.ref(buffer)
    x = Tensor.from_buffer(buffer, 1000)
    y = x + 1
    del buffer, x
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(y.numpy(), VALUES + 1)
    del y
    device.synchronize()
    device.alloc(256).close()  # where memory that was dropped is freed
    assert gone() is None


def test_the_memory_is_never_the_pools(device: Device) -> None:
    """What a tensor leaves behind is not given to other tensors."""
    with filled(device, VALUES) as buffer:
        Tensor.from_buffer(buffer, 1000)
        gc.collect()
        results = [(Tensor(VALUES, device=device) * k).realize() for k in range(4)]
        np.testing.assert_array_equal(buffer.numpy(np.float32), VALUES)
        del results


def test_a_closed_buffer_is_named(device: Device) -> None:
    buffer = filled(device, VALUES)
    x = Tensor.from_buffer(buffer, 1000)
    y = x * 3
    buffer.close()
    for use in (x.numpy, y.numpy, lambda: (x + y).realize()):
        with pytest.raises(Closed, match="buffer used after close"):
            use()
    with pytest.raises(Closed):
        Tensor.from_buffer(buffer, 1000)
    with filled(device, VALUES * 2) as other:  # what was learnt from the closed one holds
        z = Tensor.from_buffer(other, 1000)
        np.testing.assert_array_equal((z * 3).numpy(), VALUES * 6)


def test_kernels_of_a_closed_buffer_run_with_another(device: Device) -> None:
    for turn in range(4):
        with filled(device, VALUES + turn) as buffer:
            x = Tensor.from_buffer(buffer, 1000)
            np.testing.assert_array_equal((x * 5 - 1).numpy(), (VALUES + turn) * 5 - 1)
            del x


def test_it_is_never_written(device: Device) -> None:
    """An assignment makes a tensor of its own memory, though nothing else refers to it."""
    with filled(device, VALUES) as buffer:
        x = Tensor.from_buffer(buffer, 1000)
        x[10:20] = 7
        x.assign(x + 1)
        expected = VALUES.copy()
        expected[10:20] = 7
        np.testing.assert_array_equal(x.numpy(), expected + 1)
        np.testing.assert_array_equal(buffer.numpy(np.float32), VALUES)


# ---- recorded functions --------------------------------------------------------------------------


def test_a_replay_reads_the_buffer_of_each_call(device: Device, uploads: list[int]) -> None:
    @jit
    def squares(x: Tensor) -> Tensor:
        return (x * x).sum(axis=1)

    made = [filled(device, VALUES + k, more=96) for k in range(3)]
    uploads.clear()
    for turn in range(7):
        buffer = made[turn % 3]
        found = squares(Tensor.from_buffer(buffer, (10, 100)))
        expected = ((VALUES + turn % 3) ** 2).reshape(10, 100).sum(axis=1)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert squares.kernels >= 1 and not uploads
    for buffer in made:
        buffer.close()
    with pytest.raises(Closed):
        squares(Tensor.from_buffer(made[0], (10, 100)))


def test_a_recorded_function_that_assigns_its_argument_leaves_the_buffer(device: Device) -> None:
    @jit
    def changed(x: Tensor) -> Tensor:
        x[0:5] = 1
        return x + 1

    with filled(device, VALUES) as buffer:
        for _ in range(4):
            found = changed(Tensor.from_buffer(buffer, 1000)).numpy()
            assert found[:6].tolist() == [2, 2, 2, 2, 2, 6]
            np.testing.assert_array_equal(buffer.numpy(np.float32), VALUES)


def test_it_is_made_outside_of_recorded_functions(device: Device) -> None:
    with filled(device, VALUES) as buffer:

        @jit
        def fixed() -> Tensor:
            return Tensor.from_buffer(buffer, 1000) + 1

        with pytest.raises(BadArgument, match="pass it as an argument"):
            fixed()


# ---- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((10, 101), "float32", r"needs 4040 bytes, the buffer has 4000"),
        ((1000,), "int64", r"int64\[1000\] needs 8000 bytes, the buffer has 4000"),
        ((501,), "uint64", r"uint64\[501\] needs 4008 bytes"),
        ((-1,), "float32", "from_buffer"), (("a",), "float32", "from_buffer"),
        ((10,), "complex64", "complex64"), ((1 << 62, 1 << 62), "float32", "bytes"),
    ],
)  # fmt: skip
def test_what_it_refuses(device: Device, shape: Any, dtype: str, why: str) -> None:
    with filled(device, VALUES) as buffer, pytest.raises(BadArgument, match=why):
        Tensor.from_buffer(buffer, shape, dtype)


def test_where_a_tensor_may_begin(device: Device) -> None:
    with filled(device, VALUES) as buffer:
        for start in (4, 64, 128, 300):
            with pytest.raises(BadArgument, match="must begin at a multiple of 256 bytes"):
                Tensor.from_buffer(buffer[start:], 10)


@pytest.mark.parametrize("given", [None, VALUES, b"abc", 4096])
def test_only_buffers(given: Any) -> None:
    with pytest.raises(BadArgument, match="from_buffer: expected a Buffer, got"):
        Tensor.from_buffer(given, 10)


def test_empty_tensors(device: Device) -> None:
    with device.alloc(256) as buffer:
        assert Tensor.from_buffer(buffer, (0, 3)).numpy().shape == (0, 3)


def test_tensors_of_another_device_do_not_mix(device: Device) -> None:
    with hcq.open("cpu") as other, filled(other, VALUES) as buffer:
        x = Tensor.from_buffer(buffer, 1000)
        with pytest.raises(BadArgument):
            x + Tensor(VALUES, device=device)
