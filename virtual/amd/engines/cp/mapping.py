"""Map queues, given by descriptors in memory, to slots, and unmap them.

Used by the kernel interface queue and the scheduler. Facts: Linux 6.12 gfx_v11_0.c
(gfx11_kiq_map_queues), nvd.h, mes_v11_api_def.h.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

from ugpu.virtual.amd.engines.cp.queue import ComputeQueue
from ugpu.virtual.amd.engines.sdma.slot import SdmaSlot

if TYPE_CHECKING:
    from ugpu.virtual.amd.engines.cp.graphics import GraphicsSlot
    from ugpu.virtual.amd.engines.cp.hqd import Slot
    from ugpu.virtual.amd.engines.cp.mec import Mec

    KernelSlot: TypeAlias = Slot | GraphicsSlot
    AnySlot: TypeAlias = Slot | GraphicsSlot | SdmaSlot

SCHEDULER_PIPE, KIQ_PIPE = 0, 1  # of ME 3, the scheduler (mes.py)


class Kind(enum.IntEnum):
    """Kinds of queue that can be mapped; the first three have the scheduler's numbers."""

    GRAPHICS = 0
    COMPUTE = 1
    SDMA = 2
    SCHEDULER = 3


class CannotMap(Exception):
    """The request cannot be carried out, for example because its queue does not exist."""


def slot_of(mec: Mec, kind: Kind, pipe: int, queue: int) -> KernelSlot:
    """Find the slot of a queue. Raises CannotMap."""
    if kind is Kind.GRAPHICS and pipe == 0 and queue < len(mec.graphics.slots):
        return mec.graphics.slots[queue]
    if kind is Kind.COMPUTE and pipe < len(mec.slots) and queue < len(mec.slots[pipe]):
        return mec.slots[pipe][queue]
    if kind is Kind.SCHEDULER and (pipe, queue) == (SCHEDULER_PIPE, 0):
        return mec.scheduler.slots[pipe]
    raise CannotMap(f"{kind.name.lower()} queue {pipe}.{queue} does not exist")


def by_doorbell(mec: Mec, doorbell: int) -> KernelSlot:
    """Find the slot whose queue uses a doorbell (a dword index). Raises CannotMap."""
    slots: list[KernelSlot] = [
        *(slot for pipe in mec.slots for slot in pipe),
        *mec.scheduler.slots,
        *mec.graphics.slots,
    ]
    for slot in slots:
        if slot.active is not None and slot.doorbell_dword() == doorbell:
            return slot
    raise CannotMap(f"no queue uses doorbell {doorbell:#x}")


def map_queue(slot: KernelSlot, doorbell: int, mqd: int, wptr: int) -> None:
    """Activate the queue of a descriptor. Raises CannotMap unless its doorbell is `doorbell`."""
    slot.map(mqd, wptr)
    if slot.active is not None and slot.doorbell_dword() != doorbell:
        raise CannotMap(
            f"expected doorbell {doorbell:#x} in the descriptor at {mqd:#x}, found "
            f"{slot.doorbell_dword():#x}"
        )


def unmapped(around: ComputeQueue, slot: AnySlot, *, reset: bool) -> None:
    """Unmap a slot's queue and wait until it has left the slot."""
    with around.mec.chip.lock:
        if isinstance(slot, SdmaSlot):
            slot.unmap()
        else:
            slot.unmap(reset=reset)
    while slot.active is not None:
        around.pause(1e-4)
