"""The caller's memory: pointers in parameter blocks are addresses in this process."""

from __future__ import annotations

from ugpu.virtual.node.process import ProcessMemory
from ugpu.virtual.nvidia.status import RmError, Status

_MEMORY = ProcessMemory()


def copy_in(address: int, size: int) -> bytearray:
    """Read the caller's memory. Raises RmError INVALID_POINTER if it is not mapped."""
    try:
        return bytearray(_MEMORY.read(address, size))
    except OSError as error:
        raise RmError(Status.INVALID_POINTER, f"cannot read at {address:#x}") from error


def copy_out(address: int, data: bytes | bytearray | memoryview) -> None:
    """Write the caller's memory. Raises RmError INVALID_POINTER if not mapped or read-only."""
    try:
        _MEMORY.write(address, bytes(data))
    except OSError as error:
        raise RmError(Status.INVALID_POINTER, f"cannot write at {address:#x}") from error
