"""Files that a peer shares: checked, mapped, and taken away without ever leaving a hole.

Engines of a model may be about to touch memory of a client while that client takes it back or
dies. Its pages are therefore never unmapped: anonymous memory takes their place, in one step.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass

from hcq.errors import BadArgument, OutOfMemory

PAGE = 4096
# linux/fcntl.h; fcntl of Python names them from 3.8 on for Linux.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # asm-generic/mman-common.h
_FAILED = ctypes.c_void_p(-1).value


def sealed_memory(name: str, size: int) -> int:
    """A descriptor of new zeroed memory whose size can never change; the caller closes it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(descriptor)
        raise OutOfMemory("no memory to share", size=size) from error
    return descriptor


def check_shared(descriptor: int, offset: int, size: int) -> None:
    """BadArgument unless the bytes are there and stay there.

    A file that its owner can shrink would end our process at the next access (SIGBUS), so only
    memory that is sealed against it is taken: memfd_create(2), F_SEAL_SHRINK.
    """
    if offset % PAGE or size % PAGE or size <= 0 or offset < 0:
        raise BadArgument("shared memory is given in pages", offset=offset, size=size)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise BadArgument("shared memory must be a memfd that is sealed against shrinking")
    length = os.fstat(descriptor).st_size
    if offset + size > length:
        raise BadArgument("the file is shorter than that", offset=offset, size=size, length=length)


@dataclass
class _File:
    """A whole mapped file; `users` regions of it are in use."""

    address: int
    length: int
    users: int = 0


class _Places:
    """Addresses that files had once, and that anonymous memory holds until the next file of that
    length comes. Of the whole process, as addresses are: what a client leaves, another takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, deque[int]] = {}

    def take(self, length: int) -> int:
        """The place that was left longest ago; 0 if there is none."""
        with self._lock:
            places = self._free.get(length)
            return places.popleft() if places else 0

    def give(self, address: int, length: int) -> None:
        with self._lock:
            self._free.setdefault(length, deque()).append(address)


_PLACES = _Places()


class SharedFiles:
    """Files of one client, each mapped once and whole: a client that maps single pages of its
    memory (as under a virtual IOMMU) costs no mapping of ours each."""

    def __init__(self) -> None:
        # Any: ctypes functions take and give what their argtypes say
        library = ctypes.CDLL(None, use_errno=True)
        self._mmap = library.mmap64
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_int64,
        )  # fmt: skip
        self._files: dict[tuple[int, int, bool], _File] = {}

    def map(
        self, descriptor: int, offset: int, size: int, *, writable: bool
    ) -> tuple[int, tuple[int, int, bool]]:
        """(host address of the region, key to give to `release`). The descriptor stays the
        caller's. BadArgument for a region that is not there, OutOfMemory for no address space."""
        check_shared(descriptor, offset, size)
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino, writable)
        file = self._files.get(key)
        if file is None or offset + size > file.length:
            if file is not None:
                raise BadArgument("the file has grown since it was first shared")
            file = self._files[key] = self._map_whole(descriptor, status.st_size, writable)
        file.users += 1
        return file.address + offset, key

    def _map_whole(self, descriptor: int, length: int, writable: bool) -> _File:
        length = -(-length // PAGE) * PAGE
        # Memory that the device may only read is a private copy: a stray write ends there.
        flags = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
        place = _PLACES.take(length)
        if place:
            flags |= _MAP_FIXED
        try:
            return _File(self._place(place, length, flags | _MAP_NORESERVE, descriptor), length)
        except BaseException:
            if place:
                _PLACES.give(place, length)
            raise

    def _place(self, address: int, length: int, flags: int, descriptor: int) -> int:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        found = self._mmap(address or None, length, access, flags, descriptor, 0)
        if found == _FAILED or found is None:
            number = ctypes.get_errno()
            if number == errno.EACCES:
                raise BadArgument("the file may not be mapped for what it is offered for")
            raise OutOfMemory("the shared file does not map", size=length, reason=number)
        return int(found)

    def release(self, key: tuple[int, int, bool]) -> None:
        """One region of a file is no longer used; the last one gives the file back."""
        file = self._files[key]
        file.users -= 1
        if not file.users:
            del self._files[key]
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
            self._place(file.address, file.length, flags, -1)
            _PLACES.give(file.address, file.length)
