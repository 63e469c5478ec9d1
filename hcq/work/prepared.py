"""Work that is prepared once and submitted repeatedly, with other numbers each time.

Repeated launches of a kernel in the same shape differ only in their arguments: the first launch of
a shape is encoded with a symbol for each word of its arguments; later ones only fill these in. A
kernel keeps the images of its last few shapes; they are freed with the kernel. What a caller
prepares itself (`prepare`) is a Repetition of two numbers that change (hcq.work.queue), or
Placed in memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ugpu.hcq.work.command import Barrier, Command, Launch, Signal, uses
from ugpu.hcq.work.command_buffer import BufferReferences, CommandBuffer, Reference, Symbol

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.queue import HardwareQueue, Repetition, Resident

_MOST_ARGUMENTS = 256  # bytes; longer ones take longer to fill in than to encode
_MOST_SHAPES = 16  # of one kernel


def encode_submission(
    hardware: HardwareQueue, commands: Sequence[Command]
) -> tuple[CommandBuffer, list[int] | None]:
    """Return the image of `commands` followed by the signal of their end, and the values of its
    parameters; None if it has none. Both are for `values_of`."""
    if len(commands) == 1 and hardware.reuses_launches:
        (launch,) = commands
        if isinstance(launch, Launch) and not launch.cooperative:
            words = _arguments(launch)
            if words is not None:
                return _template(hardware, launch), words
    end = Signal(hardware.timeline, Symbol("signal"))
    encoded = hardware.encode([*commands, end])
    encoded.launches = _launches_of(commands)
    return encoded, None


def prepare(hardware: HardwareQueue, commands: Sequence[Command]) -> CommandBuffer:
    """Encode commands once, for many submissions. Values that differ between them are symbols of
    kind "parameter", whose slots Core.submit_prepared fills. Does not touch hardware."""
    end = Signal(hardware.timeline, Symbol("signal"))
    prepared = hardware.encode([*commands, end])
    prepared.uses = uses(commands)
    prepared.launches = _launches_of(commands)
    return prepared


def repetition_of(
    hardware: HardwareQueue, commands: Sequence[Command], inputs: Sequence[Buffer]
) -> Repetition | None:
    """Return work that does what `commands` do; its numbers are the addresses of other memory for
    `inputs`, in this order. None if other commands than launches are among them, or an input is
    part of memory that they use."""
    opened: list[Command] = []
    for command in commands:
        if isinstance(command, Launch):
            references = [_opened(reference, inputs) for reference in command.references]
            given = [reference for reference in references if reference is not None]
            if len(given) < len(references):
                return None
            opened += [replace(command, references=tuple(given)), Barrier()]
        elif not isinstance(command, Barrier) and not _ends(command, hardware):
            return None
    prepared = prepare(hardware, opened)
    addresses = [int(buffer.address) for buffer in inputs]
    return hardware.repetition(prepared, addresses, [[slot] for slot in range(len(inputs))])


def _ends(command: Command, hardware: HardwareQueue) -> bool:
    """Return whether a command is the end of a submission to a queue."""
    return isinstance(command, Signal) and command.timeline is hardware.timeline


def _opened(reference: Reference, inputs: Sequence[Buffer]) -> Reference | None:
    """Return a reference to an input's address as one to a parameter; None if it is to memory
    that lies in an input only in part."""
    symbol, used = reference.symbol, reference.symbol.buffer
    if used is None:
        return reference
    start, end = int(used.address), int(used.address) + used.size
    for slot, buffer in enumerate(inputs):
        low, high = int(buffer.address), int(buffer.address) + buffer.size
        if (used.owner or used) is not (buffer.owner or buffer) or end <= low or start >= high:
            continue
        if start < low or end > high:
            return None
        number = Symbol("parameter", addend=symbol.addend + start - low, slot=slot)
        return Reference(reference.offset, reference.width, number)
    return reference


def _launches_of(commands: Sequence[Command]) -> int:
    """Return the number of commands that launch a kernel."""
    return sum(isinstance(command, Launch) for command in commands)


def _arguments(launch: Launch) -> list[int] | None:
    """Return the words of a launch's arguments; None if they are too many, or not known yet."""
    size = len(launch.kernarg)
    if size % 4 or size > _MOST_ARGUMENTS:
        return None
    found = memoryview(launch.kernarg).cast("I").tolist() if size else []
    if isinstance(launch.references, BufferReferences):
        return found
    for reference in launch.references:
        buffer, at = reference.symbol.buffer, reference.offset // 4
        if buffer is None or reference.width != 8 or reference.offset % 4:
            return None
        address = int(buffer.address) + reference.symbol.addend
        found[at : at + 2] = address & 0xFFFF_FFFF, address >> 32 & 0xFFFF_FFFF
    return found


def _template(hardware: HardwareQueue, launch: Launch) -> CommandBuffer:
    kept = launch.kernel.templates
    key = hardware, launch.grid, launch.block, launch.dynamic_local, launch.cluster
    found = kept.get(key)
    if found is None:
        words = range(len(launch.kernarg) // 4)
        references = tuple(Reference(4 * word, 4, Symbol("parameter", slot=word)) for word in words)
        whole = replace(launch, kernarg=bytes(len(launch.kernarg)), references=references)
        end = Signal(hardware.timeline, Symbol("signal"))
        found = hardware.encode([whole, end])
        found.launches = 1
        if len(kept) >= _MOST_SHAPES:
            kept.pop(next(iter(kept)), None)
        kept[key] = found
    return found


class Placed:
    """Result of `prepare`, in its own memory: a submission writes the words that change and
    rings the doorbell. Not thread-safe; owned by the caller."""

    def __init__(self, hardware: HardwareQueue, prepared: CommandBuffer) -> None:
        self.core = core = hardware.core
        self.hardware = hardware
        self.prepared = prepared
        self._end = 0  # of its last run
        with core.lock:
            core.check_usable()
            self._resident: Resident | None = hardware.place(prepared)
        positions: list[int] = []
        sources: list[int] = []  # 0: the value that marks the end; 1 and up: the parameters
        fixed = np.zeros(len(prepared.symbols), np.uint64)
        for position, symbol in enumerate(prepared.symbols):
            if symbol.kind == "image":
                fixed[position] = self._resident.address
            elif symbol.buffer is not None:
                fixed[position] = int(symbol.buffer.address)
            elif symbol.kind in ("signal", "parameter"):
                positions.append(position)
                sources.append(0 if symbol.kind == "signal" else 1 + symbol.slot)
        self._part = prepared.part(positions, sources, [0] * len(positions))
        self._resident.fill(prepared, fixed)

    @property
    def ended(self) -> bool:
        """Return whether its last run has ended, so that the image may be written again."""
        return self.hardware.timeline.value >= self._end

    def submit(self, parameters: Sequence[int]) -> int:
        """Run it, with parameters[slot] as each slot's value; otherwise like Core.submit_prepared.
        The last run must have `ended`."""
        assert self._resident is not None
        values = np.array([0, *parameters], np.uint64)
        self._end = self.core.submit_resident(
            self.hardware, self.prepared, self._resident, self._part, values
        )
        return self._end

    def close(self) -> None:
        """Free the image, once work that was submitted earlier has ended; idempotent."""
        resident, self._resident = self._resident, None
        if resident is not None and not self.core.closed:
            self.core.retired.drop(resident.close)
