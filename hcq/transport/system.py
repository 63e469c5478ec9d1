"""The system calls of transports, in one class, so that tests can replace the kernel.

`root` stands for "/": a test's tree of /sys, /proc and /dev below another folder acts as a machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu.hcq.errors import OutOfMemory

FILES_REMEDY = "raise the limit of ulimit -n"
MEMORY_REMEDY = "free memory of this machine: close other programs"
MEMLOCK_REMEDY = (
    'echo "$USER - memlock unlimited" | sudo tee /etc/security/limits.d/ugpu.conf   # log in again'
)
_MAP_HUGETLB = 0x40000  # Linux include/uapi/asm-generic/mman-common.h


@contextlib.contextmanager
def _as_the_kernel() -> Iterator[None]:
    """Convert errors: Python itself rejects some sizes and offsets of a mapping; raise for these
    the same error that Linux raises for others."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise OSError(errno.EINVAL, str(error)) from error


def check_files(error: OSError, what: object) -> None:
    """Raise OutOfMemory if `what` did not open because no more files may be open."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise OutOfMemory(
            f"cannot open {what}: too many open files", remedy=FILES_REMEDY
        ) from error


class System:
    """One machine's kernel. Every method is one system call and raises OSError as the call does."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Return a path given from the root, such as "sys/bus/pci"."""
        return self.root / name

    @property
    def privileged(self) -> bool:
        """Return whether this process runs as root."""
        return os.geteuid() == 0

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        return os.open(path, flags | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def ioctl(self, descriptor: int, request: int, argument: bytearray | memoryview | int) -> int:
        """Return the call's result; `argument` is written in place."""
        return fcntl.ioctl(descriptor, request, argument)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def map(self, descriptor: int, size: int, offset: int) -> mmap.mmap:
        """Map a descriptor shared, readable and writable."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        with _as_the_kernel():
            return mmap.mmap(descriptor, size, mmap.MAP_SHARED, access, offset=offset)

    def anonymous(self, size: int, *, huge: bool = False) -> mmap.mmap:
        """Map zero-filled private memory; `huge` takes it from the reserved huge pages, or
        fails."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_HUGETLB if huge else 0)
        with _as_the_kernel():
            return mmap.mmap(-1, size, flags, mmap.PROT_READ | mmap.PROT_WRITE)

    def lock_memory(self, address: int, size: int) -> None:
        """Keep pages in memory (mlock)."""
        library = ctypes.CDLL(None, use_errno=True)
        if library.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def eventfd(self) -> int:
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def poll(self, descriptors: Sequence[int], limit_s: float) -> list[int]:
        """Return the descriptors that become readable within `limit_s`."""
        poller = select.poll()
        for descriptor in descriptors:
            poller.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poller.poll(max(0.0, limit_s) * 1e3)]

    def read_text(self, name: str) -> str | None:
        """Return a small text file, stripped; None if it does not exist or cannot be read."""
        try:
            # A FIFO in its place must not block us.
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(descriptor, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def write_text(self, path: Path, text: str) -> None:
        """Write an attribute file in one call, as sysfs requires."""
        descriptor = self.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, text.encode("ascii"))
        finally:
            self.close(descriptor)
