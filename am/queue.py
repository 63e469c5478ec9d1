"""Hardware queues: rings that run command images, for compute (PM4) and for copies (SDMA).

A ring has slots of SLOT_WORDS words. A slot runs one image and then writes the slot's number to a
fence; what has passed the fence frees its slot and its transient memory. Images wait in an arena in
host memory; a captured graph's images have memory of their own.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from am import pm4, sdma
from am.dispatch import ShaderRegisters, encode_launch
from am.gmc import QUEUE_VMID
from am.memory import Mapping
from hcq.command import (
    Barrier,
    Command,
    CommandBuffer,
    Copy,
    Fill,
    Launch,
    Signal,
    Symbol,
    Timestamp,
    Wait,
)
from hcq.errors import BadArgument, DeviceHang, UnitTimeout
from hcq.memory import Placement
from hcq.poll import wait_until
from hcq.queue import HardwareQueue, QueueKind, Resident
from hcq.timeline import SIZE as TIMELINE_SIZE
from hcq.timeline import Timeline

if TYPE_CHECKING:
    from am.device import AmDevice

RING_SIZE = 0x10000  # bytes
SLOT_WORDS = 16
SLOTS = RING_SIZE // (SLOT_WORDS * 4)
ARENA_SIZE = 1 << 20
_IMAGE_ALIGN = 256
# The control page: where hardware writes its read pointer, reads the write pointer, and the fence.
_READ_POINTER, _WRITE_POINTER, _FENCE, _TIMELINE = 0, 64, 128, 192
CONTROL_SIZE = 4096
_SLOT = struct.Struct(f"<{SLOT_WORDS}I")
_QWORD = struct.Struct("<Q")


class HostImage(Resident):
    """An image in memory of its own."""

    def __init__(self, queue: RingQueue, words: int) -> None:
        self.queue = queue
        self.mapping: Mapping | None = queue.device.map(max(words, 1) * 4, Placement.HOST)
        self.address = int(self.mapping.address)
        self.words = np.frombuffer(self.mapping.view, np.uint32)[:words]

    def close(self) -> None:
        if self.mapping is not None:
            mapping, self.mapping = self.mapping, None
            self.words = np.zeros(0, np.uint32)  # lets go of the mapping's view
            self.queue.device.unmap(mapping)


class RingQueue(HardwareQueue):
    """What both kinds of queues share: ring, arena, fence, doorbell.

    shift: how far the count of words is shifted to give a pointer (SDMA counts bytes).
    """

    device: AmDevice
    shift = 0

    def __init__(self, device: AmDevice, name: str, kind: QueueKind, doorbell: int) -> None:
        self.device = device
        self.name = name
        self.kind = kind
        self.doorbell = doorbell  # dword index
        self.ring = device.map(RING_SIZE, Placement.HOST)
        self.control = device.map(CONTROL_SIZE, Placement.HOST)
        self.arena = device.map(ARENA_SIZE, Placement.HOST)
        self._words = np.frombuffer(self.arena.view, np.uint32)
        self._ring_view = self.ring.view
        self._control_view = self.control.view
        memory = device.wrap(self.control)[_TIMELINE : _TIMELINE + TIMELINE_SIZE]
        self.timeline = Timeline(device, memory, f"{device.name} {name}")
        self._large: deque[tuple[int, HostImage]] = deque()
        self._pending: deque[tuple[int, int]] = deque()  # slot number, arena position behind it
        self.restart()

    def restart(self) -> None:
        """Forget what was submitted: the hardware queue was set up afresh, at zero."""
        self.count = 0  # slots submitted
        self._head = 0  # arena position that is free next; positions only rise
        self._tail = 0  # arena position up to which memory is free again
        self._pending.clear()
        while self._large:
            self._large.popleft()[1].close()
        for offset in (_READ_POINTER, _WRITE_POINTER, _FENCE):
            _QWORD.pack_into(self._control_view, offset, 0)
        self._ring_view[:] = bytes(RING_SIZE)
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
    def done(self) -> int:
        """Slots that have finished; the fence holds the low 32 bits of the number."""
        low: int = _QWORD.unpack_from(self._control_view, _FENCE)[0] & 0xFFFF_FFFF
        return self.count - (self.count - low & 0xFFFF_FFFF)

    # ---- what a kind provides ----------------------------------------------------------------

    @abstractmethod
    def _slot_template(self) -> Sequence[int]:
        """A slot's words without addresses, size and number."""

    @abstractmethod
    def _fill_slot(self, slot: list[int], address: int, words: int, number: int) -> None:
        """Insert an image's address and size, and the slot's number."""

    # ---- HardwareQueue -----------------------------------------------------------------------

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        size = len(buffer.words) * 4
        if size > ARENA_SIZE // 2:
            self._submit_large(buffer, values)
            return
        offset = self._take(size)
        address = int(self.arena.address) + offset
        self._set_image(buffer, values, address)
        first = offset // 4
        buffer.patch(self._words[first : first + len(buffer.words)], values)
        self._run(address, buffer.command_words)
        self._pending.append((self.count, self._head))

    def _submit_large(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        image = HostImage(self, len(buffer.words))
        self._set_image(buffer, values, image.address)
        buffer.patch(image.words, values)
        self._run(image.address, buffer.command_words)
        self._large.append((self.count, image))

    @staticmethod
    def _set_image(buffer: CommandBuffer, values: NDArray[np.uint64], address: int) -> None:
        for position, symbol in enumerate(buffer.symbols):
            if symbol.kind == "image":
                values[position] = address

    def place(self, buffer: CommandBuffer) -> Resident:
        return HostImage(self, len(buffer.words))

    def submit_resident(self, resident: Resident, command_words: int) -> None:
        self._run(resident.address, command_words)

    # ---- ring --------------------------------------------------------------------------------

    def _run(self, address: int, words: int) -> None:
        """Put an image into the next slot and ring the doorbell."""
        device = self.device
        if device.memory.stale:
            device.flush_tlb()
        if self.count - self.done >= SLOTS - 1:
            self._wait_for(lambda: self.count - self.done < SLOTS - 1, "a slot of the ring")
        number = self.count + 1
        slot = self._slot
        self._fill_slot(slot, address, words, number & 0xFFFF_FFFF)
        _SLOT.pack_into(self._ring_view, self.count % SLOTS * SLOT_WORDS * 4, *slot)
        self.count = number
        pointer = number * SLOT_WORDS << self.shift
        _QWORD.pack_into(self._control_view, _WRITE_POINTER, pointer)
        device.chip.doorbells.write64(self.doorbell * 4, pointer)

    def _take(self, size: int) -> int:
        """Bytes of the arena, contiguous; blocks while what is in flight holds them."""
        size = -(-size // _IMAGE_ALIGN) * _IMAGE_ALIGN
        while True:
            start = self._head
            if start % ARENA_SIZE + size > ARENA_SIZE:
                start += ARENA_SIZE - start % ARENA_SIZE  # the rest at the end stays unused
            if start + size - self._tail <= ARENA_SIZE:
                self._head = start + size
                return start % ARENA_SIZE
            self._wait_for(self._reclaim, "transient command memory")

    def _reclaim(self) -> bool:
        """Free the arena and the large images of finished slots; whether there were any."""
        done = self.done
        freed = False
        while self._pending and self._pending[0][0] <= done:
            self._tail = self._pending.popleft()[1]
            freed = True
        while self._large and self._large[0][0] <= done:
            self._large.popleft()[1].close()
        return freed

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        def probe() -> bool:
            if ready():
                return True
            self.device.check_failures()
            return False

        try:
            wait_until(probe, unit=self.name, waiting_for=what, limit_s=self.device.limit_s)
        except UnitTimeout as error:
            failure = DeviceHang(
                f"{self.name} frees no {what} within {self.device.limit_s} s",
                **self.device.diagnose(self.timeline, self.timeline.last),
            )
            self.device.failure = failure
            raise failure from error

    def collect(self) -> None:
        """Free large images that have finished, if there are any."""
        if self._large:
            self._reclaim()

    def close(self) -> None:
        """Free all memory; the hardware queue must be off."""
        while self._large:
            self._large.popleft()[1].close()
        self._words = np.zeros(0, np.uint32)
        self._ring_view.release()
        self._control_view.release()


def timeline_address(timeline: Timeline) -> Symbol:
    return Symbol.of(timeline.memory)


class ComputeQueue(RingQueue):
    """The compute queue: PM4 on one pipe of the MEC.

    Commands of a submission start in order; a launch may overlap the launch before it unless a
    Barrier stands between. Waits compare the low 32 bits of a timeline.
    """

    def __init__(self, device: AmDevice, pipe: int, queue: int, doorbell: int) -> None:
        self.pipe = pipe
        self.queue = queue
        self.registers = ShaderRegisters(device.chip.gc)
        super().__init__(device, f"compute {pipe}.{queue}", QueueKind.COMPUTE, doorbell)

    def _slot_template(self) -> Sequence[int]:
        opcode, self._control = pm4.indirect_buffer()
        return [opcode, 0, 0, 0, *pm4.fence(self.fence_address), *pm4.filler(4)]

    def _fill_slot(self, slot: list[int], address: int, words: int, number: int) -> None:
        slot[1], slot[2], slot[3] = address & 0xFFFF_FFFF, address >> 32, self._control | words
        slot[9] = number

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        image = pm4.Pm4()
        image.acquire()
        for command in commands:
            if isinstance(command, Launch):
                encode_launch(image, command, self.registers)
            elif isinstance(command, Barrier):
                image.wait_idle()
                image.acquire()
            elif isinstance(command, Signal):
                address = timeline_address(command.timeline)
                image.release(address, command.value, interrupt=True, flush=True)
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
        return image.finish(align_words=1, filler=0)


class CopyQueue(RingQueue):
    """A copy queue: queue 0 of one SDMA engine. Commands execute and finish in order."""

    shift = 2

    def __init__(self, device: AmDevice, engine: sdma.Engine, doorbell: int) -> None:
        self.engine = engine
        super().__init__(device, engine.name, QueueKind.COPY, doorbell)

    def _slot_template(self) -> Sequence[int]:
        # The packet that runs an image ends on a multiple of 8 words.
        fence = sdma.Sdma()
        fence.fence(Symbol.constant(self.fence_address), Symbol.constant(0))
        indirect = [sdma.indirect_header(QUEUE_VMID), 0, 0, 0, 0, 0]
        return [sdma.NOP, sdma.NOP, *indirect, *fence.words, *([sdma.NOP] * 4)]

    def _fill_slot(self, slot: list[int], address: int, words: int, number: int) -> None:
        slot[3], slot[4], slot[5] = address & 0xFFFF_FFFF, address >> 32, words
        slot[11] = number

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        image = sdma.Sdma()
        for command in commands:
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
                raise BadArgument("a copy queue launches no kernels", queue=self.name)
        return image.finish(align_words=sdma.ALIGN_WORDS, filler=sdma.NOP)
