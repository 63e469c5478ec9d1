"""Command words of queues over the wire, encoded by a client and decoded by ugpud.

A command is an operation word and its operands; addresses and sizes are two words, low first:

LAUNCH kernel(2), grid x y z, block x y z, dynamic local memory(2), cluster x y z (0 0 0: none),
       flags (bit 0: cooperative), bytes of arguments, the arguments, padded to whole words
COPY to(2) from(2) bytes(2)        FILL to(2) bytes(2) value
WAIT timeline(2) value(2)          SIGNAL timeline(2) value(2)
TIMESTAMP to(2)                    BARRIER

Addresses are those of the device: start of memory that was allocated under the lease, or inside it.
A timeline is the address of its value. A placed image, for graphs, comes with a table of the places
that its replays fill in (PLACE).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Relocation, Symbol

LAUNCH, COPY, FILL, WAIT, SIGNAL, TIMESTAMP, BARRIER = range(1, 8)
LAUNCH_WORDS = 16  # before the arguments
COOPERATIVE = 1
#: one place of an image that a replay fills in: `width` bits of a word, from bit `lsb` up. 64 bits
#: take that word and the next.
PLACE = np.dtype([("word", "<u4"), ("lsb", "u1"), ("width", "u1"), ("zero", "<u2")])


class Encoder:
    """Builds one image of command words."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[Relocation] = []

    def add(self, command: Command) -> None:
        """Append a command."""
        match command:
            case Launch():
                self._launch(command)
            case Copy(destination, source, size):
                self._operation(COPY, destination, source, size)
            case Fill(destination, value, size):
                self._operation(FILL, destination, size)
                self.words.append(value & 0xFFFF_FFFF)
            case Wait(timeline, value):
                self._operation(WAIT, timeline.address, value)
            case Signal(timeline, value):
                self._operation(SIGNAL, timeline.address, value)
            case Timestamp(destination):
                self._operation(TIMESTAMP, destination)
            case Barrier():
                self.words.append(BARRIER)

    def finish(self) -> CommandBuffer:
        """Return the image."""
        return CommandBuffer(np.array(self.words, np.uint32), len(self.words), self.relocations)

    def _operation(self, operation: int, *operands: int | Symbol) -> None:
        self.words.append(operation)
        for operand in operands:
            self._value(operand)

    def _value(self, value: int | Symbol) -> None:
        if isinstance(value, Symbol) and value.kind != "constant":
            word = len(self.words)
            self.relocations += (Relocation(word, value), Relocation(word + 1, value, shift=32))
            self.words += (0, 0)
            return
        number = value.addend if isinstance(value, Symbol) else value
        self.words += (number & 0xFFFF_FFFF, number >> 32 & 0xFFFF_FFFF)

    def _launch(self, launch: Launch) -> None:
        self.words.append(LAUNCH)
        self._value(launch.kernel.address)
        self.words += (*launch.grid, *launch.block)
        self._value(launch.dynamic_local)
        self.words += launch.cluster or (0, 0, 0)
        self.words += (COOPERATIVE if launch.cooperative else 0, len(launch.kernarg))
        start = len(self.words)
        block = launch.kernarg + bytes(-len(launch.kernarg) % 4)
        self.words += np.frombuffer(block, "<u4").tolist()
        for reference in launch.references:
            self.relocations += reference.relocations(start)


def encode(commands: Sequence[Command]) -> CommandBuffer:
    """Return commands as an image; values that are not known yet are relocations."""
    encoder = Encoder()
    for command in commands:
        encoder.add(command)
    return encoder.finish()


def places(encoded: CommandBuffer) -> NDArray[np.void]:
    """Return the places of an image's relocations, as a table for the server."""
    widths: dict[tuple[int, int], int] = {}
    for relocation in encoded.relocations:
        if relocation.shift == 0:
            widths[relocation.word, relocation.lsb] = relocation.width
    for relocation in encoded.relocations:
        if relocation.shift:  # the upper half of a 64-bit number
            widths[relocation.word - 1, 0] = 64
    rows = [(word, lsb, width, 0) for (word, lsb), width in sorted(widths.items())]
    return np.array(rows, PLACE)
