"""Memory shared with other libraries by DLPack, in both directions.

A capsule refers to the memory of the tensor itself where this process can access it: all memory of
`cpu`, and HOST memory of other devices. The capsule keeps that memory, also when the tensor is
gone, the buffer is closed or the device is closed. Tensors are immutable, so the consumer is told
that the memory is read-only; an assignment to the tensor writes to a copy while the capsule, or an
array made of it, is alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.graph.node import Node
from ugpu.compiler.runtime.lent import lend
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.upload import TYPES
from ugpu.compiler.schedule.group import ALIGN
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import NotShared
from ugpu.hcq.work.dlpack import HOST, VERSIONED, marked

CPU = (HOST[0], 0)  # the DLPack device of exported memory


class _Kept(np.ndarray[Any, Any]):
    """An array in the memory of a storage, which it keeps."""

    storage: Storage


def shared_array(storage: Storage, first: int, node: Node) -> NDArray[Any] | None:
    """Return the elements of a node from place `first` of a storage on, as a read-only array in
    the same memory; None if this process cannot access it. The device's work is done."""
    buffer = storage.buffer
    view = buffer.core.driver.memory_view(buffer)
    if view is None:
        return None
    kind = dtypes.to_numpy(node.dtype)
    flat = np.frombuffer(view, kind, node.size, first * kind.itemsize) if node.size else None
    array = (np.empty(0, kind) if flat is None else flat).reshape(node.shape).view(_Kept)
    array.storage = storage
    array.flags.writeable = False
    return array


def capsule_of(
    array: NDArray[Any], dtype: DType, copied: bool, max_version: tuple[int, int] | None
) -> Any:  # a PyCapsule
    """Return a capsule that owns an array: a versioned one if the consumer accepts it."""
    versioned = accepts_versions(max_version)
    capsule = array.__dlpack__(max_version=max_version) if versioned else array.__dlpack__()
    code = next((code for code, each in TYPES.items() if each is dtype), None)
    marked(capsule, versioned, code, copied)
    return capsule


def accepts_versions(max_version: tuple[int, int] | None) -> bool:
    """Return whether the consumer accepts versioned capsules and NumPy makes them, from 2.1 on."""
    return max_version is not None and max_version[0] >= 1 and VERSIONED


def check_request(stream: Any, dl_device: Any) -> None:  # Any: checked here
    """Raise NotShared for a stream or a device that has no meaning for memory of the host."""
    if stream is not None:
        raise NotShared(f"__dlpack__: expected stream=None for memory of the host, got {stream!r}")
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != CPU:
        raise NotShared(
            f"__dlpack__: expected dl_device {CPU}, memory of the host, got {tuple(dl_device)}"
        )


def adopted(device: Device, array: NDArray[Any], copy: bool | None) -> Node | None:
    """Return a node in the memory of an array of another library; None if it has to be copied.
    NotShared if that is not allowed."""
    reason = None if copy else _hindrance(device, array)
    if reason is not None and copy is False:
        raise NotShared(f"from_dlpack: {reason}; expected copy=None or True")
    if copy or reason is not None:
        return None
    view = array.reshape(-1).view(np.uint8).data
    buffer = core_of(device).driver.host_buffer(array.ctypes.data, view)
    return lend(buffer, array.shape, dtypes.as_dtype(array.dtype))


def _hindrance(device: Device, array: NDArray[Any]) -> str | None:
    """Return why kernels of a device cannot read an array where it lies."""
    if not core_of(device).driver.reads_host_memory:
        return f"kernels of {device.name} cannot read memory of another library"
    if not array.flags.c_contiguous or not array.size:
        return f"strides {array.strides} of shape {array.shape} are not those of a row-major array"
    if array.ctypes.data % ALIGN:
        return f"the address must be a multiple of {ALIGN}, got {array.ctypes.data:#x}"
    return None
