"""Queues of processes under the scheduler: each process has a VMID, each queue has a slot.

Every queue keeps its slot from ADD_QUEUE to REMOVE_QUEUE. The model has no time slices: it refuses
a queue when all slots or VMIDs are in use (a board would time-share them). Facts: Linux 6.12
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


class Processes:
    """The scheduler's processes and queues. All methods run with the chip's lock held."""

    def __init__(self, mec: MecState, resources: Resources) -> None:
        self._mec = mec
        self._resources = resources
        self._vmids: dict[int, int] = {}  # VMID by process context
        self._queues: dict[
            int, tuple[int, MappableSlot]
        ] = {}  # process context and slot by doorbell

    def add(self, process: Process, kind: Kind, doorbell: int, mqd: int, wptr: int) -> None:
        """Put a queue into a free slot. Raises CannotMap."""
        if doorbell in self._queues:
            raise CannotMap(f"doorbell {doorbell:#x} is in use")
        slot = next((slot for slot in self._slots(kind) if slot.active is None), None)
        if slot is None:
            raise CannotMap(f"no free slot for a {kind.name.lower()} queue")
        slot.map(mqd, wptr, self._vmid(process))
        if slot.active is None or slot.doorbell_dword() != doorbell:
            raise CannotMap(
                f"the doorbell in the descriptor at {mqd:#x} differs from {doorbell:#x}"
            )
        self._queues[doorbell] = (process.context, slot)

    def remove(self, doorbell: int) -> MappableSlot:
        """Remove a queue and return its slot, which the caller unmaps. Raises CannotMap."""
        if doorbell not in self._queues:
            raise CannotMap(f"no process has a queue with doorbell {doorbell:#x}")
        context, slot = self._queues.pop(doorbell)
        if all(other != context for other, _ in self._queues.values()):
            del self._vmids[context]
        return slot

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
