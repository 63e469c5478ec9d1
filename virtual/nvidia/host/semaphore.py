"""Semaphores of the host unit: acquire, release, reduction.

Source: open-gpu-doc classes/host/clc56f.h, SEM_EXECUTE; open-gpu-kernel-modules 580.142
src/common/sdk/nvidia/inc/class/clc86f.h for Hopper's wider addresses.
"""

from __future__ import annotations

import ctypes
import enum

from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess
from ugpu.virtual.nvidia.memory.space import AddressSpace


class Operation(enum.IntEnum):
    """SEM_EXECUTE_OPERATION."""

    ACQUIRE = 0
    RELEASE = 1
    ACQ_STRICT_GEQ = 2
    ACQ_CIRC_GEQ = 3
    ACQ_AND = 4
    ACQ_NOR = 5
    REDUCTION = 6


def satisfied(operation: Operation, value: int, payload: int, bits: int) -> bool:
    """Return whether an acquire with `payload` passes if memory contains `value`."""
    mask = (1 << bits) - 1
    value &= mask
    payload &= mask
    if operation is Operation.ACQUIRE:
        return value == payload
    if operation is Operation.ACQ_STRICT_GEQ:
        return value >= payload
    if operation is Operation.ACQ_CIRC_GEQ:
        return (value - payload & mask) >> (bits - 1) == 0
    if operation is Operation.ACQ_AND:
        return value & payload != 0
    return value | payload != mask  # ACQ_NOR: a bit is clear in both


def reduce(code: int, old: int, value: int, bits: int, signed: bool) -> int:
    """Apply SEM_EXECUTE_REDUCTION: IMIN, IMAX, IXOR, IAND, IOR, IADD, INC, DEC."""
    mask = (1 << bits) - 1

    def number(raw: int) -> int:
        return raw - (1 << bits) if signed and raw >> (bits - 1) else raw

    if code == 0:
        return old if number(old) <= number(value) else value
    if code == 1:
        return old if number(old) >= number(value) else value
    if code == 2:
        return old ^ value
    if code == 3:
        return old & value
    if code == 4:
        return old | value
    if code == 5:
        return old + value & mask
    if code == 6:
        return 0 if old >= value else old + 1
    return value if old == 0 or old > value else old - 1


def store(
    space: AddressSpace, client: Client, address: int, payload: int, size: int, stamp: int | None
) -> None:
    """Write a release: `size` bytes of payload, or with `stamp` 16 bytes: payload, time in ns.

    The payload becomes visible last, because waiters read the rest after it.
    """
    total = 16 if stamp is not None else size
    if address % total:
        raise ChannelError(
            Xid.PBDMA_ERROR, f"semaphore at {address:#x} is not aligned to {total} bytes"
        )
    (host, length), *rest = space.runs(address, total, FaultAccess.WRITE, client)
    assert length == total and not rest
    if stamp is not None:
        ctypes.c_uint64.from_address(host + 8).value = stamp
        ctypes.c_uint64.from_address(host).value = payload
    elif size == 8:
        ctypes.c_uint64.from_address(host).value = payload
    else:
        ctypes.c_uint32.from_address(host).value = payload & 0xFFFF_FFFF
