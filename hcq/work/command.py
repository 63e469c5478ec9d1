"""Commands: what a queue executes, as the recorder writes it and a queue's encoder reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.hcq.errors import Closed
from ugpu.hcq.work.command_buffer import BufferReferences, Reference, Symbol, Used

if TYPE_CHECKING:
    from ugpu.hcq.work.program import Kernel
    from ugpu.hcq.work.timeline import Timeline


@dataclass(slots=True)
class Launch:
    """Run a kernel. Immutable.

    Attributes:
        kernel: the entry point; its program must be open.
        grid: number of groups along each axis.
        block: threads of a group along each axis.
        kernarg: the packed argument block.
        references: the bytes of kernarg that are addresses of buffers, or scalars that are not
            known yet.
        dynamic_local: bytes of local memory that each group gets after the kernel's static share;
            only for targets whose `dynamic_local_memory` allows them (`Queue.launch` checks).
        cluster: number of groups that run together and can access each other's local memory; None:
            each runs alone.
        cooperative: whether all groups run at the same time, so that they may wait for each other.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    kernarg: bytes
    references: Sequence[Reference] = ()
    dynamic_local: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


@dataclass(frozen=True)
class Copy:
    """Copy bytes between buffers, or within one (the ranges must not overlap).

    Attributes:
        destination: address of the first byte written.
        source: address of the first byte read.
        size: in bytes.
    """

    destination: Symbol
    source: Symbol
    size: int


@dataclass(frozen=True)
class Fill:
    """Fill memory with a repeated 32-bit value.

    Attributes:
        destination: address of the first byte written.
        value: the 32-bit value.
        size: in bytes, a multiple of 4.
    """

    destination: Symbol
    value: int
    size: int


@dataclass(frozen=True)
class Wait:
    """Stall the queue until a timeline has reached a value.

    Attributes:
        timeline: the timeline to wait for.
        value: a symbol or a plain number.
    """

    timeline: Timeline
    value: Symbol


@dataclass(frozen=True)
class Signal:
    """Raise a timeline after all earlier commands have finished and are visible.

    Attributes:
        timeline: the timeline to raise.
        value: a symbol or a plain number.
    """

    timeline: Timeline
    value: Symbol


@dataclass(frozen=True)
class Timestamp:
    """Write the device clock after all earlier commands.

    Attributes:
        destination: address of the 64-bit ticks, see Device.clock_hertz.
    """

    destination: Symbol


@dataclass(frozen=True)
class Barrier:
    """Order: later commands start after earlier ones have finished and their writes are visible."""


Command = Launch | Copy | Fill | Wait | Signal | Timestamp | Barrier


def uses(commands: Sequence[Command]) -> tuple[Used, ...]:
    """Return the buffers and programs that `commands` use, owners of slices included."""
    found: list[Used] = []
    for command in commands:
        symbols: Sequence[Symbol] = ()
        if isinstance(command, Launch):
            found.append(command.kernel.program)
            if isinstance(command.references, BufferReferences):
                for _, buffer in command.references.places:
                    found.append(buffer)
                    if buffer.owner is not None:
                        found.append(buffer.owner)
                continue
            symbols = [reference.symbol for reference in command.references]
        elif isinstance(command, Copy):
            symbols = (command.destination, command.source)
        elif isinstance(command, Fill | Timestamp):
            symbols = (command.destination,)
        elif isinstance(command, Wait | Signal):
            symbols = (Symbol.of(command.timeline.memory),)
        for symbol in symbols:
            if symbol.buffer is not None:
                found.append(symbol.buffer)
                if symbol.buffer.owner is not None:
                    found.append(symbol.buffer.owner)
    if len(commands) == 1:
        return tuple(found)
    return tuple({id(each): each for each in found}.values())


def check_open(used: Sequence[Used]) -> None:
    """Raise Closed if one of `used` was closed after the commands that use it were recorded."""
    for each in used:
        if each.closed:
            raise Closed(f"a {type(each).__name__.lower()} of this submission has been closed")
