"""Queues of processes under the scheduler: each process has a VMID, each queue has a slot.

Every queue keeps its slot from ADD_QUEUE to REMOVE_QUEUE, unless SUSPEND takes it away: RESUME
gives it one again, with the pointers that the descriptor holds. The model has no time slices: it
refuses a queue when all slots or VMIDs are in use (a board would time-share them). Facts: Linux 6.12
mes_v11_0.c, mes_v11_api_def.h, gfxhub_v3_0.c (registers of a context).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ugpu.virtual.amd.engines.cp.mapping import CannotMap
from ugpu.virtual.amd.engines.cp.state import Kind, MappableSlot, MecState

VMIDS = 16
PAGE_SHIFT = 12
ROOT_VALID = 1  # added here: the request contains only the address of the root directory


@dataclass(frozen=True)
class Resources:
    """Resources from SET_HW_RSRC: a mask of VMIDs, and masks of queues per pipe or engine."""

    vmids: int
    compute: tuple[int, ...]
    graphics: tuple[int, ...]
    sdma: tuple[int, ...]


@dataclass(frozen=True)
class Process:
    """A process and its address space in bytes. table: root directory as in a context register."""

    number: int  # PASID
    context: int  # address of the scheduler's data for the process; identifies the process
    table: int
    start: int
    end: int
    control: int  # GCVM_CONTEXTn_CNTL


@dataclass
class Scheduled:
    """A queue of a process. gang: address of its gang's context. slot: None while it has none.
    lost: RESET has ended it, and only REMOVE_QUEUE may follow."""

    process: Process
    kind: Kind
    doorbell: int
    mqd: int
    wptr: int
    gang: int
    slot: MappableSlot | None = None
    lost: bool = False


class Processes:
    """The scheduler's processes and queues. All methods run with the chip's lock held."""

    def __init__(self, mec: MecState, resources: Resources) -> None:
        self._mec = mec
        self._resources = resources
        self._vmids: dict[int, int] = {}  # VMID by process context
        self._queues: dict[int, Scheduled] = {}  # by doorbell

    def add(
        self, process: Process, kind: Kind, doorbell: int, mqd: int, wptr: int, gang: int = 0
    ) -> None:
        """Put a queue into a free slot. Raises CannotMap."""
        if doorbell in self._queues:
            raise CannotMap(f"doorbell {doorbell:#x} is in use")
        queue = Scheduled(process, kind, doorbell, mqd, wptr, gang)
        self._place(queue)
        self._queues[doorbell] = queue

    def _place(self, queue: Scheduled) -> None:
        slot = next((slot for slot in self._slots(queue.kind) if slot.active is None), None)
        if slot is None:
            raise CannotMap(f"no free slot for a {queue.kind.name.lower()} queue")
        slot.map(queue.mqd, queue.wptr, self._vmid(queue.process))
        if slot.active is None or slot.doorbell_dword() != queue.doorbell:
            raise CannotMap(
                f"the doorbell in the descriptor at {queue.mqd:#x} differs from {queue.doorbell:#x}"
            )
        queue.slot = slot

    def remove(self, doorbell: int) -> MappableSlot | None:
        """Remove a queue and return its slot, if it has one, which the caller unmaps. Raises
        CannotMap."""
        if doorbell not in self._queues:
            raise CannotMap(f"no process has a queue with doorbell {doorbell:#x}")
        queue = self._queues.pop(doorbell)
        context = queue.process.context
        if all(other.process.context != context for other in self._queues.values()):
            del self._vmids[context]
        return queue.slot

    def suspend(self, gang: int | None) -> list[MappableSlot]:
        """Take the slots of a gang's queues, or of all; return them, which the caller unmaps.
        Raises CannotMap."""
        slots = []
        for queue in self._gang(gang):
            if queue.slot is not None:
                slots.append(queue.slot)
                queue.slot = None
        return slots

    def resume(self, gang: int | None) -> None:
        """Give slots to a gang's queues, or to all, that have none. Raises CannotMap."""
        for queue in self._gang(gang):
            if queue.slot is None and not queue.lost:
                self._place(queue)

    def _gang(self, gang: int | None) -> list[Scheduled]:
        queues = [one for one in self._queues.values() if gang is None or one.gang == gang]
        if gang is not None and not queues:
            raise CannotMap(f"no queue is of the gang {gang:#x}")
        return queues

    def lose(self, doorbell: int) -> MappableSlot | None:
        """Take the slot of a queue for good; None if no process has such a queue."""
        queue = self._queues.get(doorbell)
        if queue is None or queue.slot is None:
            return None
        slot, queue.slot, queue.lost = queue.slot, None, True
        return slot

    def waits(self, doorbell: int) -> bool:
        """Return whether a doorbell is of a queue without a slot."""
        queue = self._queues.get(doorbell)
        return queue is not None and queue.slot is None

    def _slots(self, kind: Kind) -> Iterator[MappableSlot]:
        """Yield the slots of a kind that the scheduler may use."""
        units: Sequence[Sequence[MappableSlot]]
        if kind is Kind.COMPUTE:
            units, masks = self._mec.slots_of()[kind], self._resources.compute
        elif kind is Kind.GRAPHICS:
            units, masks = self._mec.slots_of()[kind], self._resources.graphics
        else:
            units, masks = self._mec.copy_slots(), self._resources.sdma
        for slots, mask in zip(units, masks, strict=False):
            yield from (slot for number, slot in enumerate(slots) if mask >> number & 1)

    def _vmid(self, process: Process) -> int:
        """Return the VMID of a process; assign one and program its context if it has none."""
        if process.context in self._vmids:
            return self._vmids[process.context]
        taken = set(self._vmids.values())
        free = [
            vmid
            for vmid in range(1, VMIDS)
            if self._resources.vmids >> vmid & 1 and vmid not in taken
        ]
        if not free:
            raise CannotMap("no free VMID")
        vmid = self._vmids[process.context] = free[0]
        name = f"GCVM_CONTEXT{vmid}_PAGE_TABLE_"
        self._program(name + "BASE_ADDR", process.table | ROOT_VALID)
        self._program(name + "START_ADDR", process.start >> PAGE_SHIFT)
        self._program(name + "END_ADDR", process.end >> PAGE_SHIFT)
        space = self._mec.chip.space
        space.write(space.index("osssys", f"IH_VMID_{vmid}_LUT"), process.number)
        space.write(self._mec.index(f"GCVM_CONTEXT{vmid}_CNTL"), process.control)
        self._mec.chip.gc.caches.invalidate(vmid, l1=True, l2=True, levels=frozenset((1, 2, 3)))
        return vmid

    def _program(self, name: str, value: int) -> None:
        space, index = self._mec.chip.space, self._mec.index
        space.write(index(name + "_LO32"), value & 0xFFFF_FFFF)
        space.write(index(name + "_HI32"), value >> 32)
