"""Queues of the cpu device: command words, and their memory until they have been executed.

A command is an operation word and its operands; addresses and sizes are two words, low first:

LAUNCH kernel(2) kernarg(2) grid x y z, block x y z      COPY to(2) from(2) bytes(2)
FILL to(2) words(2) value                                WAIT timeline(2) value(2)
SIGNAL timeline(2) value(2)                              TIMESTAMP to(2)

Commands of one queue execute one after the other, so a barrier takes no words.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.cpu.direct import direct
from ugpu.hcq.cpu.memory import HostMemory
from ugpu.hcq.cpu.processor import (
    COPY,
    FILL,
    LAUNCH,
    SIGNAL,
    TIMESTAMP,
    WAIT,
    Server,
    Words,
    native,
)
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Relocation, Symbol
from ugpu.hcq.work.queue import HardwareQueue, NativeWork, QueueKind, Repetition, Resident
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer

KERNARG_ALIGN = 64  # bytes; the image itself is aligned at least as much
ARENA_SIZE = 1 << 20  # bytes of transient memory per queue
SHALLOW = 64 << 10  # bytes of stack that any thread has left
SLOTS, SLOT_SIZE = 256, 4096  # for prepared submissions; as in native/types.ll


class QueuesDriver(Driver):
    """What queues use of hcq.cpu.driver.CpuDriver."""

    @abstractmethod
    def take_memory(self, size: int) -> HostMemory:
        """Allocate memory, which counts as used; see `drop_memory`."""

    @abstractmethod
    def drop_memory(self, memory: HostMemory) -> None:
        """Free memory, unless threads that never ended may access it."""

    @abstractmethod
    def timeline_memory(self) -> Buffer:
        """Return memory for a queue's timeline; it belongs to the device and is not counted as
        used."""


class Image(CommandBuffer):
    """A command buffer that is fast to submit if all values that it refers to are 64-bit numbers.

    numbers: byte offsets of these values, and the values' symbols; None if some are narrower, or if
    the image is larger than a slot. bounded: whether its kernels end, whatever they are given, and
    take little stack: they may run in any thread.
    """

    bounded = False

    def __init__(
        self, words: NDArray[np.uint32], command_words: int, relocations: Sequence[Relocation]
    ) -> None:
        super().__init__(words, command_words, relocations)
        pairs = list(zip(relocations[::2], relocations[1::2], strict=False))
        self.numbers: list[tuple[int, Symbol]] | None = None
        small = self.words.nbytes <= SLOT_SIZE
        if small and 2 * len(pairs) == len(relocations) and all(_is_number(*p) for p in pairs):
            self.numbers = [(4 * low.word, low.symbol) for low, _ in pairs]

    @cached_property
    def prepared(self) -> Prepared:
        """Return the data that the native side needs to submit the image."""
        return Prepared(self)


class Prepared:
    """An image with its numbers, as ugpu_submit of native/submit.ll reads them."""

    KINDS: ClassVar = {"parameter": 1, "image": 2, "signal": 3}

    def __init__(self, image: Image) -> None:
        assert image.numbers is not None
        slots = [symbol.slot for _, symbol in image.numbers if symbol.kind == "parameter"]
        self.count = count = max(slots, default=-1) + 1
        self.template = HostMemory(image.words.nbytes)
        self.template.array[:] = image.words.view(np.uint8)
        self.parameters = Words(max(1, count))
        self.pack = struct.Struct(f"<{count}Q").pack_into
        head = (self.template.address, image.words.nbytes, image.command_words)
        numbers = [*head, len(image.numbers), self.parameters.address, int(image.bounded)]
        for offset, symbol in image.numbers:
            base = symbol.addend if symbol.buffer is None else symbol.buffer.address + symbol.addend
            numbers += (offset, self.KINDS.get(symbol.kind, 0), base % (1 << 64), symbol.slot)
        self.record = Words(len(numbers))
        self.record.words[:] = numbers
        self.view, self.address = self.parameters.memory.view, self.record.address


def _is_number(low: Relocation, high: Relocation) -> bool:
    """Return whether two relocations are the halves of one 64-bit number."""
    word, symbol, *low_half = low
    return low_half == [0, 0, 32] and high == (word + 1, symbol, 32, 0, 32)


class Encoder:
    """Builds one image: words, relocations, and the argument blocks that follow the commands."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[Relocation] = []
        self.blocks: list[tuple[int, Launch]] = []  # (word that holds its address, launch)

    def command(self, operation: int, *operands: int | Symbol) -> None:
        """Append a command whose operands are 64 bits wide."""
        self.words.append(operation)
        for operand in operands:
            self.value(operand)

    def value(self, value: int | Symbol) -> None:
        if isinstance(value, Symbol) and value.kind != "constant":
            self.refer(len(self.words), value)
            self.words += [0, 0]
            return
        number = value.addend if isinstance(value, Symbol) else value
        self.words += [number & 0xFFFF_FFFF, number >> 32 & 0xFFFF_FFFF]

    def refer(self, word: int, symbol: Symbol) -> None:
        self.relocations += (Relocation(word, symbol), Relocation(word + 1, symbol, shift=32))

    def launch(self, launch: Launch) -> None:
        self.words.append(LAUNCH)
        self.value(launch.kernel.address)
        self.blocks.append((len(self.words), launch))
        self.words += [0, 0, *launch.grid, *launch.block]

    def finish(self) -> Image:
        command_words = len(self.words)
        for word, launch in self.blocks:
            self.words += [0] * (-len(self.words) % (KERNARG_ALIGN // 4))
            start = len(self.words)
            self.refer(word, Symbol.image(4 * start))
            block = launch.kernarg + bytes(-len(launch.kernarg) % 4)
            self.words += memoryview(block).cast("I").tolist()
            for reference in launch.references:
                self.relocations += reference.relocations(start)
        return Image(np.array(self.words, np.uint32), command_words, self.relocations)


class CpuResident(Resident):
    """A graph's image in its own memory. bounded: see Image."""

    def __init__(self, driver: QueuesDriver, count: int, bounded: bool) -> None:
        self.driver = driver
        self.bounded = bounded
        self.memory = driver.take_memory(4 * count)
        self.words = self.memory.array.view(np.uint32)
        self.address = self.memory.address

    def close(self) -> None:
        self.driver.drop_memory(self.memory)


class Arena:
    """Transient memory, allocated in a circle; memory marked by a timeline value is reused after
    it."""

    def __init__(self) -> None:
        self.memory = HostMemory(ARENA_SIZE)
        self.words = self.memory.array.view(np.uint32)
        self._first = self._next = 0  # positions that only grow; the offset is modulo the size
        self._pending: deque[tuple[int, int]] = deque()  # (timeline value, position after it)

    def take(self, count: int, value: int, reached: int) -> tuple[NDArray[np.uint32], int]:
        """Return `count` words, reserved until the timeline reaches `value`, and their address;
        fresh memory if the arena is full. reached: the timeline's value."""
        while self._pending and self._pending[0][0] <= reached:
            self._first = self._pending.popleft()[1]
        need = -(-4 * count // KERNARG_ALIGN) * KERNARG_ALIGN
        if not self._pending:
            self._first = self._next
        start = self._next
        if start % ARENA_SIZE + need > ARENA_SIZE:
            start += -start % ARENA_SIZE
        if start + need - self._first > ARENA_SIZE:
            # A wait here might be for work that only another thread's submission completes.
            fresh = HostMemory(4 * count)
            return fresh.array.view(np.uint32), fresh.address
        self._next = start + need
        self._pending.append((value, self._next))
        place = start % ARENA_SIZE // 4
        return self.words[place : place + count], self.memory.address + 4 * place


class Slots:
    """Memory for prepared images that are submitted one after the other on one queue."""

    def __init__(self, timeline: Timeline) -> None:
        self.memory = HostMemory(SLOTS * SLOT_SIZE)
        self.state = Words(3 + SLOTS)
        self.state[0], self.state[1] = self.memory.address, int(timeline.memory.address)


class CpuTimeline(Timeline):
    """A queue's timeline. `last` is a word that the native side writes together with the ring, so
    that an exception cannot come between an entry and its value; `clean` is in the word
    `cleaned`."""

    def __init__(self, driver: QueuesDriver, memory: Buffer, name: str) -> None:
        assert memory.view is not None
        self.cells = memory.view.cast("Q")  # the value reached, and `last`
        self.cleaned = Words(1)
        super().__init__(driver.core, memory, name)

    @property
    def clean(self) -> int:
        return self.cleaned[0]

    @clean.setter
    def clean(self, value: int) -> None:
        self.cleaned[0] = value

    @property
    def last(self) -> int:
        return self.cells[1]

    @last.setter
    def last(self, value: int) -> None:
        self.cells[1] = value


class CpuRepetition(Repetition):
    """The same in one call of the native side; only for images with numbers."""

    in_one_step = True

    def __init__(
        self,
        queue: CpuQueue,
        image: Image,
        parameters: Sequence[int],
        changing: Sequence[Collection[int]],
    ) -> None:
        super().__init__(queue, image, parameters, changing)
        self._core, self._cells = queue.driver.core, queue.timeline.cells
        self._queue = queue
        self._own = own = Prepared(image)
        own.pack(own.view, 0, *parameters)
        self._slots, self._server = queue.slots, queue.server
        self._given = Words(1 + len(changing))  # the timeline's value, then the numbers
        listed = [(slot, which) for which, slots in enumerate(changing) for slot in slots]
        head = (self._slots.state.address, self._server.state.address)
        numbers = [*head, own.address, own.parameters.address, self._given.address]
        numbers += [len(listed), len(changing), *(number for pair in listed for number in pair)]
        self._record = Words(len(numbers))
        self._record.words[:] = numbers
        self._again = native().again.of(self._record.address)

    def native(self) -> NativeWork | None:
        """See Repetition."""
        core = self._queue.driver.core
        return direct(self, core, self._record.address, self._given.address + 8)

    def submit(self, *numbers: int) -> int:
        core = self._core
        with core.lock:
            usable = not core.closed and core.failure is None and core.capturing is None
            usable = usable and core.replaying is None and core.closer is None
            for used in self.prepared.uses:  # any() takes 0.3 us
                if used.closed:
                    usable = False
            if usable and self._queue.server is self._server:  # else there was a reset
                value: int = self._again(*numbers)
                if value:
                    core.launches += self.prepared.launches
                    self.at_once = self._cells[0] >= value
                    if not self.at_once:
                        core.losses.submitted(self._queue.timeline, value)
                    return value
            return super().submit(*numbers)


class CpuQueue(HardwareQueue):
    """A native thread that executes command words."""

    timeline: CpuTimeline
    reuses_launches = True

    def __init__(self, driver: QueuesDriver, kind: QueueKind, server: Server) -> None:
        self.core, self.driver = driver.core, driver
        self.kind = kind
        self.name = f"cpu {kind.value}"
        self.timeline = CpuTimeline(driver, driver.timeline_memory(), self.name)
        self._serve(server)
        self._arena = Arena()
        self.slots = Slots(self.timeline)
        self._alive: deque[tuple[int, NDArray[np.uint32]]] = deque()

    def encode(self, commands: Sequence[Command]) -> Image:
        encoder = Encoder()
        for command in commands:
            match command:
                case Launch():
                    if self.kind is not QueueKind.COMPUTE:
                        raise BadArgument("a copy queue cannot launch kernels", queue=self.name)
                    encoder.launch(command)
                case Copy(destination, source, size):
                    encoder.command(COPY, destination, source, size)
                case Fill(destination, value, size):
                    encoder.command(FILL, destination, size // 4)
                    encoder.words.append(value & 0xFFFF_FFFF)
                case Wait(timeline, value):
                    encoder.command(WAIT, int(timeline.memory.address), value)
                case Signal(timeline, value):
                    encoder.command(SIGNAL, int(timeline.memory.address), value)
                case Timestamp(destination):
                    encoder.command(TIMESTAMP, destination)
                case Barrier():
                    pass
        image = encoder.finish()
        image.bounded = all(
            command.kernel.program.bounded and command.kernel.details.frame <= SHALLOW
            for command in commands
            if isinstance(command, Launch)
        )
        return image

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        words, address = self._transient(len(buffer.words))
        for position in buffer.images:
            values[position] = address
        buffer.patch(words, values)
        self._push(address, buffer.command_words, self.timeline.last + 1)

    def submit_prepared(
        self, buffer: CommandBuffer, signal: int, parameters: Sequence[int]
    ) -> None:
        if isinstance(buffer, Image) and buffer.numbers is not None:
            prepared = buffer.prepared
            if len(parameters) == prepared.count:
                prepared.pack(prepared.view, 0, *parameters)
                # refused if no slot is free, or the ring is full
                if self.server.submit(self.slots.state.address, prepared.address, signal):
                    return
        super().submit_prepared(buffer, signal, parameters)

    def repetition(
        self,
        prepared: CommandBuffer,
        parameters: Sequence[int],
        changing: Sequence[Collection[int]],
    ) -> Repetition:
        if isinstance(prepared, Image) and prepared.numbers is not None:
            return CpuRepetition(self, prepared, parameters, changing)
        return super().repetition(prepared, parameters, changing)

    def _transient(self, count: int) -> tuple[NDArray[np.uint32], int]:
        """Return memory for the next submission, valid until that has ended, and its address."""
        self.reclaim()
        value, reached = self.timeline.last + 1, self.timeline.value
        words, address = self._arena.take(count, value, reached)
        self._alive.append((value, words))
        return words, address

    def reclaim(self) -> bool:
        reached, before = self.timeline.value, len(self._alive)
        while self._alive and self._alive[0][0] <= reached:
            self._alive.popleft()
        return len(self._alive) < before

    def place(self, buffer: CommandBuffer) -> Resident:
        bounded = isinstance(buffer, Image) and buffer.bounded
        resident = CpuResident(self.driver, len(buffer.words), bounded)
        resident.words[:] = buffer.words
        return resident

    def overwrite(self) -> None:
        self.reclaim()
        if not self._alive:
            self._arena.words[:] = 0
            self.slots.memory.view[:] = bytes(len(self.slots.memory.view))

    def room(self, words: int) -> bool:
        return self.server.room  # if the arena is full, it returns fresh memory

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        bounded = isinstance(resident, CpuResident) and resident.bounded
        if not (bounded and self.server.run(resident.address, command_words, value)):
            self._push(resident.address, command_words, value)

    def _serve(self, server: Server) -> None:
        server.note_last(self.timeline.address + 8)
        self.server = server

    def restart(self, server: Server) -> None:
        """Continue after a failure with a new thread and an empty ring."""
        self._serve(server)
        self._arena = Arena()
        self.slots = Slots(self.timeline)
        self._alive.clear()

    def _push(self, address: int, count: int, value: int) -> None:
        while not self.server.push(address, count, value):
            self.core.check_failures()
            self.driver.pause_until(self.timeline, self.timeline.value + 1, 1e-3)
