"""Copies of arrays of the host on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bfloat16
from ugpu.compiler.graph.node import Node
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotShared
from ugpu.hcq.work.arrays import as_array
from ugpu.hcq.work.dlpack import HOST, bfloat16_bits


def array_of(data: Any, wanted: DType | None) -> tuple[NDArray[Any], DType | None]:
    """Return the elements of an array from outside, and their type if NumPy does not have it."""
    if isinstance(data, np.ndarray | np.generic):
        return np.asarray(data), None
    try:
        bits = bfloat16_bits(data) if hasattr(data, "__dlpack__") else None
        if bits is not None:
            return dtypes.decode_bfloat16(bits), bfloat16
        array = as_array(data)
    except BadArgument as error:
        raise BadArgument(f"Tensor: {error.message}") from None
    except (TypeError, RuntimeError, BufferError) as error:  # it refuses to export its elements
        raise BadArgument(f"Tensor: {type(data).__name__}: {error}") from error
    if wanted is dtypes.uint64 and array.dtype == np.float64:  # NumPy's type of [0, 2**64 - 1]
        numbers = np.array(data, object)
        if all(isinstance(each, int) and 0 <= each < 1 << 64 for each in numbers.flat):
            return numbers.astype(np.uint64), None
    if array.dtype.kind not in "biuf":
        raise BadArgument(
            f"Tensor: expected numbers or an array of numbers, got {type(data).__name__}"
        )
    return array, None


def host_array(data: Any) -> NDArray[Any] | None:  # Any: checked here
    """Return an array that another library exports by DLPack, in its memory; None for bfloat16,
    which NumPy does not have. BadArgument for what does not export it, NotShared for memory that is
    not the host's."""
    if not hasattr(data, "__dlpack__") or not hasattr(data, "__dlpack_device__"):
        raise BadArgument(f"from_dlpack: {type(data).__name__} does not export DLPack")
    place = data.__dlpack_device__()
    if place[0] not in HOST:
        raise NotShared(
            f"from_dlpack: expected memory of the host, DLPack device {HOST}, got {tuple(place)}"
        )
    try:
        return np.from_dlpack(data)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        if bfloat16_bits(data) is not None:
            return None
        raise BadArgument(f"from_dlpack: {type(data).__name__}: {error}") from error


def upload(device: Device, array: NDArray[Any], wanted: DType | None) -> Node:
    """Copy an array to a device as a "buffer" node of its own type or the wanted one. Raises
    BadArgument in a function that is being recorded."""
    recording = current_recording()
    if recording is not None:
        raise BadArgument(
            f"@jit {recording.name}: the array would be copied to {device.name} in every "
            "call; pass it as an argument, or create the tensor outside the function"
        )
    return copied(device, array, wanted)


def _encoded(array: NDArray[Any], kind: DType) -> NDArray[Any]:
    """Return an array's elements as the device stores them."""
    if kind is bfloat16:
        return dtypes.encode_bfloat16(array.astype(np.float32))
    return np.ascontiguousarray(array, dtypes.to_numpy(kind))


def copied(device: Device, array: NDArray[Any], wanted: DType | None) -> Node:
    """Return a node with the elements of an array, as its own type or the wanted one. BadArgument
    if they do not fit the wanted one."""
    kind = wanted or dtypes.from_numpy(array.dtype)
    outside = None if wanted is None else dtypes.misfit(array, kind)
    if outside is not None:
        raise BadArgument(f"Tensor: {outside} is out of range for {kind.name}")
    with np.errstate(over="ignore"):  # a number too large for a float type is infinite there
        stored = _encoded(array, kind)
    node = Node("buffer", kind, array.shape)
    size = stored.nbytes
    storage = runtime_of(device).pool.take(size)
    if size:
        storage.buffer.core.copies.upload(storage.buffer, stored.data.cast("B"))
    node.storage = storage
    return node
