"""Tensor: computing the elements, and giving them to Python and to other libraries."""

from __future__ import annotations

import importlib
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.graph.movement import part_of_stored
from ugpu.compiler.methods.core import Scalar
from ugpu.compiler.random import Random
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.runtime.sharing import (
    CPU,
    accepts_versions,
    capsule_of,
    check_request,
    shared_array,
)
from ugpu.hcq.errors import BadArgument, NotShared


class Values(Random):
    """The elements as arrays, numbers and shared memory."""

    __slots__ = ()

    def realize(self, *others: Self) -> Self:
        """Compute this tensor (and others of the same device) and return it. Does not wait for
        completion."""
        if not others:
            node = self.node
            if node.storage is not None:
                return self
            recipe = node.recipe
            script = None if recipe is None else recipe.script
            if script is None or not script.run(node, self.device):
                runtime_of(self.device).realize((node,))
            return self
        for other in others:
            self._lift("realize", other)
        runtime_of(self.device).realize([self.node, *(other.node for other in others)])
        return self

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        """Return the elements as a new array. bfloat16 and float8 types, which NumPy lacks, are
        converted to float32; their bits are those of `bitcast("uint16")` and `bitcast("uint8")`,
        which `view(ml_dtypes.float8_e4m3fn)` and its like show as that package's types. force:
        PyTorch's, of no effect."""
        recording = current_recording()
        if recording is not None:
            raise BadArgument(
                f"@jit {recording.name}: the elements of {self._shown} cannot be read while "
                "the function is recorded; return the tensor instead"
            )
        return dtypes.decode(self._stored(), self.dtype)

    def _stored(self) -> NDArray[Any]:
        """Return the elements as a new array, of types that NumPy lacks as bits."""
        node = self.node
        part = part_of_stored(node)
        if part is None:
            self.realize()
        whole, first = part or (node, 0)
        storage = whole.storage
        assert isinstance(storage, Storage)
        array = np.empty(node.shape, dtypes.to_numpy(node.dtype))
        if array.size:
            buffer = storage.buffer
            if whole is not node:
                start = first * array.itemsize
                buffer = buffer[start : start + array.nbytes]
            buffer.core.copies.download(buffer, array.data.cast("B"))
        return array

    def item(self) -> Scalar:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise BadArgument(
                f"item: the tensor must have exactly one element, got shape {self._shown}"
            )
        number: Scalar = self.numpy().item()
        return number

    def tolist(self) -> Any:
        """Return the elements as nested Python lists."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(
        self, *, stream: None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip  # a PyCapsule
        """Return the elements for another library, see compiler.runtime.sharing. Memory that this
        process can access is shared, read-only; a copy is made of other memory, for a consumer that
        accepts no capsule with a version, which alone says that it is read-only, and for
        copy=True. NotShared (a BufferError) if copy=False and it has to be copied. Waits for the
        device."""
        check_request(stream, dl_device)
        array = None
        if not copy and accepts_versions(max_version):
            array = self._shared()
        if array is not None:
            return capsule_of(array, self.dtype, False, max_version)
        if copy is False:
            raise NotShared(
                f"__dlpack__: {self._shown} on {self.device.name} has to be copied, expected "
                "copy=None or True, or memory of the host and max_version >= (1, 0)"
            )
        return capsule_of(self._stored(), self.dtype, True, max_version)

    def _shared(self) -> NDArray[Any] | None:
        """Return the elements as an array in the memory of this tensor; None if not possible."""
        if current_recording() is not None:
            return None  # and then `numpy` raises the error
        whole, first = part_of_stored(self.node) or (self.realize().node, 0)
        assert isinstance(whole.storage, Storage)
        self.device.synchronize()
        return shared_array(whole.storage, first, self.node)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kDLCPU of dlpack.h: what `__dlpack__` exports is in memory of the host."""
        return CPU

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:  # Any: a module
        """Return the functions of the array API standard, `ugpu.xp`. BadArgument for another
        version of it."""
        functions = importlib.import_module("ugpu.compiler.array_api")  # above this floor
        known = ("2021.12", "2022.12", "2023.12", functions.__array_api_version__)
        if api_version is not None and api_version not in known:
            raise BadArgument(
                f"__array_namespace__: api_version must be one of {known}, got {api_version!r}"
            )
        return functions

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer or self.ndim:
            raise TypeError(
                f"an index must be an integer without axes, got {self.dtype.name} {self._shown}"
            )
        return int(self.item())

    def __format__(self, spec: str) -> str:
        """Format a tensor without axes as its number: `f"{loss:.3f}"`."""
        if not spec:
            return repr(self)
        if self.ndim:
            raise TypeError(f"format {spec!r} needs a tensor without axes, got {list(self.shape)}")
        return format(self.item(), spec)
