"""Queues of a null device: commands are checked, counted, and over as soon as they are submitted.

An image has two words for the value of each signal, and two for each address or parameter that a
command names, so that graphs bind and patch it as on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.null.chip import Counts
from ugpu.hcq.work.command import Command, Copy, Fill, Launch, Signal, Timestamp
from ugpu.hcq.work.command_buffer import CommandBuffer, Reference, Relocation, Symbol
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import Timeline


class CountedImage(CommandBuffer):
    """An image, and what it amounts to. timelines: those it signals, in order."""

    def __init__(self, commands: Sequence[Command]) -> None:
        values: list[Symbol] = []
        self.timelines: list[Timeline] = []
        self.counts = Counts()
        for command in commands:
            if isinstance(command, Signal):
                self.timelines.append(command.timeline)
                values.append(command.value)
        for command in commands:
            values += _named(command)
            _count(command, self.counts)
        words = np.zeros(2 * len(values), np.uint32)
        relocations: list[Relocation] = []
        for place, symbol in enumerate(values):
            if symbol.kind == "constant":
                words[2 * place : 2 * place + 2] = symbol.addend & 0xFFFF_FFFF, symbol.addend >> 32
            else:
                relocations += Reference(0, 8, symbol).relocations(2 * place)
        super().__init__(words, len(words), relocations)

    def run(self, words: NDArray[np.uint32], counts: Counts) -> None:
        """Signal and count; words: this image, patched."""
        for place, timeline in enumerate(self.timelines):
            low, high = words[2 * place : 2 * place + 2].tolist()
            timeline.reach(high << 32 | low)
        counts.kernels += self.counts.kernels
        counts.moved_bytes += self.counts.moved_bytes
        counts.flops += self.counts.flops
        counts.copied_bytes += self.counts.copied_bytes


def _named(command: Command) -> list[Symbol]:
    """Return the addresses and parameters that a command names."""
    if isinstance(command, Launch):
        return [reference.symbol for reference in command.references]
    if isinstance(command, Copy):
        return [command.destination, command.source]
    return [command.destination] if isinstance(command, Fill | Timestamp) else []


def _count(command: Command, counts: Counts) -> None:
    if isinstance(command, Launch):
        counts.kernels += 1
        work = command.kernel.program.work.get(command.kernel.name)
        if work is not None:
            counts.moved_bytes += work.moved
            counts.flops += work.flops
    elif isinstance(command, Copy | Fill):
        counts.copied_bytes += command.size


class NullResident(Resident):
    """A placed image."""

    def __init__(self, image: CountedImage) -> None:
        self.image = image
        self.words = image.words.copy()
        self.address = 0

    def close(self) -> None:
        """Do nothing: it has no memory of the device."""


class NullQueue(HardwareQueue):
    """A queue whose work ends when it is submitted."""

    def __init__(self, driver: Driver, kind: QueueKind, timeline: Timeline, counts: Counts) -> None:
        self.core = driver.core
        self.kind = kind
        self.name = f"{driver.name} {kind.value}"
        self.timeline = timeline
        self.counts = counts

    def encode(self, commands: Sequence[Command]) -> CountedImage:
        if self.kind is QueueKind.COPY and any(isinstance(each, Launch) for each in commands):
            raise BadArgument("a copy queue cannot launch kernels", queue=self.name)
        return CountedImage(commands)

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        assert isinstance(buffer, CountedImage)
        words = np.empty_like(buffer.words)
        buffer.patch(words, values)
        buffer.run(words, self.counts)

    def overwrite(self) -> None:
        """See HardwareQueue: images are not kept."""

    def place(self, buffer: CommandBuffer) -> Resident:
        assert isinstance(buffer, CountedImage)
        return NullResident(buffer)

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        assert isinstance(resident, NullResident)
        self.timeline.last = value
        resident.image.run(resident.words, self.counts)
