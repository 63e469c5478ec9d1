"""The driver's interface to a kernel driver (KGSL or msm): memory, one context, submissions.

The kernel driver owns the GPU: page tables, the ring, power and resets. The submissions of a
context run in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import (
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
from ugpu.hcq.transport.node import Node, NodeMapping

PAGE = 4096
CACHE_LINE = 64  # bytes, of the Arm processors beside these GPUs


class Caching(enum.Enum):
    """How the host caches memory. COMBINED: stores are write-combined and visible to the GPU
    without `sync`; loads are slow. COHERENT: cached, and kept coherent by hardware. CACHED: needs
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
    """Identity of the GPU. chip_id: as the kernel driver reports it. gmem: bytes of on-chip
    memory."""

    chip_id: int
    gmem: int
    facts: dict[str, object]


@dataclass(frozen=True)
class Fault:
    """A page fault of our context, as the kernel driver describes it. kind: "translation",
    "permission", "external"; empty where it is not reported."""

    kind: str
    address: int | None = None
    access: str = ""


class Memory:
    """Memory shared by GPU and host. handle: the kernel driver's number, 0 when freed. size: whole
    pages. imported: the program's own bytes, where the memory was imported from them, kept alive
    until it is freed. Created and freed by a KernelInterface (`allocate` or an import)."""

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
        """Return whether this process can access the bytes; False for another driver's buffer."""
        return self.mapping is not None or self.imported is not None

    @property
    def view(self) -> memoryview:
        """Return the bytes."""
        if self.imported is not None:
            return self.imported
        assert self.mapping is not None and self.mapping.view is not None
        return self.mapping.view

    def close(self) -> None:
        """Unmap and free; idempotent. Errors of the kernel driver are ignored."""
        self.interface.free(self)

    def __repr__(self) -> str:
        return f"<Memory {self.handle}, {self.size} bytes at {self.address:#x}>"


class KernelInterface(ABC):
    """One open device file. `close` releases everything that was created through it; idempotent.

    A failed ioctl raises an error of hcq.errors (`refused`).
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

    #: why the device file does not exist
    missing = "the kernel driver is not loaded"

    def call(self, name: str, request: int, argument: bytearray | memoryview) -> None:
        """Make one ioctl and repeat it where a signal interrupted it. Raises the error from
        `refused`."""
        while True:
            try:
                self.node.ioctl(self.handle, request, argument)
                return
            except OSError as error:
                if error.errno not in (errno.EINTR, errno.EAGAIN):
                    raise refused(name, error) from error

    @abstractmethod
    def identify(self) -> Identity:
        """Read the identity of the GPU. NotSupported where the kernel driver is too old."""

    def memory_size(self) -> int | None:
        """Return the limit on the GPU's memory in bytes; None where the kernel reports none. The
        GPU has no memory of its own, and no call of its kernel drivers reports a limit. The limit
        is the machine's memory (MemTotal), part of which other programs need."""
        try:
            text = self.node.read_text("/proc/meminfo")
        except OSError:
            return None
        words = next((w for w in map(str.split, text.splitlines()) if w[:1] == ["MemTotal:"]), [])
        return int(words[1]) << 10 if words[2:] == ["kB"] and words[1].isdecimal() else None

    @abstractmethod
    def allocate(self, size: int, caching: Caching, *, read_only: bool = False) -> Memory:
        """Allocate memory and map it for GPU and host. read_only: for the GPU. Raises OutOfMemory
        when memory is exhausted; nothing stays allocated then."""

    def free(self, memory: Memory) -> None:
        """See Memory.close."""
        if memory.mapping is not None:
            memory.mapping.close()
            memory.mapping = None
        # An exception after the call makes `free` run again: the number may be reused by then.
        own = all(other is memory or other.handle != memory.handle for other in self.memories)
        if memory.handle and own and not self.closed:
            with contextlib.suppress(UgpuError):
                self.release(memory)
        memory.handle = 0
        memory.imported = None
        self.memories.pop(memory, None)

    @abstractmethod
    def release(self, memory: Memory) -> None:
        """Return memory to the kernel driver, by its number."""

    def sync(self, memory: Memory, start: int, size: int, *, to_gpu: bool) -> None:
        """Make the host's writes to CACHED memory visible to the GPU, or (not to_gpu) the GPU's
        writes visible to the host. No-op for other memory."""
        return

    def import_memory(self, data: memoryview, *, read_only: bool) -> Memory:
        """Map whole pages of this process for the GPU, without a copy. NotSupported where the
        kernel driver has no such import."""
        raise NotSupported(f"{self.path}: the kernel driver does not import memory of programs")

    def import_dma_buf(self, descriptor: int, size: int, *, read_only: bool) -> Memory:
        """Map another driver's buffer of `size` bytes. The kernel driver keeps the buffer alive, so
        the descriptor may be closed afterwards. NotSupported where the kernel driver has no such
        import."""
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
        """Create the context that submissions run in. There must be no context yet, or it must have
        been destroyed."""

    @abstractmethod
    def destroy_context(self) -> None:
        """Destroy the context, if there is one. The kernel driver waits for its work or aborts it.
        Raises nothing."""

    def sole_holder(self) -> str:
        """Return why this process cannot create a second context whose kernels cannot reach this
        one's memory; empty where `another` can."""
        return "its kernel driver gives a process one address space, and ugpud is one process"

    def another(self) -> KernelInterface:
        """Open the device file again with a separate address space, as another program would. The
        caller closes it. NotSupported where `sole_holder` returns a reason."""
        raise NotSupported(f"{self.path} cannot be opened for another holder: {self.sole_holder()}")

    @abstractmethod
    def prepare(self, ranges: Sequence[tuple[Memory, int, int]]) -> Submission:
        """Return a submission for `submit`: command buffers as (memory, first byte, bytes), in
        order."""

    @abstractmethod
    def reset_state(self) -> ResetState:
        """Return whether our context was lost. The kernel driver clears this state on a read."""

    def fault(self) -> Fault | None:
        """Return the last fault of our context; None where the kernel driver does not describe
        faults."""
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
            memory.imported = None  # the kernel driver no longer refers to it


class Submission(ABC):
    """The argument of one ioctl. The ioctl's result is stored in it, so that an exception after the
    kernel driver has accepted the submission does not cause a second one."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Return the kernel driver's number of the submission; 0 while it has none."""

    @abstractmethod
    def submit(self) -> None:
        """Submit to the kernel driver, unless already submitted."""

    @abstractmethod
    def again(self) -> Submission | None:
        """Return another submission of the same ranges, at the cost of a copy. None where `prepare`
        must make it: the context has changed, or memory that it refers to has been added or
        freed."""


def address_of(buffer: bytearray | memoryview) -> int:
    """Return a buffer's address in this process. The buffer must not be resized or freed
    meanwhile."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


# For error numbers with two names, the one that the kernel's sources use.
_NAMES = {errno.EDEADLK: "EDEADLK", errno.EAGAIN: "EAGAIN", errno.EOPNOTSUPP: "EOPNOTSUPP"}


def refused(call: str, error: OSError, **facts: object) -> UgpuError:
    """Return the error for an ioctl that failed with `error`."""
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
    """Return `size` rounded up to whole pages. BadArgument unless it is a positive int."""
    if size < 0:
        raise BadArgument("size must not be negative", size=size)
    return max(PAGE, -(-size // PAGE) * PAGE)
