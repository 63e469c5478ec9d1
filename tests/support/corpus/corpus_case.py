"""A case of the operation corpus, its numbers, and what NumPy says of whole rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device

Array = NDArray[Any]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32")
TYPES = ("bool", *INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Case:
    """One computation. work: from tensors; numpy: the same from arrays, in float64 where the
    answer is a float. rtol, atol: 0 asks for equality."""

    name: str
    inputs: tuple[Array, ...]
    work: Callable[..., Tensor]
    numpy: Callable[..., Any]
    rtol: float = 0.0
    atol: float = 0.0

    def build(self, device: Device) -> Tensor:
        """The lazy result."""
        return self.work(*(Tensor(array, device=device) for array in self.inputs))

    def expected(self) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(self.numpy(*self.inputs))

    def compare(self, found: Array) -> None:
        """AssertionError where a result is not what NumPy says."""
        expected = self.expected()
        assert found.shape == expected.shape, (self.name, found.shape, expected.shape)
        if self.rtol or self.atol:
            with np.errstate(over="ignore"):
                wanted = expected.astype(found.dtype)
            np.testing.assert_allclose(
                found, wanted, rtol=self.rtol, atol=self.atol, err_msg=self.name
            )
        else:
            np.testing.assert_array_equal(found, expected.astype(found.dtype), err_msg=self.name)

    def check(self, device: Device) -> None:
        """Run on a device and compare."""
        self.compare(self.build(device).numpy())


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def numbers(name: str, shape: Sequence[int], dtype: str, low: float = -9, high: float = 9) -> Array:
    """Random values of a type; integers in [low, high], floats normal."""
    random, kind = _random(name), np.dtype(dtype)
    if kind.kind == "b":
        return random.integers(0, 2, tuple(shape)).astype(bool)
    if kind.kind == "f":
        return np.asarray(random.normal(0, 3, tuple(shape))).astype(kind)
    low = max(low, int(np.iinfo(kind).min))
    return np.asarray(random.integers(int(low), int(high), tuple(shape), endpoint=True)).astype(
        kind
    )


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on float64 copies of float arrays."""

    def wide(*arrays: Array) -> Any:
        return function(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays))

    return wide


def softmax(array: Array) -> Array:
    raised = np.exp(array - array.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def layer_norm(array: Array) -> Array:
    centred = array - array.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))
