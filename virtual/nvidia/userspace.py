"""The caller's memory, accessed as a kernel does: an unmapped address is an error, not a crash.

Pointers in parameter blocks are addresses in this process. The model accesses them through
process_vm_readv and process_vm_writev of its own process (Linux, man 2 process_vm_readv).
"""

from __future__ import annotations

import ctypes
import functools
import os

from ugpu.virtual.nvidia.status import RmError, Status


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _transfer(name: str, local: int, remote: int, size: int) -> bool:
    if not size:
        return True
    mine, theirs = _Iovec(local, size), _Iovec(remote, size)
    function = getattr(_libc(), name)
    function.restype = ctypes.c_ssize_t
    done = function(
        os.getpid(), ctypes.byref(mine), ctypes.c_ulong(1), ctypes.byref(theirs), ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )  # fmt: skip
    return bool(done == size)


def copy_in(address: int, size: int) -> bytearray:
    """Read the caller's memory. Raises RmError INVALID_POINTER if it is not mapped."""
    buffer = bytearray(size)
    view = (ctypes.c_char * size).from_buffer(buffer)
    if not _transfer("process_vm_readv", ctypes.addressof(view), address, size):
        raise RmError(Status.INVALID_POINTER, f"cannot read at {address:#x}")
    del view
    return buffer


def copy_out(address: int, data: bytes | bytearray | memoryview) -> None:
    """Write the caller's memory. Raises RmError INVALID_POINTER if not mapped or read-only."""
    block = bytearray(data)
    view = (ctypes.c_char * len(block)).from_buffer(block)
    if not _transfer("process_vm_writev", ctypes.addressof(view), address, len(block)):
        raise RmError(Status.INVALID_POINTER, f"cannot write at {address:#x}")
    del view
