"""The driver's interface to a kernel driver (KGSL or msm): memory, one context, submissions.

Both own the GPU: page tables, the ring, power and resets are theirs. A context's submissions run in
order.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from hcq.errors import (
    AccessDenied,
    BadArgument,
    ChipError,
    DeviceBusy,
    DeviceHang,
    DeviceLost,
    DeviceNotFound,
    DriverRefused,
    NotSupported,
    OutOfMemory,
    UgpuError,
)
from hcq.transport.node import Node, NodeMapping

PAGE = 4096
CACHE_LINE = 64  # bytes, of the Arm processors beside these GPUs


class Caching(enum.Enum):
    """Caching of memory on the host: COMBINED stores gather and are visible to the GPU without
    `sync`, loads are slow; COHERENT is cached and kept coherent by hardware; CACHED needs
    `sync`."""

    COMBINED = "write-combined"
    COHERENT = "coherent"
    CACHED = "cached"


class ResetState(enum.Enum):
    """Effect of a GPU reset on our context."""

    NONE = "none"
    GUILTY = "guilty"
    INNOCENT = "innocent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Identity:
    """Identity of the GPU as reported by the kernel driver. chip_id: as it reports it. gmem: bytes
    on chip."""

    chip_id: int
    gmem: int
    facts: dict[str, object]


@dataclass(frozen=True)
class Fault:
    """A page fault of our context that the kernel driver describes. kind: "translation",
    "permission", "external"; empty where it is not told."""

    kind: str
    address: int | None = None
    access: str = ""


class Memory:
    """Memory that GPU and host share. handle: the kernel driver's number, 0 when freed. size:
    whole pages. imported: the program's own bytes that it is, kept alive until it is freed. Made by
    KernelInterface.allocate or an import, which also frees it."""

    def __init__(self, interface: KernelInterface, size: int, caching: Caching) -> None:
        self.interface = interface
        self.size = size
        self.caching = caching
        self.handle = 0
        self.address = 0
        self.mapping: NodeMapping | None = None
        self.imported: memoryview | None = None

    @property
    def has_view(self) -> bool:
        """Return whether this process can access the bytes; not those of another driver's
        buffer."""
        return self.mapping is not None or self.imported is not None

    @property
    def view(self) -> memoryview:
        """The bytes."""
        if self.imported is not None:
            return self.imported
        assert self.mapping is not None and self.mapping.view is not None
        return self.mapping.view

    def close(self) -> None:
        """Unmap and free; idempotent, and raises nothing that the kernel driver says to it."""
        self.interface.free(self)

    def __repr__(self) -> str:
        return f"<Memory {self.handle}, {self.size} bytes at {self.address:#x}>"


class KernelInterface(ABC):
    """One open device file. `close` releases all that was made through it; idempotent.

    What an ioctl refuses becomes an error of hcq.errors (`refused`).
    """

    def __init__(self, node: Node, path: str) -> None:
        self.node = node
        self.path = path
        self.memories: dict[Memory, None] = {}
        self.closed = False
        try:
            self.handle = node.open(path)
        except FileNotFoundError:
            raise DeviceNotFound(f"{path} does not exist: {self.missing}", path=path) from None
        except PermissionError:
            remedy = f"sudo chmod a+rw {path}, or add your user to the group that owns it"
            raise AccessDenied(f"{path} cannot be opened", path=path, remedy=remedy) from None
        except OSError as error:
            raise refused("open", error, path=path) from error

    #: what it means that the device file does not exist
    missing = "the kernel driver is not loaded"

    def call(self, name: str, request: int, argument: bytearray | memoryview) -> None:
        """One ioctl, repeated where a signal cut it off; otherwise what `refused` makes of it."""
        while True:
            try:
                self.node.ioctl(self.handle, request, argument)
                return
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN):
                    raise refused(name, error) from error

    @abstractmethod
    def identify(self) -> Identity:
        """Ask what GPU it is. NotSupported where the kernel driver is too old."""

    def memory_size(self) -> int | None:
        """Bytes that all memory of the GPU can have, None where the kernel tells no number. The
        GPU has none of its own, and no call of its kernel drivers says how much there is: it is the
        machine's (MemTotal), of which other programs need some."""
        try:
            text = self.node.read_text("/proc/meminfo")
        except OSError:
            return None
        words = next((w for w in map(str.split, text.splitlines()) if w[:1] == ["MemTotal:"]), [])
        return int(words[1]) << 10 if words[2:] == ["kB"] and words[1].isdecimal() else None

    @abstractmethod
    def allocate(self, size: int, caching: Caching, *, read_only: bool = False) -> Memory:
        """Allocate, map for GPU and host. read_only: for the GPU. OutOfMemory when used up;
        then nothing is left behind."""

    def free(self, memory: Memory) -> None:
        """See Memory.close."""
        if memory.mapping is not None:
            memory.mapping.close()
            memory.mapping = None
        # Cut off after the call, it is repeated: the number may have another owner by then.
        own = all(other is memory or other.handle != memory.handle for other in self.memories)
        if memory.handle and own and not self.closed:
            with contextlib.suppress(UgpuError):
                self.release(memory)
        memory.handle = 0
        memory.imported = None
        self.memories.pop(memory, None)

    @abstractmethod
    def release(self, memory: Memory) -> None:
        """Give memory back to the kernel driver, by its number."""

    def sync(self, memory: Memory, start: int, size: int, *, to_gpu: bool) -> None:
        """Make CACHED memory that the host has written visible to the GPU, or (not to_gpu) what
        the GPU has written visible to the host. Nothing to do for other memory."""
        return

    def import_memory(self, data: memoryview, *, read_only: bool) -> Memory:
        """Map whole pages of this process for the GPU, without a copy. NotSupported where the
        kernel driver cannot."""
        raise NotSupported(f"{self.path}: the kernel driver does not import memory of programs")

    def import_dma_buf(self, descriptor: int, size: int, *, read_only: bool) -> Memory:
        """Map another driver's buffer of `size` bytes. The kernel driver keeps the buffer: the
        descriptor may be closed afterwards. NotSupported where it cannot."""
        raise NotSupported(f"{self.path}: imports of dma-bufs are not implemented for this driver")

    @property
    @abstractmethod
    def caching(self) -> Caching:
        """Return the caching of memory that the host and the GPU share without `sync`."""

    @property
    def device_caching(self) -> Caching:
        """Return the caching of memory that the host accesses by copies only."""
        return self.caching

    @abstractmethod
    def create_context(self) -> None:
        """Make the context that submissions run in; there was none, or it was destroyed."""

    @abstractmethod
    def destroy_context(self) -> None:
        """Destroy the context, if there is one; what it runs is waited for or cut off by the kernel
        driver. Raises nothing."""

    def sole_holder(self) -> str:
        """Return why the GPU cannot have a second context whose kernels reach none of this one's
        memory, made by this process; empty where `another` can."""
        return "its kernel driver gives a process one address space, and ugpud is one process"

    def another(self) -> KernelInterface:
        """Open the device file again, with an address space of its own: as another program. The
        caller closes it. NotSupported where `sole_holder` has a reason."""
        raise NotSupported(f"{self.path} cannot be opened for another holder: {self.sole_holder()}")

    @abstractmethod
    def prepare(self, ranges: Sequence[tuple[Memory, int, int]]) -> Submission:
        """Return a submission for `submit`: command buffers as (memory, first byte, bytes), in
        order."""

    @abstractmethod
    def reset_state(self) -> ResetState:
        """Return whether our context was lost. The kernel driver clears this state on a read."""

    def fault(self) -> Fault | None:
        """The last fault of our context, where the kernel driver describes faults."""
        return None

    @abstractmethod
    def progress(self) -> dict[str, object]:
        """Return the progress of the context, for reports."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for memory in list(self.memories):
            if memory.mapping is not None:
                memory.mapping.close()
        self.node.close()
        for memory in list(self.memories):
            memory.imported = None  # from here on no kernel driver refers to it


class Submission(ABC):
    """One ioctl's argument. Its result shows in place: an exception after the kernel driver has
    taken it does not make it be given twice."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Return the kernel driver's number of the submission; 0 while it has none."""

    @abstractmethod
    def submit(self) -> None:
        """Give it, unless it has been."""

    @abstractmethod
    def again(self) -> Submission | None:
        """Another submission of the same ranges, at the cost of a copy. None where it must be made
        by `prepare`: the context is another one, or memory that it names has come or gone."""


def address_of(buffer: bytearray | memoryview) -> int:
    """Where a buffer lies in this process; it must not be resized or freed meanwhile."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


# Of numbers that have two names, the one that the kernel's sources use.
_NAMES = {errno.EDEADLK: "EDEADLK", errno.EAGAIN: "EAGAIN", errno.EOPNOTSUPP: "EOPNOTSUPP"}


def refused(call: str, error: OSError, **facts: object) -> UgpuError:
    """The error for what a kernel driver answers."""
    code = error.errno or 0
    name = _NAMES.get(code) or errno.errorcode.get(code, str(code))
    if code in (errno.EDEADLK, errno.EPROTO):
        return ChipError(f"{call}: the context was invalidated by a fault", status=name, **facts)
    if code in (errno.ENOMEM, errno.ENOSPC):
        what = "memory" if code == errno.ENOMEM else "room (other programs may hold it)"
        return OutOfMemory(f"{call}: the kernel driver has no {what} left", status=name, **facts)
    if code in (errno.ENODEV, errno.ENXIO, errno.EIO):
        return DeviceLost(f"{call}: the GPU does not answer", status=name, **facts)
    if code in (errno.EACCES, errno.EPERM):
        return AccessDenied(f"{call} is not permitted", status=name, **facts)
    if code == errno.EBUSY:
        return DeviceBusy(f"{call}: the GPU is asleep or being reset", status=name, **facts)
    if code == errno.ETIMEDOUT:
        return DeviceHang(f"{call}: the context's queue stays full", status=name, **facts)
    if code in (errno.ENOTTY, errno.EOPNOTSUPP):
        return NotSupported(f"{call}: the kernel driver does not have this call", **facts)
    return DriverRefused(f"the kernel driver refused {call}", request=call, status=name, **facts)


def whole_pages(size: int) -> int:
    """`size` as allocated. BadArgument unless it is a positive int."""
    if size < 0:
        raise BadArgument("size must not be negative", size=size)
    return max(PAGE, -(-size // PAGE) * PAGE)
