"""Memory of the calling program, as the kernel accesses it: an unmapped address is an error, not a
crash (Linux, man 2 process_vm_readv)."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Protocol

from ugpu.virtual.node.refusal import refused

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.process_vm_readv.restype = _LIBC.process_vm_writev.restype = ctypes.c_ssize_t


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class UserMemory(Protocol):
    """Copies from and to a program; OSError (EFAULT) for memory that it has not mapped."""

    def read(self, address: int, size: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...


class ProcessMemory:
    """The memory of a process, this one by default."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid

    def read(self, address: int, size: int) -> bytes:
        """Copy from the process."""
        buffer = ctypes.create_string_buffer(size)
        self._move(_LIBC.process_vm_readv, ctypes.addressof(buffer), address, size)
        return buffer.raw

    def write(self, address: int, data: bytes) -> None:
        """Copy to the process."""
        buffer = ctypes.create_string_buffer(data, len(data))
        self._move(_LIBC.process_vm_writev, ctypes.addressof(buffer), address, len(data))

    def _move(self, call: ctypes._NamedFuncPointer, here: int, there: int, size: int) -> None:
        if not size:
            return
        mine, its = _Piece(here, size), _Piece(there, size)
        pid = self._pid or os.getpid()
        done = call(pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)
        if done != size:
            code = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise refused(code, f"{size} bytes at {there:#x}")


def need_mapped(address: int, size: int, *, writable: bool) -> None:
    """Raise OSError (EFAULT) unless this process has mapped all of a range as get_user_pages
    requires: readable, and writable where the GPU writes."""
    end = address + size
    with open("/proc/self/maps") as maps:
        for line in maps:  # in the order of their addresses
            where, access = line.split(maxsplit=2)[:2]
            first, last = (int(part, 16) for part in where.split("-"))
            if first <= address < last and access[0] == "r" and (access[1] == "w" or not writable):
                address = last
    if address < end:
        what = "writable " if writable else ""
        raise OSError(errno.EFAULT, f"no {what}memory at {address:#x}")
