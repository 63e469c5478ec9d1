"""Translate a client's command words into commands for a device. The client is not trusted: every
operation, kernel, address and size is checked before a command is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.remote import words as wire
from ugpu.hcq.remote.words import PLACE
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import Reference, Symbol
from ugpu.hcq.work.program import Kernel
from ugpu.hcq.work.timeline import Timeline

_WIDTHS = (8, 16, 32, 64)


class Scope(Protocol):
    """The objects that a lease's holder may use."""

    target: TargetSpec

    def kernel(self, handle: int) -> Kernel:
        """Return a loaded kernel; BadArgument if it does not exist."""
        ...

    def check(self, address: int, size: int) -> None:
        """Raise BadArgument unless the bytes lie in memory of the lease."""
        ...

    def timeline(self, address: int) -> Timeline:
        """Return the counter at an address of the lease; BadArgument."""
        ...


@dataclass
class Decoded:
    """commands: the decoded commands. extents: for each place that is filled in later, the number
    of bytes that commands access from its address; 0 for a kernel argument, which only the kernel
    reads."""

    commands: list[Command] = field(default_factory=list)
    extents: dict[int, int] = field(default_factory=dict)


class Decoder:
    """Decode one image. places: slot, first bit and width, by the word that a replay fills."""

    def __init__(
        self,
        words: NDArray[np.uint32],
        scope: Scope,
        places: Mapping[int, list[tuple[int, int, int]]] | None = None,
    ) -> None:
        self._words: list[int] = words.tolist()
        self._scope = scope
        self._places = dict(places or {})
        self._at = 0
        self._found = Decoded()

    def decode(self) -> Decoded:
        """Return the commands; BadArgument, NotSupported."""
        takers = {
            wire.LAUNCH: self._launch,
            wire.COPY: self._copy,
            wire.FILL: self._fill,
            wire.WAIT: self._wait,
            wire.SIGNAL: self._signal,
            wire.TIMESTAMP: self._timestamp,
            wire.BARRIER: self._barrier,
        }
        while self._at < len(self._words):
            operation = self._word()
            take = takers.get(operation)
            if take is None:
                raise BadArgument(
                    f"word {self._at - 1} of a submission is not an operation", word=operation
                )
            self._found.commands.append(take())
        if self._places:
            raise BadArgument("a replay fills words that do not contain an address or argument")
        return self._found

    # ---- operations --------------------------------------------------------------------------

    def _launch(self) -> Command:
        kernel = self._scope.kernel(self._number())
        grid, block = self._three(), self._three()
        dynamic, cluster = self._number(), self._three()
        flags, size = self._word(), self._word()
        count = -(-size // 4)
        if self._at + count > len(self._words):
            raise BadArgument("the arguments of a launch are truncated", kernel=kernel.name)
        start = self._at
        references = self._references(start, size)
        self._at += count
        arguments = np.array(self._words[start : self._at], "<u4").tobytes()[:size]
        self._check_launch(kernel, grid, block, dynamic, cluster, flags, size)
        return Launch(
            kernel,
            grid,
            block,
            arguments,
            references,
            dynamic,
            cluster if any(cluster) else None,
            bool(flags & wire.COOPERATIVE),
        )

    def _check_launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic: int,
        cluster: tuple[int, int, int],
        flags: int,
        size: int,
    ) -> None:
        target = self._scope.target
        if size != kernel.kernarg_size:
            raise BadArgument(
                f"{kernel.name} takes {kernel.kernarg_size} bytes of arguments, got {size}"
            )
        threads = block[0] * block[1] * block[2]
        if not 0 < threads <= target.max_threads_per_group:
            raise BadArgument("bad group size", block=block, at_most=target.max_threads_per_group)
        if any(groups >= 1 << 31 for groups in grid):
            raise BadArgument("grid sizes must be below 2^31", grid=grid)
        if dynamic and kernel.local_size + dynamic > target.dynamic_local_memory:
            raise BadArgument(f"{kernel.name}: too much dynamic local memory", dynamic=dynamic)
        if any(cluster):
            groups = cluster[0] * cluster[1] * cluster[2]
            whole = groups and not any(g % c for g, c in zip(grid, cluster, strict=True))
            if not whole or groups > target.max_cluster:
                raise BadArgument(
                    f"{kernel.name}: the cluster size is out of range", cluster=cluster, grid=grid
                )
        if flags & ~wire.COOPERATIVE:
            raise BadArgument("unknown flags of a launch", flags=flags)
        if flags & wire.COOPERATIVE and not target.cooperative:
            raise NotSupported("cooperative launches", target=target.name)

    def _references(self, start: int, size: int) -> tuple[Reference, ...]:
        """Return the places inside an argument block."""
        found = []
        for word in range(start, start + -(-size // 4)):
            for slot, lsb, width in self._places.pop(word, ()):
                offset = 4 * (word - start) + lsb // 8
                if offset + width // 8 > size or offset % min(width // 8, 4):
                    raise BadArgument("a replay fills bytes outside the arguments")
                self._found.extents.setdefault(slot, 0)
                found.append(Reference(offset, width // 8, Symbol("parameter", slot=slot)))
        return tuple(found)

    def _copy(self) -> Command:
        size_at = self._at + 4
        size = self._peek(size_at)
        destination, source = self._address(size), self._address(size)
        self._at += 2
        return Copy(destination, source, size)

    def _fill(self) -> Command:
        size = self._peek(self._at + 2)
        if size % 4:
            raise BadArgument("the size of a fill must be a multiple of 4 bytes", size=size)
        destination = self._address(size)
        self._at += 2
        return Fill(destination, self._word(), size)

    def _wait(self) -> Command:
        return Wait(self._scope.timeline(self._number()), self._value())

    def _signal(self) -> Command:
        return Signal(self._scope.timeline(self._number()), self._value())

    def _timestamp(self) -> Command:
        return Timestamp(self._address(8))

    def _barrier(self) -> Command:
        return Barrier()

    # ---- operands ----------------------------------------------------------------------------

    def _word(self) -> int:
        if self._at >= len(self._words):
            raise BadArgument("a command of a submission is truncated")
        self._at += 1
        return self._words[self._at - 1]

    def _peek(self, at: int) -> int:
        """Return a 64-bit number further on, which must not be filled in later."""
        if at + 2 > len(self._words):
            raise BadArgument("a command of a submission is truncated")
        return self._words[at] | self._words[at + 1] << 32

    def _number(self) -> int:
        return self._word() | self._word() << 32

    def _three(self) -> tuple[int, int, int]:
        return self._word(), self._word(), self._word()

    def _place(self) -> int | None:
        """Return the slot of the 64-bit operand at this position if it is filled in later."""
        found = self._places.pop(self._at, None)
        if found is None:
            return None
        if len(found) != 1 or found[0][2] != 64:
            raise BadArgument("a 64-bit operand must be filled as a whole")
        return found[0][0]

    def _value(self) -> Symbol:
        slot = self._place()
        number = self._number()
        if slot is None:
            return Symbol.constant(number)
        self._found.extents.setdefault(slot, 0)
        return Symbol("parameter", slot=slot)

    def _address(self, size: int) -> Symbol:
        slot = self._place()
        number = self._number()
        if slot is None:
            self._scope.check(number, size)
            return Symbol.constant(number)
        self._found.extents[slot] = size
        return Symbol("parameter", slot=slot)


def table_of(data: bytes | memoryview, words: int) -> dict[int, list[tuple[int, int, int]]]:
    """Check a table of places (PLACE) and return slot, first bit and width by word; BadArgument."""
    if len(data) % PLACE.itemsize:
        raise BadArgument("a table of places is truncated")
    places: dict[int, list[tuple[int, int, int]]] = {}
    for slot, (word, lsb, width, zero) in enumerate(np.frombuffer(data, PLACE).tolist()):
        whole = 2 if width == 64 else 1
        if width not in _WIDTHS or zero or word + whole > words:
            raise BadArgument("a place is outside the image")
        if lsb % 8 or (lsb and width == 64) or lsb + min(width, 32) > 32:
            raise BadArgument("a place must be a whole operand of the image")
        places.setdefault(word, []).append((slot, lsb, width))
    return places
