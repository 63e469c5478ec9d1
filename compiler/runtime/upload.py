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
from ugpu.hcq.work.dlpack import BFLOAT, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, HOST, bits_of

# Types that NumPy lacks, by the code of DLPack.
TYPES = {
    BFLOAT: bfloat16,
    E4M3FN: dtypes.float8_e4m3fn,
    E4M3FNUZ: dtypes.float8_e4m3fnuz,
    E5M2: dtypes.float8_e5m2,
    E5M2FNUZ: dtypes.float8_e5m2fnuz,
}


def array_of(data: Any, wanted: DType | None) -> tuple[NDArray[Any], DType | None]:
    """Return the elements of an array from outside, and their type if NumPy does not have it."""
    if isinstance(data, np.ndarray | np.generic):
        return np.asarray(data), None
    try:
        found = bits_of(data) if hasattr(data, "__dlpack__") else None
        if found is not None:
            bits, code = found
            return dtypes.decode(bits, TYPES[code]), TYPES[code]
        array = as_array(data)
    except BadArgument as error:
        raise BadArgument(f"Tensor: {error.message}") from None
    except (TypeError, RuntimeError, BufferError) as error:  # it refuses to export its elements
        raise BadArgument(f"Tensor: {type(data).__name__}: {error}") from error
    if wanted is dtypes.uint64 and array.dtype == np.float64:  # NumPy's type of [0, 2**64 - 1]
        numbers = np.array(data, object)
        if all(isinstance(each, int) and 0 <= each < 1 << 64 for each in numbers.flat):
            return numbers.astype(np.uint64), None
    if array.dtype.kind == "c":
        raise BadArgument(f"Tensor: {dtypes.COMPLEX}, got {array.dtype.name}")
    if array.dtype.kind not in "biuf":
        raise BadArgument(
            f"Tensor: expected numbers or an array of numbers, got {type(data).__name__}"
        )
    return array, None


def host_array(data: Any) -> NDArray[Any] | None:  # Any: checked here
    """Return an array that another library exports by DLPack, in its memory; None for a type that
    NumPy does not have. BadArgument for what does not export it, NotShared for memory that is
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
        if bits_of(data) is not None:
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


def copied(device: Device, array: NDArray[Any], wanted: DType | None) -> Node:
    """Return a node with the elements of an array, as its own type or the wanted one. BadArgument
    if they do not fit the wanted one."""
    kind = wanted or dtypes.from_numpy(array.dtype)
    dtypes.require(kind, device.target)
    outside = None if wanted is None else dtypes.misfit(array, kind)
    if outside is not None:
        raise BadArgument(f"Tensor: {outside} is out of range for {kind.name}")
    stored = dtypes.encode(array, kind)
    node = Node("buffer", kind, array.shape)
    size = stored.nbytes
    storage = runtime_of(device).pool.take(size)
    if size:
        storage.buffer.core.copies.upload(storage.buffer, stored.data.cast("B"))
    node.storage = storage
    return node
