"""Commands of the scheduler: frames of 64 dwords in its ring, each with its own fence.

Priorities and time slices of gangs are not modelled: see mes_processes.py. Facts: Linux 6.12
mes_v11_api_def.h (layouts, packed to 4 bytes), mes_v12_api_def.h (packed to 8 bytes), mes_v11_0.c
and mes_v12_0.c (which commands are sent; RESET, mes_v12_0_reset_legacy_queue); Linux 7.3 for
REMOVE_QUEUE after a reset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.virtual.amd.engines.cp.mapping import (
    CannotMap,
    by_doorbell,
    map_queue,
    slot_of,
    unmapped,
)
from ugpu.virtual.amd.engines.cp.mes_processes import Process, Processes, Resources
from ugpu.virtual.amd.engines.cp.pm4.packets import BadPacket
from ugpu.virtual.amd.engines.cp.state import Kind, MappableSlot, RunningQueue

FRAME_DWORDS = 64
TYPE_SCHEDULER = 1

SET_HW_RSRC = 0
ADD_QUEUE = 2
REMOVE_QUEUE = 3
SUSPEND, RESUME, RESET = 6, 7, 8
QUERY_SCHEDULER_STATUS = 11
MISC = 14
SET_HW_RSRC_1 = 19
NAMES = {
    1: "SET_SCHEDULING_CONFIG", 4: "PERFORM_YIELD", 5: "SET_GANG_PRIORITY_LEVEL",
    9: "SET_LOG_BUFFER", 10: "CHANGE_GANG_PRIORITY", 12: "PROGRAM_GDS",
    13: "SET_DEBUG_VMID", 15: "UPDATE_ROOT_PAGE_TABLE", 16: "AMD_LOG", 19: "SET_HW_RSRC_1",
}  # fmt: skip

_MAP_LEGACY, _AQL = 1 << 13, 1 << 11
_UNMAP_LEGACY, _AFTER_RESET = 1 << 3, 1 << 4
_EVERY_GANG = 1  # of SUSPEND and RESUME
_RESET_QUEUE, _RESET_LEGACY_GRAPHICS = 1, 1 << 3
# MISC.
_MISC_OPCODE, _MISC_STATUS, _MISC_DATA = 1, 2, 6
_WRITE_REG, _READ_REG, _WAIT_REG_MEM, _CHANGE_CONFIG = 0, 3, 4, 9
_WAIT, _WRITE_WAIT = 0, 1

_QUEUE_KINDS = {0: Kind.GRAPHICS, 1: Kind.COMPUTE, 2: Kind.SDMA, 3: Kind.SCHEDULER}
POLL_S = 1e-4


@dataclass(frozen=True)
class FrameLayout:
    """Dwords of a generation's frames: fields of ADD_QUEUE and RESET, and where each command has
    the address and value of its fence. second_resources: of SET_HW_RSRC_1, which is
    refused if 0."""

    add_mqd: int
    add_wptr: int
    add_type: int
    add_context_control: int
    add_flags: int
    add_status: int
    add_pipe: int
    remove_status: int
    suspend_status: int
    reset_type: int
    reset_status: int
    second_resources: int = 0


LAYOUT_11 = FrameLayout(19, 21, 27, 35, 36, 37, 48, 5, 7, 7, 24)
LAYOUT_12 = FrameLayout(20, 22, 28, 36, 37, 38, 50, 6, 8, 8, 28, second_resources=2)
_ADD_DOORBELL, _REMOVE_DOORBELL, _REMOVE_FLAGS = 18, 1, 4  # of both


class Scheduler(Protocol):
    """State that frames change. processes: None until SET_HW_RSRC."""

    processes: Processes | None


@dataclass
class OwnResources:
    """What SET_HW_RSRC gives to a pipe that maps queues but schedules none."""

    processes: Processes | None = None


class FrameExecutor:
    """Run the scheduler's frames on its queue's thread; one executor per queue activation."""

    depth = 0

    def __init__(
        self, queue: RunningQueue, scheduler: Scheduler, layout: FrameLayout = LAYOUT_11
    ) -> None:
        self._queue = queue
        self._scheduler = scheduler
        self._layout = layout
        self.consumed = 0
        self.stale = ""
        self._handlers: dict[int, tuple[Callable[[Sequence[int], int], None], int]] = {
            SET_HW_RSRC: (self._set_resources, 50),
            ADD_QUEUE: (self._add_queue, layout.add_status),
            REMOVE_QUEUE: (self._remove_queue, layout.remove_status),
            SUSPEND: (self._suspend, layout.suspend_status),
            RESUME: (self._resume, 4),
            RESET: (self._reset, layout.reset_status),
            QUERY_SCHEDULER_STATUS: (self._query, 2),
            MISC: (self._misc, _MISC_STATUS),
        }
        if layout.second_resources:
            self._handlers[SET_HW_RSRC_1] = (self._query, layout.second_resources)

    def run(self, words: Sequence[int]) -> int:
        """Execute the complete frames in `words`; return how many dwords were consumed.

        Raises BadPacket, leaving `consumed` at the bad frame.
        """
        at = 0
        while at + FRAME_DWORDS <= len(words):
            self._frame(words[at : at + FRAME_DWORDS])
            at += FRAME_DWORDS
            self.consumed += FRAME_DWORDS
        return at

    def _frame(self, frame: Sequence[int]) -> None:
        header = frame[0]
        kind, opcode, size = header & 0xF, header >> 4 & 0xFF, header >> 12 & 0xFF
        if kind != TYPE_SCHEDULER or size != FRAME_DWORDS or header >> 20:
            raise BadPacket(f"frame header {header:#010x}: type {kind}, {size} dwords", header)
        known = self._handlers.get(opcode)
        if known is None:
            if opcode in NAMES:
                raise BadPacket(f"{NAMES[opcode]} of the scheduler is not modelled", header)
            raise BadPacket(f"unknown opcode {opcode} of the scheduler", header)
        handler, status = known
        early = opcode in (SET_HW_RSRC, SET_HW_RSRC_1, QUERY_SCHEDULER_STATUS)
        if not early and self._scheduler.processes is None:
            raise BadPacket(
                "SET_HW_RSRC must come first, and the scheduler has not received it", header
            )
        try:
            handler(frame, header)
        except CannotMap as error:
            raise BadPacket(str(error), header) from error
        address, value = _wide(frame, status), _wide(frame, status + 2)
        if address:
            self._queue.store(0, address, struct.pack("<Q", value))

    def _set_resources(self, frame: Sequence[int], header: int) -> None:
        if not _wide(frame, 22) or not _wide(frame, 24):
            raise BadPacket(
                "SET_HW_RSRC must contain the address of the scheduler's context memory, got 0",
                header,
            )
        resources = Resources(
            frame[2], tuple(frame[5:13]), tuple(frame[13:15]), tuple(frame[15:17])
        )
        self._scheduler.processes = Processes(self._queue.mec, resources)

    def _query(self, frame: Sequence[int], header: int) -> None:
        """Do nothing: the command only requests its fence, or sets times and logs."""

    def _add_queue(self, frame: Sequence[int], header: int) -> None:
        at = self._layout
        number, flags = frame[at.add_type], frame[at.add_flags]
        kind = _QUEUE_KINDS.get(number)
        if kind is None or flags & _AQL:
            raise BadPacket(f"ADD_QUEUE of type {number}, flags {flags:#x} is not modelled", header)
        doorbell = frame[_ADD_DOORBELL]
        mqd, wptr = _wide(frame, at.add_mqd), _wide(frame, at.add_wptr)
        mec = self._queue.mec
        with mec.chip.lock:
            self._queue.worker.check()
            if flags & _MAP_LEGACY:
                slot = slot_of(mec, kind, frame[at.add_pipe], frame[at.add_pipe + 1])
                map_queue(slot, doorbell, mqd, wptr)
            else:
                process = Process(
                    number=frame[1],
                    context=_wide(frame, 10),
                    table=_wide(frame, 2),
                    start=_wide(frame, 4),
                    end=_wide(frame, 6),
                    control=frame[at.add_context_control],
                )
                self._processes().add(process, kind, doorbell, mqd, wptr, _wide(frame, 14))

    def _remove_queue(self, frame: Sequence[int], header: int) -> None:
        flags, doorbell = frame[_REMOVE_FLAGS], frame[_REMOVE_DOORBELL]
        if flags & ~(_UNMAP_LEGACY | _AFTER_RESET):
            raise BadPacket(f"REMOVE_QUEUE with flags {flags:#x} is not modelled", header)
        slot: MappableSlot | None
        with self._queue.mec.chip.lock:
            if flags & _UNMAP_LEGACY:
                slot = by_doorbell(self._queue.mec, doorbell)
            else:
                slot = self._processes().remove(doorbell)
        # Linux 7.3 mes_v12_0.c: after a reset it drops what it knows of the queue, and no more.
        if slot is not None and not flags & _AFTER_RESET:
            unmapped(self._queue, slot, reset=False)

    def _suspend(self, frame: Sequence[int], header: int) -> None:
        """Drain the queues of a gang, or of all, and take their slots; then write a fence."""
        with self._queue.mec.chip.lock:
            slots = self._processes().suspend(self._gang(frame, header))
        for slot in slots:
            unmapped(self._queue, slot, reset=False)
        address = _wide(frame, 4)
        if address:
            self._queue.store(0, address, struct.pack("<I", frame[6]))

    def _resume(self, frame: Sequence[int], header: int) -> None:
        with self._queue.mec.chip.lock:
            self._queue.worker.check()
            self._processes().resume(self._gang(frame, header))

    def _gang(self, frame: Sequence[int], header: int) -> int | None:
        """Return the gang of SUSPEND and RESUME, None for all."""
        if frame[1] & ~_EVERY_GANG:
            raise BadPacket(f"flags {frame[1]:#x} are reserved", header)
        return None if frame[1] else _wide(frame, 2)

    def _reset(self, frame: Sequence[int], header: int) -> None:
        """End the waves of a queue and take its slot. The kernel maps it again, or removes it."""
        mec, flags, at = self._queue.mec, frame[1], self._layout.reset_type
        slot: MappableSlot | None
        with mec.chip.lock:
            if flags == _RESET_QUEUE:
                slot = self._processes().lose(frame[4]) or by_doorbell(mec, frame[4])
            elif flags == _RESET_LEGACY_GRAPHICS:
                slot = slot_of(mec, Kind.GRAPHICS, frame[at + 1], frame[at + 2])
            else:
                raise BadPacket(f"RESET with flags {flags:#x} is not modelled", header)
        unmapped(self._queue, slot, reset=True)

    def _processes(self) -> Processes:
        assert self._scheduler.processes is not None  # checked by `_frame`
        return self._scheduler.processes

    def _misc(self, frame: Sequence[int], header: int) -> None:
        opcode, data = frame[_MISC_OPCODE], frame[_MISC_DATA:]
        if opcode == _WRITE_REG:
            self._queue.write_register(data[0], data[1])
        elif opcode == _READ_REG:
            value = self._queue.read_register(data[0])
            self._queue.store(0, _wide(data, 1), struct.pack("<I", value))
        elif opcode == _WAIT_REG_MEM and data[0] in (_WAIT, _WRITE_WAIT):
            reference, mask, register = data[1], data[2], data[3]
            if data[0] == _WRITE_WAIT:
                self._queue.write_register(register, reference)
                register, reference = data[4], reference & mask
            while self._queue.read_register(register) & mask != reference:
                self._queue.pause(POLL_S)
        elif opcode == _CHANGE_CONFIG and not any(data[:2]):
            pass  # CHANGE_CONFIG_OPTION_LIMIT_SINGLE_PROCESS: no
        else:
            raise BadPacket(f"MISC {opcode} of the scheduler is not modelled", header)


def _wide(words: Sequence[int], at: int) -> int:
    return words[at] | words[at + 1] << 32
