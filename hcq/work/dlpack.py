"""What NumPy leaves out of DLPack: bfloat16 and float8 types, and marks of a capsule.

The layout is that of dlpack.h (https://github.com/dmlc/dlpack), DLManagedTensor and, from DLPack
1.0 on, DLManagedTensorVersioned.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument

# Codes of types that NumPy lacks: kDLBfloat, kDLFloat8_e4m3fn and so on; and those of each width.
BFLOAT, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ = 4, 10, 11, 12, 13
CODES = {16: (BFLOAT,), 8: (E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ)}
HOST = (1, 3)  # kDLCPU, kDLCUDAHost: memory that the host reads
MOST_AXES = 64
_BITS: dict[int, np.dtype[np.generic]] = {16: np.dtype(np.uint16), 8: np.dtype(np.uint8)}
COPIED = 1 << 1  # DLPACK_FLAG_BITMASK_IS_COPIED
VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # NumPy makes versioned capsules


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)


def marked(capsule: Any, versioned: bool, code: int | None, copied: bool) -> None:  # a PyCapsule
    """Change a capsule that no consumer has seen. code: of the elements' type, None to leave it.
    copied: whether it is to say that its memory is a copy; only a versioned one can."""
    if versioned:
        whole = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        tensor = whole.tensor
        whole.flags |= COPIED if copied else 0
    else:
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    if code is not None:
        tensor.code = code


def bits_of(data: Any) -> tuple[NDArray[np.generic], int] | None:  # Any: with `__dlpack__`
    """Return a copy of the elements of a type that NumPy lacks, as bits, and the type's code; None
    if it has another type. BadArgument if the host cannot read them."""
    capsule = data.__dlpack__()  # freed with all it holds when the last reference is gone
    try:
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    except ValueError as error:
        raise BadArgument(f"{type(data).__name__}.__dlpack__: {error}") from None
    kind = _BITS.get(tensor.bits)
    if kind is None or tensor.code not in CODES[tensor.bits] or tensor.lanes != 1:
        return None
    if tensor.device_type not in HOST:
        raise BadArgument(
            f"expected an array in the host's memory, got one on DLPack device "
            f"{tensor.device_type}; copy it to the host"
        )
    if not 0 <= tensor.ndim <= MOST_AXES:
        raise BadArgument(f"expected at most {MOST_AXES} axes, got {tensor.ndim}")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if 0 in shape:
        return np.zeros(shape, kind), tensor.code
    steps = None
    if tensor.strides:
        steps = tuple(kind.itemsize * tensor.strides[axis] for axis in range(tensor.ndim))
    start = tensor.data + tensor.byte_offset
    return _strided(start, kind, shape, steps).copy(), tensor.code


def _strided(
    start: int, kind: np.dtype[np.generic], shape: tuple[int, ...], steps: tuple[int, ...] | None
) -> NDArray[np.generic]:
    """Return the array of elements at an address. steps: bytes along each axis."""
    width = kind.itemsize
    if steps is None:
        steps = tuple(width * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    ends = [(size - 1) * step for size, step in zip(shape, steps, strict=True)]
    low, high = sum(end for end in ends if end < 0), sum(end for end in ends if end > 0)
    memory = (ctypes.c_uint8 * (high - low + width)).from_address(start + low)
    return np.ndarray(shape, kind, memoryview(memory).cast("B"), -low, steps)
