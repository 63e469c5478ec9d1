"""Map queues, given by descriptors in memory, to slots, and unmap them.

Used by the kernel interface queue and the scheduler. Facts: Linux 6.12 gfx_v11_0.c
(gfx11_kiq_map_queues), nvd.h, mes_v11_api_def.h.
"""

from __future__ import annotations

from ugpu.virtual.amd.engines.cp.state import Kind, MappableSlot, MecState, QueueSlot, RunningQueue

SCHEDULER_PIPE, KIQ_PIPE = 0, 1  # of ME 3, the scheduler (mes.py)


class CannotMap(Exception):
    """The request cannot be carried out, for example because its queue does not exist."""


def slot_of(mec: MecState, kind: Kind, pipe: int, queue: int) -> QueueSlot:
    """Find the slot of a queue. Raises CannotMap."""
    pipes = mec.slots_of().get(kind, ())
    if pipe >= len(pipes) or queue >= len(pipes[pipe]) or (kind is Kind.SCHEDULER and pipe):
        raise CannotMap(f"{kind.name.lower()} queue {pipe}.{queue} does not exist")
    return pipes[pipe][queue]


def by_doorbell(mec: MecState, doorbell: int) -> QueueSlot:
    """Find the slot whose queue uses a doorbell (a dword index). Raises CannotMap."""
    kinds = mec.slots_of()
    for kind in (Kind.COMPUTE, Kind.SCHEDULER, Kind.GRAPHICS):
        for slot in (slot for pipe in kinds[kind] for slot in pipe):
            if slot.active is not None and slot.doorbell_dword() == doorbell:
                return slot
    raise CannotMap(f"no queue uses doorbell {doorbell:#x}")


def map_queue(slot: QueueSlot, doorbell: int, mqd: int, wptr: int) -> None:
    """Activate the queue of a descriptor. Raises CannotMap unless its doorbell is `doorbell`."""
    slot.map(mqd, wptr)
    if slot.active is not None and slot.doorbell_dword() != doorbell:
        raise CannotMap(
            f"expected doorbell {doorbell:#x} in the descriptor at {mqd:#x}, found "
            f"{slot.doorbell_dword():#x}"
        )


def unmapped(around: RunningQueue, slot: MappableSlot, *, reset: bool) -> None:
    """Unmap a slot's queue and wait until it has left the slot."""
    with around.mec.chip.lock:
        slot.unmap(reset=reset)
    while slot.active is not None:
        around.pause(1e-4)
