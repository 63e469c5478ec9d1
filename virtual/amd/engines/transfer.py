"""Move memory for an engine: the hub translates ranges into host runs, which are then copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.virtual.shader.memory import Access

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import HubPort
    from ugpu.virtual.amd.memory.access import Fault

CHUNK = 4 << 20  # bytes translated at once; a transfer can be stopped between chunks
POISON = b"\xdb"  # result of overlapping copies


def overlaps(source: int, destination: int, size: int) -> bool:
    """Return whether the source and destination of a copy overlap."""
    return source < destination + size and destination < source + size


def copy(
    hub: HubPort,
    vmid: int,
    source: int,
    destination: int,
    size: int,
    client: int,
    check: Callable[[], None],
) -> list[Fault]:
    """Copy between ranges that do not overlap; return the first faults of each chunk.

    Bytes whose source faults read as zeros; bytes whose destination faults are not written. `check`
    is called before each chunk with the chip's lock held, and may raise.
    """
    faults: list[Fault] = []
    while size:
        length = min(size, CHUNK)
        faults += _copy_chunk(hub, vmid, source, destination, length, client, check)
        source, destination, size = source + length, destination + length, size - length
    return faults


def _copy_chunk(
    hub: HubPort,
    vmid: int,
    source: int,
    destination: int,
    size: int,
    client: int,
    check: Callable[[], None],
) -> list[Fault]:
    with hub.chip.lock:
        check()
        sources, bad_source = hub.pieces(vmid, source, size, Access.READ, client)
        targets, bad_target = hub.pieces(vmid, destination, size, Access.WRITE, client)
    # RACE: memory may be freed and reused during the move, as during a board's transfer in flight.
    # It stays mapped in this process as long as the chip exists (see dma.DmaPool), so the lock,
    # which register accesses need, is not held while bytes move.
    at = 0
    here, left = sources[0]
    for host, length in targets:
        while length:
            if not left:
                at += 1
                here, left = sources[at]
            step = min(left, length)
            if host > 0:
                if here > 0:
                    ctypes.memmove(host, here, step)
                else:
                    ctypes.memset(host, 0 if here == 0 else 0xFF, step)
                host += step
            if here > 0:
                here += step
            left -= step
            length -= step
    return [fault for fault in (bad_source, bad_target) if fault is not None]


def fill(
    hub: HubPort,
    vmid: int,
    destination: int,
    pattern: bytes,
    size: int,
    client: int,
    check: Callable[[], None],
) -> list[Fault]:
    """Fill with a repeated pattern of 1, 2 or 4 bytes; return the first faults of each chunk."""
    faults: list[Fault] = []
    block = pattern * (min(size, CHUNK) // len(pattern) + 1)
    while size:
        length = min(size, CHUNK)
        with hub.chip.lock:
            check()
            fault = hub.write(vmid, destination, memoryview(block)[:length], client)
        if fault is not None:
            faults.append(fault)
        destination, size = destination + length, size - length
    return faults
