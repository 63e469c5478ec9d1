"""Values that are known on the host, and their copies on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.dtype import float64, has_numpy
from ugpu.compiler.onnx.package import module
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.upload import copied
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device

SMALL = 4096  # elements: larger arrays are computed with on the device alone
KEPT = 4096  # copies of computed values


class Weight:
    """An array of the model, copied to the device on first use."""

    __slots__ = ("array", "tensor")

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.tensor: Tensor | None = None

    @property
    def small(self) -> bool:
        return self.array.size <= SMALL


class Constants:
    """The device, and the arrays that were copied to it. A value of the graph is a Tensor, a
    Weight, a NumPy array that is known, a list of values (a sequence), or None."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._copies: dict[tuple[Any, ...], Tensor] = {}

    def weight(self, array: NDArray[Any]) -> Weight:
        return Weight(np.asarray(array))

    def tensor(self, value: Any) -> Any:
        """Return a value as a tensor; arrays of strings, lists and None as they are."""
        if isinstance(value, Weight):
            if value.tensor is None:
                value.tensor = self._copied(value.array)
            return value.tensor
        if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biufV":
            array = np.asarray(value)
            key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
            copy = self._copies.get(key)
            if copy is None:
                if len(self._copies) >= KEPT:
                    self._copies.clear()
                copy = self._copies[key] = self._copied(array)
            return copy
        return value

    def _copied(self, array: NDArray[Any]) -> Any:
        if array.dtype.kind not in "biufV":
            return array  # strings
        first = array.reshape(-1)[:1]
        if (
            array.size
            and array.dtype.kind in "biuf"
            and array.tobytes() == first.tobytes() * array.size
        ):
            number = Tensor(first[0].item(), device=self.device, dtype=array.dtype.name)
            return number.expand(array.shape) if array.shape else number
        kind = float64 if array.dtype == np.float64 else None  # a model means the types it has
        recording = current_recording()
        if recording is None or recording.stages is not None:
            # refused while work is captured
            return Tensor(array, device=self.device, dtype=kind)
        tensor = Tensor(0.0, device=self.device)  # the first call of a function of @jit
        return tensor._new(copied(self.device, array, kind))

    def array(self, value: Any) -> Any:
        """Return a value as an array of the host; a tensor is computed and read."""
        if isinstance(value, Weight):
            return value.array
        if isinstance(value, Tensor):
            kind = value.dtype
            if has_numpy(kind):
                return value.numpy()
            bits = value.bitcast(f"uint{kind.bits}").numpy()
            return bits.view(getattr(module("ml_dtypes"), kind.name))
        if isinstance(value, list):
            return [self.array(each) for each in value]
        return value

    def known(self, value: Any) -> bool:
        """Return whether a value is small and known without the device."""
        if isinstance(value, Weight):
            return value.small
        if isinstance(value, list):
            return all(self.known(each) for each in value)
        return value is None or (
            isinstance(value, np.ndarray | np.generic) and np.size(value) <= SMALL
        )

    def result(self, value: Any) -> Any:
        """Return an output of the model: a tensor where that is possible."""
        if isinstance(value, list):
            return [self.result(each) for each in value]
        return self.tensor(value)
