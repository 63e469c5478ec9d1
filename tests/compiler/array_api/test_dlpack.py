"""Memory shared by DLPack, judged by NumPy, PyTorch and onnxruntime."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from ugpu.compiler import Tensor
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed, NotShared
from ugpu.hcq.state.memory import Placement

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
FLAGS_OFFSET = 24  # in DLManagedTensorVersioned: after the version, the context and the deleter
READ_ONLY, COPIED = 1, 2  # DLPACK_FLAG_BITMASK_*
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip
versioned = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy 2.1 makes versioned capsules"
)


class Exporter:
    """What a consumer asks of a tensor, with the options that it gives replaced."""

    def __init__(self, tensor: Any, **options: Any) -> None:
        self.tensor, self.options = tensor, options

    def __dlpack__(self, **_: Any) -> Any:
        return self.tensor.__dlpack__(**self.options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.tensor.__dlpack_device__()
        return device


def address(tensor: Tensor) -> int:
    storage = tensor.node.storage
    assert isinstance(storage, Storage)
    return storage.address


def flags(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    at = get(capsule, b"dltensor_versioned")
    return ctypes.c_uint64.from_address(at + FLAGS_OFFSET).value


def aligned(values: np.ndarray[Any, Any], shift: int = 0) -> np.ndarray[Any, Any]:
    """Return a copy whose address is a multiple of 256, plus `shift`."""
    room = np.zeros(values.nbytes + 256 + shift, np.uint8)
    start = -room.ctypes.data % 256 + shift
    part = room[start : start + values.nbytes]
    array: np.ndarray[Any, Any] = part.view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


# ---- to another library --------------------------------------------------------------------------


@versioned
@pytest.mark.parametrize("name", TYPES)
def test_memory_of_the_host_is_shared_read_only(cpu: Device, name: str) -> None:
    tensor = Tensor(VALUES, device=cpu).cast(name)
    array = np.from_dlpack(tensor)
    assert np.array_equal(array, VALUES.astype(name)) and array.dtype == name
    assert array.ctypes.data == address(tensor)
    assert not array.flags.writeable


@versioned
@pytest.mark.parametrize("part", [(1,), (slice(1, 3),), (2, slice(1, 4)), (slice(0, 0),)])
def test_a_run_of_rows_is_shared_too(cpu: Device, part: Any) -> None:
    tensor = Tensor(VALUES, device=cpu)
    array = np.from_dlpack(tensor[part])
    assert np.array_equal(array, VALUES[part])
    if array.size:
        start = VALUES[part].ctypes.data - VALUES.ctypes.data
        assert array.ctypes.data == address(tensor) + start


@versioned
def test_an_assignment_leaves_what_was_shared(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    array = np.from_dlpack(tensor)
    tensor[0] = -1.0
    tensor.realize()
    assert np.array_equal(array, VALUES) and tensor.numpy()[0, 0] == -1


@versioned
def test_memory_outlives_tensor_and_device() -> None:
    device = ugpu.open("cpu")
    tensor = Tensor(VALUES, device=device)
    array = np.from_dlpack(tensor)
    del tensor
    others = [Tensor(np.full((3, 4), 7, np.float32), device=device) for _ in range(50)]
    assert np.array_equal(array, VALUES)
    last = others.pop()
    device.close()
    others.clear()
    gc.collect()
    assert np.array_equal(array, VALUES)
    with pytest.raises(Closed):
        last.__dlpack__(max_version=(1, 0))


@versioned
def test_a_capsule_that_is_not_consumed_frees_its_memory(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    storage = weakref.ref(tensor.node.storage)
    capsule = tensor.__dlpack__(max_version=(1, 0))
    del tensor
    gc.collect()
    assert storage() is not None
    del capsule  # not consumed
    gc.collect()
    assert storage() is None


@versioned
def test_a_capsule_is_consumed_once(cpu: Device) -> None:
    capsule = Tensor(VALUES, device=cpu).__dlpack__(max_version=(1, 0))

    class Same(Exporter):
        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    same = Same(Tensor(0.0, device=cpu))
    assert np.array_equal(np.from_dlpack(same), VALUES)
    with pytest.raises(ValueError, match="incorrect name"):  # it is a "used" one now
        np.from_dlpack(same)


@versioned
def test_what_the_flags_say(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    assert flags(tensor.__dlpack__(max_version=(1, 0))) == READ_ONLY
    assert flags(tensor.__dlpack__(max_version=(1, 1), copy=True)) == COPIED
    assert flags(tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False)) == READ_ONLY


def test_a_consumer_without_versions_gets_a_copy(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    array = np.from_dlpack(Exporter(tensor))
    assert np.array_equal(array, VALUES)
    assert array.ctypes.data != address(tensor)
    with pytest.raises(BufferError, match="has to be copied, expected copy=None or True"):
        tensor.__dlpack__(copy=False)


@pytest.mark.parametrize(("options", "message"), [
    ({"dl_device": (2, 0)}, r"expected dl_device \(1, 0\), memory of the host, got \(2, 0\)"),
    ({"stream": 1}, "expected stream=None for memory of the host, got 1"),
])  # fmt: skip
def test_requests_that_are_refused(cpu: Device, options: Any, message: str) -> None:
    with pytest.raises(NotShared, match=message):
        Tensor(VALUES, device=cpu).__dlpack__(max_version=(1, 0), **options)


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
def test_a_gpu_shares_host_memory_and_copies_its_own(name: str) -> None:
    with ugpu.open(name) as gpu:
        tensor = Tensor(VALUES, device=gpu)
        assert tensor.__dlpack_device__() == (1, 0)
        assert np.array_equal(np.from_dlpack(tensor), VALUES)
        with pytest.raises(BufferError, match=f"on {name} has to be copied"):
            tensor.__dlpack__(max_version=(1, 0), copy=False)
        buffer = gpu.alloc(4096, placement=Placement.HOST)
        buffer.copy_from(VALUES)
        if buffer.view is None or np.lib.NumpyVersion(np.__version__) < "2.1.0":
            return
        lent = Tensor.from_buffer(buffer, (3, 4))
        array = np.from_dlpack(Exporter(lent, max_version=(1, 0), copy=False))
        doubled = (lent * 2).numpy()
        buffer.copy_from(VALUES + 1)
        assert np.array_equal(array, VALUES + 1) and np.array_equal(doubled, VALUES * 2)
        buffer.close()
    assert np.array_equal(array, VALUES + 1)  # the pages are kept


# ---- from another library ------------------------------------------------------------------------


def test_aligned_memory_is_shared_by_cpu(cpu: Device) -> None:
    array = aligned(VALUES)
    tensor = Tensor.from_dlpack(array, device=cpu, copy=False)
    assert np.array_equal((tensor + 1).numpy(), VALUES + 1)
    array[0, 0] = 50
    assert np.array_equal((tensor + 1).numpy(), array + 1) and tensor[0, 0].item() == 50
    tensor[0, 0] = 3.0  # copies first
    assert tensor.numpy()[0, 0] == 3 and array[0, 0] == 50


def test_the_exporter_lives_as_long_as_the_tensor(cpu: Device) -> None:
    class Array(np.ndarray[Any, Any]):
        pass

    array = aligned(VALUES).view(Array)
    alive = weakref.ref(array)
    tensor = Tensor.from_dlpack(array, device=cpu)
    del array
    gc.collect()
    assert alive() is not None and np.array_equal(tensor.numpy(), VALUES)
    del tensor
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(("make", "message"), [
    (lambda: aligned(VALUES).T, "strides"),
    (lambda: aligned(VALUES, 4), "must be a multiple of 256"),
])  # fmt: skip
def test_other_arrays_are_copied(
    cpu: Device, make: Callable[[], np.ndarray[Any, Any]], message: str
) -> None:
    array = make()
    with pytest.raises(BufferError, match=message):
        Tensor.from_dlpack(array, device=cpu, copy=False)
    tensor = Tensor.from_dlpack(array, device=cpu)
    expected = array.copy()
    array[...] = 0
    assert np.array_equal(tensor.numpy(), expected)


def test_copy_is_independent_and_other_devices_copy(cpu: Device) -> None:
    array = aligned(VALUES)
    tensor = Tensor.from_dlpack(array, device=cpu, copy=True)
    with ugpu.open("virtual:navi31") as gpu:
        with pytest.raises(BufferError, match="cannot read memory of another library"):
            Tensor.from_dlpack(array, device=gpu, copy=False)
        with pytest.raises(BufferError, match="has to be copied to virtual:navi31"):
            Tensor.from_dlpack(tensor, device=gpu, copy=False)
        there = Tensor.from_dlpack(tensor, device=gpu)
        array[...] = 0
        assert np.array_equal(there.numpy(), VALUES)
    assert np.array_equal(tensor.numpy(), VALUES)


def test_what_cannot_be_imported(cpu: Device) -> None:
    with pytest.raises(BadArgument, match="list does not export DLPack"):
        Tensor.from_dlpack([1.0], device=cpu)
    foreign = Exporter(VALUES)
    foreign.__class__ = type("Cuda", (Exporter,), {"__dlpack_device__": lambda _: (2, 0)})
    with pytest.raises(BufferError, match=r"expected memory of the host.* got \(2, 0\)"):
        Tensor.from_dlpack(foreign, device=cpu)
    with pytest.raises(BadArgument, match="complex64"):
        Tensor.from_dlpack(VALUES.astype(np.complex64), device=cpu)


# ---- judges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    *TYPES, "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
])  # fmt: skip
def test_pytorch_both_ways(cpu: Device, name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch judges DLPack")
    tensor = Tensor(VALUES, device=cpu).cast(name)
    theirs = torch.from_dlpack(tensor)
    assert str(theirs.dtype) == f"torch.{name}"
    assert np.array_equal(theirs.float().numpy(), tensor.float().numpy())
    back = Tensor.from_dlpack(theirs, device=cpu)
    assert back.dtype.name == name and np.array_equal(back.numpy(), tensor.numpy())
    del tensor, back
    assert theirs.float().sum().item() == (11 if name == "bool" else 66)


READ_BY_ONNXRUNTIME = """
import sys
import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue
from ugpu.compiler import Tensor
values = np.arange(12, dtype=np.float32).reshape(3, 4)
tensor = Tensor(values, device="cpu")
value = OrtValue.from_dlpack(tensor.__dlpack__())
del tensor
assert np.array_equal(value.numpy(), values)
back = Tensor.from_dlpack(value, device="cpu")
assert np.array_equal((back * 2).numpy(), values * 2)
print("equal")
"""


def test_onnxruntime_both_ways(tmp_path: Path) -> None:
    """In a process of its own, with its own home folder, in which it keeps a database."""
    state = "onnxruntime.capi.onnxruntime_pybind11_state"
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("onnxruntime judges DLPack; it is not installed")
    code = f"import {state} as s; print(hasattr(s.OrtValue, 'from_dlpack'))"
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    def run(program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    if run(code) != "True":
        pytest.skip("this onnxruntime is built without DLPack")
    assert run(READ_BY_ONNXRUNTIME) == "equal"
