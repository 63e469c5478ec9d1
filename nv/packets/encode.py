"""Commands as methods: semaphores, copies, fills, timestamps, barriers. Launches:
nv.packets.launch.

Sources: open-gpu-doc clc56f.h (SEM_*, WFI), clc6c0.h, clc7b5.h (LAUNCH_DMA, remapping). Semaphores
have 64-bit payloads; a release waits until the channel's engines are idle and have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.nv.packets.launch import add_launch, chains, start_after, start_launch
from ugpu.nv.packets.pushbuffer import (
    COMPUTE,
    COPY,
    HOST,
    Commands,
    Pushbuffer,
    header,
    method,
    word,
)

COPY_MOST = 1 << 31  # bytes of one line; LINE_LENGTH_IN has 32 bits
_TIMED_SIZE = 16  # a release with a timestamp: payload, nanoseconds


@dataclass(frozen=True)
class Classes:
    """The classes of a channel. compute: 0 on a channel that only copies."""

    gpfifo: int
    compute: int
    copy: int


@dataclass
class _Order:
    """Order of the work that has been encoded in an image.

    copying: the copy engine may be running, and the compute engine is idle. ended: all earlier work
    has ended when the next command begins, including that of earlier images, each of which ends
    with a release that waits. alone: the descriptor of the launch at whose end all work so far has
    ended, if there is one. barrier: that launch starts the next one.
    """

    copying: bool = False
    ended: bool = True
    alone: int | None = None
    barrier: bool = False


class Encoder:
    """Encodes images for channels of one set of classes; stores the words that never change."""

    def __init__(self, classes: Classes, *, interrupts: bool = False) -> None:
        """interrupts: each signal raises an interrupt."""
        self.classes = classes
        gpfifo, copy = classes.gpfifo, classes.copy
        self._semaphore = header(HOST, method(gpfifo, "SEM_ADDR_LO"), 5)
        wide = {"PAYLOAD_SIZE": "64BIT"}
        self._release = word(gpfifo, "SEM_EXECUTE", OPERATION="RELEASE", RELEASE_WFI="EN", **wide)
        self._release_timed = word(
            gpfifo, "SEM_EXECUTE", OPERATION="RELEASE", RELEASE_WFI="EN",
            RELEASE_TIMESTAMP="EN", **wide,
        )  # fmt: skip
        self._acquire = word(
            gpfifo, "SEM_EXECUTE", OPERATION="ACQ_STRICT_GEQ", ACQUIRE_SWITCH_TSG="EN", **wide
        )
        announce = (header(HOST, method(gpfifo, "NON_STALL_INTERRUPT"), 1), 0)
        self._announce = announce if interrupts else ()
        self._idle = (header(HOST, method(gpfifo, "WFI"), 1), word(gpfifo, "WFI", SCOPE="ALL"))
        self._offsets = header(COPY, method(copy, "OFFSET_IN_UPPER"), 4)
        self._destination = header(COPY, method(copy, "OFFSET_OUT_UPPER"), 2)
        self._length = header(COPY, method(copy, "LINE_LENGTH_IN"), 1)
        self._launch = header(COPY, method(copy, "LAUNCH_DMA"), 1)
        line = {
            "DATA_TRANSFER_TYPE": "NON_PIPELINED",
            "FLUSH_ENABLE": "TRUE",
            "SRC_MEMORY_LAYOUT": "PITCH",
            "DST_MEMORY_LAYOUT": "PITCH",
        }
        self._copy_line = word(copy, "LAUNCH_DMA", **line)
        self._fill_line = word(copy, "LAUNCH_DMA", REMAP_ENABLE="TRUE", **line)
        self._remap = header(COPY, method(copy, "SET_REMAP_CONST_A"), 3)
        self._components = word(
            copy, "SET_REMAP_COMPONENTS", DST_X="CONST_A", COMPONENT_SIZE="FOUR",
            NUM_SRC_COMPONENTS="ONE", NUM_DST_COMPONENTS="ONE",
        )  # fmt: skip
        self._invalidate: tuple[int, ...] = ()
        if classes.compute:
            name = "INVALIDATE_SHADER_CACHES_NO_WFI"
            self._invalidate = (
                header(COMPUTE, method(classes.compute, name), 1),
                word(classes.compute, name, INSTRUCTION=1, GLOBAL_DATA=1, CONSTANT=1),
            )

    def encode(self, commands: Sequence[Command]) -> Commands:
        """Encode a list of commands as an image."""
        image = Pushbuffer()
        image.words += self._invalidate
        order = _Order()
        for position, command in enumerate(commands):
            if self.classes.compute and isinstance(command, Copy | Fill) != order.copying:
                self.wait_idle(image)
                order.copying, order.ended = not order.copying, True
            if isinstance(command, Launch):
                self._launch_kernel(image, command, order)
            elif (
                isinstance(command, Barrier)
                and order.alone is not None
                and (_single(commands, position + 1))
            ):
                order.barrier = True
            else:
                self._encode(image, command)
                waits = isinstance(command, Barrier | Signal)
                order.ended = waits or (isinstance(command, Wait) and order.ended)
                order.alone = None
        encoded = image.finish()
        names = [command.kernel.name for command in commands if isinstance(command, Launch)]
        encoded.kernels = tuple(dict.fromkeys(names))
        return encoded

    def _encode(self, image: Pushbuffer, command: Command) -> None:
        if isinstance(command, Copy):
            self._copy(image, command)
        elif isinstance(command, Fill):
            self._fill(image, command)
        elif isinstance(command, Signal):
            self.signal(image, Symbol.of(command.timeline.memory), command.value)
        elif isinstance(command, Wait):
            self._at(image, Symbol.of(command.timeline.memory), command.value, self._acquire)
            image.words += self._invalidate
        elif isinstance(command, Timestamp):
            self._timestamp(image, command.destination)
        elif isinstance(command, Barrier):
            self.wait_idle(image)
            image.words += self._invalidate

    def _launch_kernel(self, image: Pushbuffer, launch: Launch, order: _Order) -> None:
        if not self.classes.compute:
            raise BadArgument("a copy queue cannot launch kernels", kernel=launch.kernel.name)
        descriptor = add_launch(image, launch)
        if descriptor is None:
            return
        if launch.cooperative:  # alone: two partly started grids would wait for ever
            self.wait_idle(image)
            start_launch(image, launch, descriptor)
            self.wait_idle(image)
            order.alone, order.ended = None, True
        elif order.barrier:
            assert order.alone is not None
            start_after(image, launch, order.alone, descriptor)
            order.alone, order.barrier = descriptor, False
        else:
            start_launch(image, launch, descriptor)
            order.alone = descriptor if order.ended and chains(launch) else None
            order.ended = False

    def signal(self, image: Pushbuffer, address: Symbol, value: Symbol) -> None:
        """Write a 64-bit value when all earlier work has ended and is visible."""
        self._at(image, address, value, self._release)
        image.words += self._announce

    def wait_idle(self, image: Pushbuffer) -> None:
        """Make the following commands wait until the channel's engines have completed all earlier
        ones."""
        image.words += self._idle

    def _at(self, image: Pushbuffer, address: Symbol, value: Symbol, execute: int) -> None:
        image.words.append(self._semaphore)
        image.low_high(address)
        image.low_high(value)
        image.words.append(execute)

    def _in_block(self, image: Pushbuffer, block: int, value: int, execute: int) -> None:
        """Append an operation on a semaphore of our own, in the image's data."""
        image.words.append(self._semaphore)
        image.point(block, 0, 0)
        image.point(block, 0, 32)
        image.words += (value, 0, execute)

    def _timestamp(self, image: Pushbuffer, destination: Symbol) -> None:
        """Append the write of a timestamp to `destination`.

        A release writes payload and clock together, into a block of the image. From there a copy
        writes the clock alone to the destination.
        """
        block = image.add_block(bytes(_TIMED_SIZE), [])
        self._in_block(image, block, 1, self._release_timed)
        self._in_block(image, block, 1, self._acquire)  # the release has arrived
        image.words.append(self._offsets)
        image.point(block, 8, 32)
        image.point(block, 8, 0)
        image.high_low(destination)
        image.words += (self._length, 8, self._launch, self._copy_line)
        self._in_block(image, block, 0, self._release)  # reset it for the next replay

    def _copy(self, image: Pushbuffer, command: Copy) -> None:
        for start in range(0, command.size, COPY_MOST):
            image.words.append(self._offsets)
            image.high_low(command.source.plus(start))
            image.high_low(command.destination.plus(start))
            size = min(COPY_MOST, command.size - start)
            image.words += (self._length, size, self._launch, self._copy_line)

    def _fill(self, image: Pushbuffer, command: Fill) -> None:
        image.words += (self._remap, command.value & 0xFFFF_FFFF, 0, self._components)
        for start in range(0, command.size, COPY_MOST):
            image.words.append(self._destination)
            image.high_low(command.destination.plus(start))
            words = min(COPY_MOST, command.size - start) // 4
            image.words += (self._length, words, self._launch, self._fill_line)


def _single(commands: Sequence[Command], position: int) -> bool:
    """Return whether the next launch, from `position` on, is followed by a wait for all work.

    A second launch beside it would not wait for the work before it.
    """
    while position < len(commands) and isinstance(commands[position], Barrier):
        position += 1
    launch, behind = (*commands[position : position + 2], None, None)[:2]
    if not isinstance(launch, Launch) or launch.cooperative or 0 in launch.grid:
        return False
    return not isinstance(behind, Launch | Wait)
