"""Buffers: device-accessible memory, and slices of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.checks import whole
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.view import HostView, RemoteView
from ugpu.hcq.work.arrays import as_array
from ugpu.hcq.work.state import DeviceState, DriverPart

if TYPE_CHECKING:
    from ugpu.hcq.work.state import OpenDevice, RetiredMemory


class MemoryDriver(DriverPart, Protocol):
    """What buffers use of a driver."""

    def free_memory(self, buffer: Buffer) -> None: ...
    def write_memory(self, buffer: Buffer, data: memoryview) -> bool: ...
    def read_memory(self, buffer: Buffer, out: memoryview) -> bool: ...
    def memory_view(self, buffer: Buffer) -> memoryview | None: ...
    @property
    def reads_host_memory(self) -> bool: ...
    def host_buffer(self, address: int, view: memoryview) -> Buffer: ...


class HostCopies(Protocol):
    """Synchronous copies between a buffer and this process: see hcq.copies.transfer."""

    def upload(self, buffer: Buffer, data: memoryview) -> None: ...
    def download(self, buffer: Buffer, out: memoryview) -> None: ...
    def fill(self, buffer: Buffer, value: int) -> None: ...


class MemoryState(DeviceState, Protocol):
    """What buffers and programs use of their device."""

    @property
    def driver(self) -> MemoryDriver: ...
    @property
    def copies(self) -> HostCopies: ...

    def alloc(self, size: int, *, placement: Placement = ...) -> Buffer: ...
    def free(self, buffer: Buffer) -> None: ...


class Buffer:
    """`size` bytes at device address `address`. Made by Device.alloc, freed by `close`
    (idempotent).

    `buffer[a:b]` is a slice: the same memory, not owned. `close` waits for work in flight. If a
    buffer is dropped instead, its memory is freed some time after work in flight has ended.

    Attributes:
        view: the bytes themselves if this process can access them (HOST placement), else None.
        remote: a view of HOST memory that lies behind a bridge (hcq.transport.view).
        handle: what the driver needs to free it; opaque to all other code.
        core: the device's, for internal modules.
    """

    retired: RetiredMemory | None = None  # the device's, for a buffer that owns memory

    def __init__(
        self,
        core: MemoryState,
        address: VirtAddr,
        size: int,
        placement: Placement,
        view: HostView | None = None,
        handle: object = None,
        owner: Buffer | None = None,
    ) -> None:
        self.core = core
        self.address = address
        self.size = size
        self.placement = placement
        self.view: memoryview | None = None
        self.remote: RemoteView | None = None
        if isinstance(view, RemoteView):
            self.remote = view
        else:
            self.view = view
        self.handle = handle
        self.owner = owner  # the buffer this is a slice of
        self.closed = False

    @property
    def device(self) -> OpenDevice:
        """The device that owns the memory."""
        return self.core.device

    def __getitem__(self, part: slice) -> Buffer:
        if not isinstance(part, slice):
            raise BadArgument(
                "buffer indices must be slices of bytes such as buffer[a:b]", index=part
            )
        try:
            start, stop, step = part.indices(self.size)
        except (TypeError, ValueError):
            raise BadArgument(f"slice bounds must be ints, got {part!r}") from None
        if step != 1:
            raise BadArgument("slice step must be 1", step=step)
        size = max(0, stop - start)
        view = None if self.access is None else self.access[start : start + size]
        return Buffer(
            self.core,
            VirtAddr(self.address + start),
            size,
            self.placement,
            view,
            owner=self.owner or self,
        )

    @property
    def access(self) -> HostView | None:
        """The object for host access to the bytes: `view` or `remote`."""
        return self.view if self.view is not None else self.remote

    def __len__(self) -> int:
        return self.size

    def copy_from(self, data: Any) -> None:  # see as_array
        """Copy an array (C order) or bytes into the start of the buffer; return when the copy is
        complete.

        Python numbers and lists are rejected, because their element width is unknown.
        """
        source = _as_bytes(data)
        if len(source) > self.size:
            raise BadArgument(
                "the data is larger than the buffer", data=len(source), size=self.size
            )
        self._check_open()
        self.core.copies.upload(self, source)

    def copy_to(self, out: NDArray[Any]) -> None:
        """Copy the start of the buffer into `out` (contiguous). Waits for the device's work."""
        if not isinstance(out, np.ndarray) or out.dtype.hasobject:
            raise BadArgument(f"out must be a NumPy array of numbers, got {_described(out)}")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise BadArgument("out must be a contiguous, writable array", strides=out.strides)
        target = out.reshape(-1).view(np.uint8).data
        if len(target) > self.size:
            raise BadArgument(
                "the requested data is larger than the buffer", want=len(target), size=self.size
            )
        self._check_open()
        self.core.copies.download(self, target)

    def numpy(
        self, dtype: DTypeLike = np.uint8, shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Return the content as a new array; the default shape is one axis over all elements."""
        try:
            kind = np.dtype(dtype)
        except TypeError as error:
            raise BadArgument(f"dtype is not valid: {error}") from error
        if kind.hasobject or not kind.itemsize:
            raise BadArgument(f"dtype must have elements of a fixed size, got {kind}")
        try:
            array = np.empty(shape if shape is not None else (self.size // kind.itemsize,), kind)
        except (TypeError, ValueError) as error:
            raise BadArgument(f"shape must be ints of at least 0, got {shape!r}") from error
        except MemoryError:
            raise BadArgument(
                "the requested data is larger than the buffer", shape=shape, size=self.size
            ) from None
        if array.size:
            self.copy_to(array)
        return array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Copy the bytes to a new array, for np.asarray; `numpy` reads them as another type."""
        if copy is False:
            raise BadArgument(
                "a buffer does not export its memory; use copy_to, or the `view` of a HOST buffer"
            )
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:  # Any: as in the array API standard
        """Export a copy of the bytes, in host memory, to another library."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU of dlpack.h: the device of what __dlpack__ exports

    def fill(self, value: int = 0) -> None:
        """Fill with a signed or unsigned 32-bit value; the size must be a multiple of 4."""
        value = whole("value", value, -(1 << 31), 1 << 32)
        self._check_open()
        if self.size % 4:
            raise BadArgument("fill offset and size must be multiples of 4 bytes", size=self.size)
        self.core.copies.fill(self, value & 0xFFFF_FFFF)

    def close(self) -> None:
        if not self.closed:
            if self.owner is None:
                self.core.free(self)
            self.closed = True

    def drop(self) -> None:
        """Close without waiting: the memory is freed some time after work in flight has ended.
        Takes no lock, so finalizers may call it."""
        if not self.closed and self.retired is not None:
            self.closed = True
            self.retired.drop(lambda: self.core.driver.free_memory(self))

    def __del__(self) -> None:
        if self.retired is not None and not self.closed and not self.core.closed:
            self.retired.drop(self._release_unless_used)

    def _release_unless_used(self) -> None:
        """Release the memory after `__del__`. If the finalizer of an object that referred to the
        buffer, in the same garbage, has put it into use again, it lasts until `close`, since
        `__del__` is called once."""
        mine = 3  # the caller's method, this call's argument, getrefcount's
        if sys.getrefcount(self) <= mine and not self.closed:
            self.closed = True
            self.core.driver.free_memory(self)

    def _check_open(self) -> None:
        if self.closed or (self.owner is not None and self.owner.closed):
            raise Closed("buffer used after close", address=int(self.address))

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Buffer {self.size} bytes at {self.address:#x} {self.placement.value}>"


def _described(value: object) -> str:
    return f"a {type(value).__name__}"


def _has_no_width(data: object) -> bool:
    """Return whether `data` is a Python number, or a nested sequence that contains one."""
    if isinstance(data, list | tuple):
        return any(_has_no_width(element) for element in data)
    return isinstance(data, int | float | complex) and not isinstance(data, np.generic)


def _as_bytes(data: Any) -> memoryview:  # see as_array
    if isinstance(data, bytes | bytearray):
        return memoryview(data)
    if _has_no_width(data):
        raise BadArgument(
            f"data must be bytes or an array with a dtype, got Python {_described(data)}; pass "
            "np.array(data, dtype), whose element width is known"
        )
    return np.ascontiguousarray(as_array(data)).reshape(-1).view(np.uint8).data
