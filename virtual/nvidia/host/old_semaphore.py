"""Semaphores by SEMAPHOREA to SEMAPHORED, the methods before SEM_EXECUTE, which Linux uses.

Source: open-gpu-doc classes/host/clc46f.h, clc56f.h. Hopper has them no more.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.nv.abi import BitTable
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.semaphore import Operation, satisfied, store
from ugpu.virtual.nvidia.memory.faults import Client
from ugpu.virtual.nvidia.memory.space import AddressSpace

ACQUIRE, RELEASE, ACQ_GEQ, ACQ_AND = 1, 2, 4, 8
_MEANING = {
    ACQUIRE: Operation.ACQUIRE,
    ACQ_GEQ: Operation.ACQ_CIRC_GEQ,
    ACQ_AND: Operation.ACQ_AND,
}


def offsets(table: BitTable) -> tuple[int, ...]:
    """Return the offsets of the four methods; none if the class lacks them."""
    names = ("SEMAPHOREA", "SEMAPHOREB", "SEMAPHOREC", "SEMAPHORED")
    if any(name not in table for name in names):
        return ()
    return tuple(table.method(name).offset for name in names)


def execute(
    space: AddressSpace, address: int, payload: int, value: int, now: Callable[[], int]
) -> Callable[[], bool] | None:
    """Execute SEMAPHORED; return the condition to poll for an acquire."""
    operation = value & 0x1F
    if operation == RELEASE:
        small = bool(value >> 24 & 1)  # RELEASE_SIZE: 4 bytes, else 16 with the time
        store(space, Client.HOST, address, payload, 4, None if small else now())
        return None
    meaning = _MEANING.get(operation)
    if meaning is None:
        raise ChannelError(Xid.PBDMA_ERROR, f"SEMAPHORED operation {operation:#x} is not modelled")

    def passes() -> bool:
        return satisfied(meaning, space.read_word(address, 4, Client.HOST), payload, 32)

    return passes
