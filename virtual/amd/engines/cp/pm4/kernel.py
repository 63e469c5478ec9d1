"""Packets of the kernel interface queue: those of a compute queue, and those that map queues.

Facts: Linux 6.12 nvd.h (layouts), gfx_v11_0.c (gfx11_kiq_*: packets that the kernel emits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ugpu.virtual.amd.engines.cp.mapping import (
    CannotMap,
    by_doorbell,
    map_queue,
    slot_of,
    unmapped,
)
from ugpu.virtual.amd.engines.cp.pm4 import packets
from ugpu.virtual.amd.engines.cp.pm4.decoded import Handler
from ugpu.virtual.amd.engines.cp.pm4.execute import Executor
from ugpu.virtual.amd.engines.cp.pm4.packets import ADDRESS_HI, LOW_4, BadPacket, PacketFormat, free
from ugpu.virtual.amd.engines.cp.state import Kind, RunningQueue

SET_RESOURCES = 0xA0
MAP_QUEUES = 0xA2
UNMAP_QUEUES = 0xA3

_FORMATS = (
    PacketFormat(
        "SET_RESOURCES",
        SET_RESOURCES,
        7,
        7,
        (free((0, 16), (16, 8), (29, 3)), 0, 0, 0, 0, free((0, 16)), free((0, 6), (11, 6))),
    ),
    PacketFormat(
        "MAP_QUEUES",
        MAP_QUEUES,
        6,
        6,
        (
            free((4, 2), (8, 4), (13, 3), (16, 2), (18, 2), (21, 3), (24, 2), (26, 3), (29, 3)),
            free((1, 1), (2, 26)),
            LOW_4,
            ADDRESS_HI,
            LOW_4,
            ADDRESS_HI,
        ),
    ),
    PacketFormat(
        "UNMAP_QUEUES",
        UNMAP_QUEUES,
        5,
        5,
        (free((0, 2), (4, 2), (26, 3), (29, 3)), free((2, 26)), 0, 0, 0),
    ),
)

# ENGINE_SEL, and the ME number required with it.
_ENGINES = {0: (Kind.COMPUTE, 1), 4: (Kind.GRAPHICS, 0), 5: (Kind.SCHEDULER, 2)}
_PREEMPT, _RESET = 0, 1


class KernelExecutor(Executor):
    """Run the packets of the KIQ."""

    formats: ClassVar[Mapping[int, PacketFormat]] = {
        **packets.FORMATS,
        **{entry.opcode: entry for entry in _FORMATS},
    }

    def __init__(self, queue: RunningQueue) -> None:
        self._queue = queue
        self.queue_mask = 0  # slots that SET_RESOURCES assigned to the firmware
        super().__init__(queue)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of compute queues, and of three more packets."""
        return {
            **super().handlers(),
            SET_RESOURCES: self._set_resources,
            MAP_QUEUES: self._map_queues,
            UNMAP_QUEUES: self._unmap_queues,
        }

    def _set_resources(self, words: Sequence[int], at: int, count: int) -> int:
        self.queue_mask = words[at + 1] | words[at + 2] << 32
        return 0

    def _map_queues(self, words: Sequence[int], at: int, count: int) -> int:
        control, header = words[at], words[at - 1]
        kind, me = _ENGINES.get(control >> 26 & 7, (None, 0))
        if kind is None or control >> 4 & 3 or control >> 29 != 1:
            raise BadPacket(f"MAP_QUEUES control {control:#010x} is not modelled", header)
        if control >> 18 & 3 != me:
            raise BadPacket(
                f"MAP_QUEUES selects an ME that has no {kind.name.lower()} queues", header
            )
        mec = self._queue.mec
        mqd, wptr = words[at + 2] | words[at + 3] << 32, words[at + 4] | words[at + 5] << 32
        try:
            with mec.chip.lock:
                self._queue.worker.check()
                slot = slot_of(mec, kind, control >> 16 & 3, control >> 13 & 7)
                map_queue(slot, words[at + 1] >> 2, mqd, wptr)
        except CannotMap as error:
            raise BadPacket(f"MAP_QUEUES: {error}", header) from error
        return 0

    def _unmap_queues(self, words: Sequence[int], at: int, count: int) -> int:
        control, header = words[at], words[at - 1]
        action = control & 3
        if control >> 4 & 3 or control >> 29 != 1 or action not in (_PREEMPT, _RESET):
            raise BadPacket(f"UNMAP_QUEUES control {control:#010x} is not modelled", header)
        try:
            with self._queue.mec.chip.lock:
                slot = by_doorbell(self._queue.mec, words[at + 1] >> 2)
        except CannotMap as error:
            raise BadPacket(f"UNMAP_QUEUES: {error}", header) from error
        unmapped(self._queue, slot, reset=action == _RESET)
        return 0
