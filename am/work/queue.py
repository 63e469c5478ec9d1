"""Hardware queues: rings that run command images, for compute (PM4) and for copies (SDMA).

A ring has slots of SLOT_WORDS words. A slot runs one image, raises the queue's timeline, and writes
the slot's number to a fence. Slots up to that number, and their transient memory, are free again.
Images wait in an arena in host memory; the images of a captured graph have their own memory.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from ugpu.am.packets import pm4, sdma
from ugpu.am.packets.dispatch import ShaderRegisters, encode_launch
from ugpu.am.units.ring_ahead import RingAhead
from ugpu.am.work.bridge_memory import OutsideMemory
from ugpu.am.work.image import HostImage, ImagesHolder
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.rings import ring as rings
from ugpu.hcq.rings.arena import Arena
from ugpu.hcq.rings.ring import Submission
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Symbol
from ugpu.hcq.work.queue import QueueKind, Resident
from ugpu.hcq.work.timeline import Timeline

RING_SIZE = 0x10000  # bytes
SLOT_WORDS = 32
SLOTS = RING_SIZE // (SLOT_WORDS * 4)
_LOOK_EVERY = 128  # submissions; the interrupt ring has room for 2,048
# Offsets in the control page: read pointer (written by hardware), write pointer, fence, timeline.
_READ_POINTER, _WRITE_POINTER, _FENCE, _TIMELINE = 0, 64, 128, 192
CONTROL_SIZE = 4096
_SLOT = struct.Struct(f"<{SLOT_WORDS}I")
_QWORD = struct.Struct("<Q")


class QueueHolder(ImagesHolder):
    """A holder with hardware queues. outside: memory of a bridge."""

    outside: OutsideMemory


class RingQueue(rings.RingQueue[Submission]):
    """Parts shared by both kinds of queues: ring, fence, doorbell.

    shift: left shift that turns a count of words into a pointer (SDMA counts bytes).
    """

    driver: QueueHolder
    shift = 0
    entries = SLOTS - 1
    submission = Submission
    reuses_launches = True
    polls_pointer = True  # the engine may read the write pointer from memory too
    #: whether the low half of a doorbell may be written alone while the high half stays the same
    half_doorbells = False

    def __init__(self, driver: QueueHolder, name: str, kind: QueueKind, doorbell: int) -> None:
        super().__init__(driver, name, kind)
        self.driver = driver
        self.doorbell = doorbell  # dword index
        memory = driver.map(self.arena_size + RING_SIZE + CONTROL_SIZE, Placement.HOST)
        self.memory = memory
        self.arena = Arena(int(memory.address), memory.view, self.arena_size)
        self.ring = memory.part(self.arena_size, RING_SIZE)
        self.control = memory.part(self.arena_size + RING_SIZE, CONTROL_SIZE)
        self._ring_view = self.ring.view
        self._control_view = self.control.view
        timeline = driver.outside.timeline(self.control, _TIMELINE)
        self.timeline = Timeline(driver.core, timeline, f"{driver.name} {name}")
        self._ahead = RingAhead(SLOTS)
        self.restart(clear=False)

    @property
    def pointers(self) -> Mapping:
        """The memory of pointers and fence, which is zero before the hardware queue is set up. The
        rest of `memory` may contain anything: the hardware does not read beyond the pointer."""
        return self.memory.part(self.arena_size + RING_SIZE, _TIMELINE)

    def restart(self, *, clear: bool = True) -> None:
        """Forget all submissions: the hardware queue was set up again, at zero. clear: zero
        `pointers`."""
        self.forget()
        self.innocent = 0  # slots that had ended when no failure had been reported
        self._kernels: list[tuple[str, ...]] = [()] * SLOTS  # by slot
        self._ends = [0] * SLOTS  # by slot: the timeline's value at its end
        self._seen = 0  # slots that were done when it was last read
        if clear:
            self._control_view[:_TIMELINE] = bytes(_TIMELINE)
        self._ahead.clear()
        self._rung: int | None = None  # the doorbell's last value
        self._slot = list(self._slot_template())

    @property
    def read_pointer(self) -> int:
        return int(self.control.address) + _READ_POINTER

    @property
    def write_pointer(self) -> int:
        return int(self.control.address) + _WRITE_POINTER

    @property
    def fence_address(self) -> int:
        return int(self.control.address) + _FENCE

    @property
    def ended(self) -> int:
        """Slots that have ended by the timeline, which is what waits read. The fence of a slot
        follows a moment later."""
        number, value = max(self.innocent, self.count - SLOTS), self.timeline.value
        while number < self.count and self._ends[number % SLOTS] <= value:
            number += 1
        return number

    @property
    def suspects(self) -> tuple[str, ...]:
        """Names of the kernels that may have caused a failure reported now. A page fault does not
        stop its kernel, so the kernel may have ended."""
        numbers = range(max(self.innocent, self.count - SLOTS) + 1, self.count + 1)
        names = [name for number in numbers for name in self._kernels[(number - 1) % SLOTS]]
        return tuple(dict.fromkeys(names))

    @property
    def done(self) -> int:
        """Slots that have finished; the fence holds the low 32 bits of the number."""
        low = int.from_bytes(self._control_view[_FENCE : _FENCE + 4], "little")
        return self.count - (self.count - low & 0xFFFF_FFFF)

    def passed(self) -> int:
        """See rings.RingQueue."""
        self._seen = self.done
        return self._ends[(self._seen - 1) % SLOTS]

    # ---- what a kind provides ----------------------------------------------------------------

    @abstractmethod
    def _slot_template(self) -> Sequence[int]:
        """A slot's words without the image's address and size, value and number."""

    @abstractmethod
    def _fill_slot(
        self, slot: list[int], address: int, words: int, value: int, number: int
    ) -> None:
        """Insert an image's address and size, the timeline's value and the slot's number."""

    def _body(self, commands: Sequence[Command]) -> Sequence[Command]:
        """Return the commands of the image: all but the signal at its end, which is in the slot."""
        last = commands[-1] if commands else None
        ours = isinstance(last, Signal) and last.timeline is self.timeline
        return commands[:-1] if ours else commands

    # ---- HardwareQueue -----------------------------------------------------------------------

    def own_image(self, buffer: CommandBuffer) -> HostImage:
        """See rings.RingQueue."""
        return HostImage(self.driver, buffer)

    def room(self, words: int) -> bool:
        if not self.count % _LOOK_EVERY and self.driver.units.ih.crowded:
            return False  # the thread that waits for room drains the interrupt ring
        return super().room(words)

    # ---- ring --------------------------------------------------------------------------------

    def _run(self, source: CommandBuffer | Resident, submission: Submission) -> None:
        if self.driver.memory.stale:
            self.driver.flush_tlb()
        self.intent = submission
        self.complete()

    def _pack(self, submission: Submission, ahead: int = 0) -> bytes:
        """Return the slot of a submission, or of a similar one `ahead` submissions later."""
        value, number = submission.end + ahead, submission.number + ahead & 0xFFFF_FFFF
        self._fill_slot(self._slot, submission.address, submission.words, value, number)
        return _SLOT.pack(*self._slot)

    def tell(self, submission: Submission) -> None:
        """Write a slot and the pointer behind it, and ring the doorbell."""
        number = submission.number
        self._kernels[(number - 1) % SLOTS] = submission.kernels
        self._ends[(number - 1) % SLOTS] = submission.end
        index, pointer = (number - 1) % SLOTS, number * SLOT_WORDS << self.shift
        start, end = index * _SLOT.size, _WRITE_POINTER + _QWORD.size
        if self.arena.words is not None:
            self._ring_view[start : start + _SLOT.size] = self._pack(submission)
            self._control_view[_WRITE_POINTER:end] = _QWORD.pack(pointer)
            self.driver.chip.doorbells.write64(self.doorbell * 4, pointer)
            return
        image, free = (submission.address, submission.words), SLOTS - 1 - (number - self._seen)
        make, resident = partial(self._pack, submission), submission.resident
        is_written = isinstance(resident, HostImage) and not resident.patched
        slots = self._ahead.missing(index, image, free, make)
        with self.driver.chip.transport.batch():
            if slots:
                self._ring_view[start : start + _SLOT.size * len(slots)] = b"".join(slots)
            if self.polls_pointer:
                self._control_view[_WRITE_POINTER:end] = _QWORD.pack(pointer)
            if slots or self.polls_pointer or not is_written:
                self.driver.units.nbio.post_hdp()
            self._ring(pointer)
        self._ahead.written(index, slots)
        if isinstance(resident, HostImage):
            resident.patched = False

    def _ring(self, pointer: int) -> None:
        """Ring the doorbell, with its low half alone where that is enough."""
        doorbells, place = self.driver.chip.doorbells, self.doorbell * 4
        before, self._rung = self._rung, None
        if self.half_doorbells and before is not None and before >> 32 == pointer >> 32:
            doorbells.write32(place, pointer & 0xFFFF_FFFF)
        else:
            doorbells.write64(place, pointer)
        self._rung = pointer

    def overwrite(self) -> None:
        """See HardwareQueue. The fence of a slot follows the timeline, so it is awaited."""
        if self.timeline.value >= self.timeline.last and self.done < self.count:
            self._wait_for(lambda: self.done >= self.count, "fence of its last slot")
        self.reclaim()
        self._seen = self.done
        if self._seen < self.count:
            return
        self.arena.overwrite()
        self._ring_view[:] = bytes(RING_SIZE)
        self._ahead.clear()
        self.driver.units.nbio.post_hdp()

    def close(self) -> None:
        """Free all memory; the hardware queue must be off."""
        self.forget()
        self.arena.close()
        self._ring_view.release()
        self._control_view.release()


def timeline_address(timeline: Timeline) -> Symbol:
    return Symbol.of(timeline.memory)


class ComputeQueue(RingQueue):
    """The compute queue: PM4 on one pipe of the MEC.

    Commands of a submission start in order; a launch may overlap the launch before it unless a
    Barrier lies between them. Waits compare the low 32 bits of a timeline.

    Polling of the write pointer is off (CP_PQ_WPTR_POLL_CNTL.EN). AMD's driver for virtual
    functions rings compute queues of gfx 9.4.3 with 32 bits (MxGPU-Virtualization,
    gfx_v9_4_3_ring_set_wptr_compute). UNSURE: whether gfx11 accepts 32 bits too; a board behind a
    bridge, which sends single dwords in any case, must show it.
    """

    polls_pointer = False
    half_doorbells = True

    def __init__(self, driver: QueueHolder, pipe: int, queue: int, doorbell: int) -> None:
        self.pipe = pipe
        self.queue = queue
        self.registers = ShaderRegisters(driver.chip.gc)
        # Without someone to wake, an entry of the interrupt ring only costs the time of reading it.
        self._interrupt = driver.transport.interrupts is not None
        super().__init__(driver, f"compute {pipe}.{queue}", QueueKind.COMPUTE, doorbell)

    def _slot_template(self) -> Sequence[int]:
        opcode, self._control = pm4.indirect_buffer()
        ends = pm4.Pm4()
        address = Symbol.constant(self.timeline.address)
        ends.release(address, Symbol.constant(0), interrupt=self._interrupt, flush=True)
        fence = pm4.fence(self.fence_address)
        return [opcode, 0, 0, 0, *ends.words, *fence, *pm4.filler(12)]

    def _fill_slot(
        self, slot: list[int], address: int, words: int, value: int, number: int
    ) -> None:
        slot[1], slot[2], slot[3] = address & 0xFFFF_FFFF, address >> 32, self._control | words
        slot[9], slot[10] = value & 0xFFFF_FFFF, value >> 32
        slot[17] = number

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        image = pm4.Pm4()
        image.acquire()
        for command in self._body(commands):
            if isinstance(command, Launch):
                encode_launch(image, command, self.registers)
            elif isinstance(command, Barrier):
                image.wait_idle()
                image.acquire()
            elif isinstance(command, Signal):
                address = timeline_address(command.timeline)
                image.release(address, command.value, interrupt=self._interrupt, flush=True)
            elif isinstance(command, Wait):
                image.wait_memory(timeline_address(command.timeline), command.value)
                image.acquire()
            elif isinstance(command, Timestamp):
                image.release(command.destination, None, interrupt=False, flush=False)
            elif isinstance(command, Copy):
                image.wait_idle()
                image.copy(command.destination, command.source, command.size)
            elif isinstance(command, Fill):
                image.wait_idle()
                image.fill(command.destination, command.value, command.size)
        encoded = image.finish(align_words=1, filler=0)
        names = [command.kernel.name for command in commands if isinstance(command, Launch)]
        encoded.kernels = tuple(dict.fromkeys(names))
        return encoded


class CopyQueue(RingQueue):
    """A copy queue: queue 0 of one SDMA engine. Commands execute and finish in order.

    packets: the image of the generation's packets.
    """

    shift = 2
    packets: ClassVar[type[sdma.Sdma]] = sdma.Sdma

    def __init__(self, driver: QueueHolder, engine: sdma.Engine, doorbell: int) -> None:
        self.engine = engine
        super().__init__(driver, engine.name, QueueKind.COPY, doorbell)

    def _slot_template(self) -> Sequence[int]:
        # The packet that runs an image ends on a multiple of 8 words.
        ends = self.packets()
        ends.signal(Symbol.constant(self.timeline.address), Symbol.constant(0))
        ends.fence(Symbol.constant(self.fence_address), Symbol.constant(0))
        indirect = [self.packets.indirect_header(self.driver.seat.vmid), 0, 0, 0, 0, 0]
        return [sdma.NOP, sdma.NOP, *indirect, *ends.words, *([sdma.NOP] * 10)]

    def _fill_slot(
        self, slot: list[int], address: int, words: int, value: int, number: int
    ) -> None:
        slot[3], slot[4], slot[5] = address & 0xFFFF_FFFF, address >> 32, words
        slot[11], slot[15] = value & 0xFFFF_FFFF, value >> 32
        slot[21] = number

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        image = self.packets()
        for command in self._body(commands):
            if isinstance(command, Copy):
                image.copy(command.destination, command.source, command.size)
            elif isinstance(command, Fill):
                image.fill(command.destination, command.value, command.size)
            elif isinstance(command, Signal):
                image.signal(timeline_address(command.timeline), command.value)
            elif isinstance(command, Wait):
                image.wait_memory(timeline_address(command.timeline), command.value)
            elif isinstance(command, Timestamp):
                image.timestamp(command.destination)
            elif isinstance(command, Barrier):
                image.barrier()
            else:
                raise BadArgument("a copy queue cannot launch kernels", queue=self.name)
        if not image.words:
            image.barrier()  # an image must not be empty
        return image.finish(align_words=sdma.ALIGN_WORDS, filler=sdma.NOP)
