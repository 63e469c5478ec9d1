"""Files that a peer shares: checked, mapped, and unmapped without leaving a hole.

A model's engines may be about to access a client's memory while the client takes it back or dies.
Its pages are therefore never unmapped: anonymous memory replaces them, in one step.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass

from ugpu.hcq.errors import BadArgument, OutOfMemory

log = logging.getLogger(__name__)

PAGE = 4096
# linux/fcntl.h; fcntl of Python names them from 3.8 on for Linux.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # asm-generic/mman-common.h
_FAILED = ctypes.c_void_p(-1).value
_TMPFS = 0x01021994  # linux/magic.h, TMPFS_MAGIC
# Limits of one client. A process may have 65,530 mappings (vm.max_map_count), and we make two per
# file; addresses end at 2^47, of which a client's files may take this much for each power of two.
MOST_FILES = 8192
MOST_BYTES = 1 << 41

_library = ctypes.CDLL(None, use_errno=True)
_mmap = _library.mmap64
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip


def sealed_memory(name: str, size: int) -> int:
    """Return a descriptor of new zeroed memory whose size can never change; the caller closes
    it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError as error:
        os.close(descriptor)
        raise OutOfMemory(
            "expected a file descriptor of shared memory, got none", size=size
        ) from error
    return descriptor


def check_shared(descriptor: int, offset: int, size: int) -> None:
    """Raise BadArgument unless the bytes exist and will stay.

    A file that its owner can shrink would end our process at the next access (SIGBUS), so only
    memory that is sealed against shrinking is accepted: memfd_create(2), F_SEAL_SHRINK. Memory of
    huge pages (MFD_HUGETLB) is not accepted either: if none is free for an untouched page, touching
    it also ends our process, and the client controls how many are free.
    """
    if offset % PAGE or size % PAGE or size <= 0 or offset < 0:
        raise BadArgument("shared memory must be whole pages", offset=offset, size=size)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise BadArgument("shared memory must be a memfd sealed against shrinking")
    if _file_system(descriptor) != _TMPFS:
        raise BadArgument("shared memory must be a memfd of ordinary pages, got huge ones")
    length = os.fstat(descriptor).st_size
    if offset + size > length:
        raise BadArgument(
            "the file is shorter than the requested range", offset=offset, size=size, length=length
        )


def _file_system(descriptor: int) -> int:
    """Return f_type of statfs(2), the first member of its structure on all 64-bit processors."""
    room = (ctypes.c_ulong * 32)()
    if _library.fstatfs(ctypes.c_int(descriptor), room):
        raise BadArgument("the file's status cannot be read", reason=ctypes.get_errno())
    return int(room[0])


@dataclass
class _File:
    """A whole mapped file; `users` regions of it are in use."""

    address: int
    length: int
    users: int = 0


class _Places:
    """Addresses of former file mappings, held by anonymous memory until the next file that fits.
    They belong to the whole process, as addresses do: one client's former addresses are used for
    another. Lengths are powers of two, so that the number of leftover addresses does not grow with
    the variety of lengths that clients choose."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, deque[int]] = {}

    def take(self, length: int) -> int:
        """Return the address that has been free longest, or a new one; OutOfMemory."""
        with self._lock:
            places = self._free.get(length)
            if places:
                return places.popleft()
        return _map(0, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    def give(self, address: int, length: int) -> None:
        with self._lock:
            self._free.setdefault(length, deque()).append(address)


_PLACES = _Places()


def _map(address: int, length: int, flags: int, descriptor: int) -> int:
    """Map at a new address, or over the mapping at `address`."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    flags |= _MAP_NORESERVE | (_MAP_FIXED if address else 0)
    mapped = _mmap(address or None, length, access, flags, descriptor, 0)
    if mapped == _FAILED or mapped is None:
        number = ctypes.get_errno()
        if number == errno.EACCES:
            raise BadArgument("the file's access mode does not allow the requested mapping")
        raise OutOfMemory("the shared file cannot be mapped", size=length, reason=number)
    return int(mapped)


class SharedFiles:
    """Files of one client, each mapped once and whole: a client that maps single pages of its
    memory (as under a virtual IOMMU) does not cost one mapping per page."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int, bool], _File] = {}
        self._bytes = 0  # of their places

    def map(
        self, descriptor: int, offset: int, size: int, *, writable: bool
    ) -> tuple[int, tuple[int, int, bool]]:
        """Return (host address of the region, key for `release`). The caller keeps the descriptor.
        BadArgument for a region that does not exist, OutOfMemory without address space."""
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
        place = _place_for(length)
        if len(self._files) >= MOST_FILES or self._bytes + place > MOST_BYTES:
            raise OutOfMemory(
                f"a client may share at most {MOST_FILES} files and {MOST_BYTES >> 40} TiB",
                files=len(self._files), size=length,
            )  # fmt: skip
        address = _PLACES.take(place)
        # Memory that the device may only read is mapped as a private copy: it absorbs stray writes.
        try:
            _map(address, length, mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE, descriptor)
        except BaseException:
            _PLACES.give(address, place)
            raise
        self._bytes += place
        return _File(address, length)

    def release(self, key: tuple[int, int, bool]) -> None:
        """Release one region of a file; releasing the last one unmaps the file."""
        file = self._files[key]
        file.users -= 1
        if file.users:
            return
        del self._files[key]
        place = _place_for(file.length)
        self._bytes -= place
        try:
            _map(file.address, place, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        except OutOfMemory as error:
            # The file stays where it is, and its place is never used again.
            log.error("a client's memory cannot be released: %s", error)
            return
        _PLACES.give(file.address, place)


def _place_for(length: int) -> int:
    return 1 << (length - 1).bit_length()
