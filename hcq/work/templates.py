"""Launches that are encoded once: repeated launches of a kernel in the same shape differ only in
their arguments.

The first launch of a shape is encoded with a symbol for each word of its arguments; later ones only
fill these in. A kernel keeps the images of its last few shapes; they are freed with the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ugpu.hcq.work.command import (
    BufferReferences,
    Command,
    CommandBuffer,
    Launch,
    Reference,
    Signal,
    Symbol,
)
from ugpu.hcq.work.queue import HardwareQueue

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
    encoded.launches = launches_of(commands)
    return encoded, None


def launches_of(commands: Sequence[Command]) -> int:
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
