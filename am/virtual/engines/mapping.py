"""Put queues that a descriptor in memory describes into slots, and take them out again.

The kernel interface queue and the scheduler both do that. Facts: Linux 6.12 gfx_v11_0.c
(gfx11_kiq_map_queues), nvd.h, mes_v11_api_def.h.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from am.virtual.engines import mes
from am.virtual.engines.compute_queue import ComputeQueue

if TYPE_CHECKING:
    from am.virtual.engines.graphics import GraphicsSlot
    from am.virtual.engines.hqd import Slot
    from am.virtual.engines.mec import Mec


class Kind(enum.IntEnum):
    """The kinds of queue that can be mapped here (of SDMA the kernel programs its own)."""

    GRAPHICS = 0
    COMPUTE = 1
    SCHEDULER = 2


class CannotMap(Exception):
    """The request names a queue that is not there."""


def slot_of(mec: Mec, kind: Kind, pipe: int, queue: int) -> Slot | GraphicsSlot:
    """Find the slot of a queue. Raises CannotMap."""
    if kind is Kind.GRAPHICS and (pipe, queue) == (0, 0):
        return mec.graphics.slot
    if kind is Kind.COMPUTE and pipe < len(mec.slots) and queue < len(mec.slots[pipe]):
        return mec.slots[pipe][queue]
    if kind is Kind.SCHEDULER and (pipe, queue) == (mes.SCHEDULER_PIPE, 0):
        return mec.scheduler.slots[pipe]
    raise CannotMap(f"no {kind.name.lower()} queue {pipe}.{queue}")


def by_doorbell(mec: Mec, doorbell: int) -> Slot | GraphicsSlot:
    """Find the slot whose queue listens to a doorbell (a dword index). Raises CannotMap."""
    slots: list[Slot | GraphicsSlot] = [
        *(slot for pipe in mec.slots for slot in pipe),
        *mec.scheduler.slots,
        mec.graphics.slot,
    ]
    for slot in slots:
        if slot.active is not None and slot.doorbell() == doorbell:
            return slot
    raise CannotMap(f"no queue listens to doorbell {doorbell:#x}")


def map_queue(slot: Slot | GraphicsSlot, doorbell: int, mqd: int, wptr: int) -> None:
    """Activate the queue of a descriptor; its doorbell must be the one the request names."""
    slot.map(mqd, wptr)
    if slot.active is not None and slot.doorbell() != doorbell:
        raise CannotMap(
            f"the descriptor at {mqd:#x} has doorbell {slot.doorbell():#x}, not {doorbell:#x}"
        )


def unmapped(around: ComputeQueue, slot: Slot | GraphicsSlot, *, reset: bool) -> None:
    """Take a slot's queue out and wait until it has gone."""
    with around.mec.chip.lock:
        slot.unmap(reset=reset)
    while slot.active is not None:
        around.pause(1e-4)
