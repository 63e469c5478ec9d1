"""Arrays of other libraries as data and as operands, by __array__ and DLPack, bfloat16 included."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.compiler.dtype import encode_bfloat16
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

VALUES = np.array([[1.5, -2.0, 3.0], [0.25, 5.0, -6.5]], np.float32)
CODE_OFFSET = 20  # of the type's code in a DLManagedTensor (dlpack.h), after pointer, device, ndim
DEVICE_OFFSET = 8


class Exported:
    """An array that only DLPack exports, as a tensor of PyTorch in bfloat16. code: kDLBfloat."""

    def __init__(self, bits: np.ndarray[Any, Any], code: int = 4, device: int = 1) -> None:
        self.bits, self.code, self.device = bits, code, device

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.bits.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        at = get(capsule, b"dltensor")
        ctypes.c_uint8.from_address(at + CODE_OFFSET).value = self.code
        ctypes.c_int32.from_address(at + DEVICE_OFFSET).value = self.device
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


class Wrapped:
    """An array that only __array__ exports."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array if dtype is None else self.array.astype(dtype)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda array: array, "transposed": lambda array: array.T,
    "reversed": lambda array: array[::-1, ::-1], "every other": lambda array: array[:, ::2],
    "empty": lambda array: array[:0], "without axes": lambda array: array[0, 0, ...],
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_bfloat16(cpu: Device, view: str) -> None:
    expected, given = VIEWS[view](VALUES), Exported(VIEWS[view](encode_bfloat16(VALUES)))
    tensor = Tensor(given, device=cpu)
    assert tensor.dtype.name == "bfloat16" and tensor.shape == expected.shape
    assert np.array_equal(tensor.numpy(), expected)
    wide = Tensor(given, device=cpu, dtype="float32")
    assert wide.dtype.name == "float32" and np.array_equal(wide.numpy(), expected)


def test_operands(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    low = Exported(encode_bfloat16(VALUES))
    for other in (Wrapped(VALUES), low, VALUES):
        assert np.array_equal((tensor + other).numpy(), VALUES * 2)
        assert np.array_equal((tensor == other).numpy(), np.ones((2, 3), bool))
        assert np.array_equal((tensor != other).numpy(), np.zeros((2, 3), bool))
        assert np.array_equal((tensor > 0).where(tensor, other).numpy(), VALUES)
        target = Tensor.zeros(2, 3, device=cpu)
        target[:, 1:] = Wrapped(VALUES[:, 1:])
        assert np.array_equal(target.numpy()[:, 1:], VALUES[:, 1:])
    assert (Tensor(VALUES, device=cpu).bfloat16() * low).dtype.name == "bfloat16"


def test_what_is_refused(cpu: Device) -> None:
    tensor = Tensor(VALUES, device=cpu)
    with pytest.raises(BadArgument, match="expected an array in the host's memory, got one on"):
        Tensor(Exported(encode_bfloat16(VALUES), device=2), device=cpu)
    with pytest.raises(BadArgument, match="unsupported ScalarType"):
        Tensor(Exported(encode_bfloat16(VALUES), code=5), device=cpu)  # complex, of 16 bits
    with pytest.raises(BadArgument, match="a Tensor, an array or a number, got dict"):
        tensor + {}
    with pytest.raises(BadArgument, match=r"got \S+\.test_foreign_arrays\.Plain$"):
        tensor + Plain()
    assert tensor != Plain()


class Plain:
    """Not an array."""


def test_formats(cpu: Device) -> None:
    assert f"{Tensor(1.5, device=cpu):.2f} {Tensor(7, device=cpu):03d}" == "1.50 007"
    assert f"{Tensor([1.0, 2.0], device=cpu).sum():8.3e}" == "3.000e+00"
    assert f"{Tensor(1.5, device=cpu)}".startswith("<Tensor float32[]")
    with pytest.raises(TypeError, match=r"needs a tensor without axes, got \[1\]"):
        format(Tensor([1.5], device=cpu), ".2f")
