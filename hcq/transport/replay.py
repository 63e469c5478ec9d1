"""Recordings as transports: a driver runs on one without the device.

The driver is held to the recorded order: each access, allocation and reset must be the next one,
and reads give what was read then. Interrupts that are waited for come at once.

Memory shared by DMA changes as it did, whoever changed it. What was found changed before an entry
is in place as soon as the entry before it has been repeated, or, where the driver was waiting
meanwhile, when it waits again: so a fence that the device wrote is seen, and so is the next one
after the driver took the first back. At every entry memory must hold what it held then: a driver
that writes something else into it is told where. Two things are not seen: that a driver does *not*
write what it wrote then (it finds that written already), and, of a word that changed twice between
two looks, the first value. So a driver that polls a word of memory alone, with neither accesses nor
`interrupts.wait` nor `present`, and overwrites that word before its next access, waits for ever.

A driver that uses a register by the clock, and not because of anything it did (a health check, or
the taking in of reports while it waits), does so more or less often from run to run; such places
are named as `by_clock`, and are outside the order: reads give what was last read, writes are taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import numpy as np

from hcq.errors import BadArgument, TransportError
from hcq.transport.base import PciIdentity, ResetKind, Traits
from hcq.transport.life import TransportLife
from hcq.transport.recording import (
    LONG,
    Allocation,
    Content,
    Entry,
    Free,
    LongWrite,
    Presence,
    Recording,
    Reset,
    Wait,
)
from hcq.transport.trace import CONFIG, Access

PAGE = 4096


class ReplayMemory:
    """Host memory with the bus address it had then."""

    def __init__(self, owner: ReplayTransport, entry: Allocation) -> None:
        self.number = entry.number
        self.size = entry.size
        self.view = memoryview(bytearray(entry.size))
        self.segments = entry.segments
        self._now = np.frombuffer(self.view, np.uint64)
        self._recorded = np.zeros_like(self._now)  # what it held, so far
        self._owner = owner
        self._closed = False

    def change(self, entry: Content, *, asked: bool) -> None:
        """Let it be changed as it was. asked: the driver does not wait, so what it has written by
        now is its own and stays, to be compared."""
        first, end = entry.offset, entry.offset + len(entry.data)
        now, recorded = (
            self._now.view(np.uint8)[first:end],
            self._recorded.view(np.uint8)[first:end],
        )
        data = np.frombuffer(entry.data, np.uint8)
        if asked:
            np.copyto(now, data, where=now == recorded)
        else:
            now[:] = data
        recorded[:] = data

    def compare(self) -> None:
        """TransportError unless it holds what it held in the recording."""
        if np.array_equal(self._now, self._recorded):
            return
        place = int(np.flatnonzero(self._now != self._recorded)[0])
        raise TransportError(
            "shared memory does not hold what was recorded",
            number=self.number,
            offset=place * 8,
            found=hex(self._now[place]),
            recorded=hex(self._recorded[place]),
        )

    def close(self) -> None:
        """Take it from the device; idempotent."""
        if not self._closed:
            self._closed = True
            self._owner.free(self)


class ReplayWindow:
    """A window whose accesses must be the recorded ones."""

    def __init__(self, owner: ReplayTransport, index: int, size: int) -> None:
        self._owner = owner
        self.index = index
        self.size = size

    def read32(self, offset: int) -> int:
        return self._number(offset, 4)

    def write32(self, offset: int, value: int) -> None:
        self._check(offset, 4, 4)
        self._owner.repeat(Access(self.index, offset, 4, True, value))

    def read64(self, offset: int) -> int:
        return self._number(offset, 8)

    def write64(self, offset: int, value: int) -> None:
        self._check(offset, 8, 8)
        self._owner.repeat(Access(self.index, offset, 8, True, value))

    def read(self, offset: int, size: int) -> bytes:
        self._check(offset, size, 4)
        return self._owner.read(Access(self.index, offset, size, False, None, b"")).data or b""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check(offset, len(data), 4)
        if len(data) < LONG:
            self._owner.repeat(Access(self.index, offset, len(data), True, None, bytes(data)))
            return
        digest = hashlib.sha256(data).hexdigest()
        self._owner.repeat(LongWrite(self.index, offset, len(data), digest))

    def _number(self, offset: int, width: int) -> int:
        self._check(offset, width, width)
        return self._owner.read(Access(self.index, offset, width, False, 0)).value or 0

    def _check(self, offset: int, size: int, align: int) -> None:
        outside = offset < 0 or size < 0 or offset + size > self.size
        if outside or offset % align or size % 4:
            raise BadArgument("bad offset or size", offset=offset, size=size, window=self.size)


class ReplayInterrupts:
    """Interrupts that have always just come; whoever waits finds memory as it was then."""

    def __init__(self, vectors: int, look: Callable[[], None]) -> None:
        self.vectors = vectors
        self._enabled = 1
        self._look = look

    def enable(self, count: int) -> None:
        if not 1 <= count <= self.vectors:
            raise BadArgument("the function has not so many", wanted=count, vectors=self.vectors)
        self._enabled = max(self._enabled, count)

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        if not 0 <= vector < self._enabled:
            raise BadArgument("that vector is not enabled", vector=vector, enabled=self._enabled)
        self._look()
        return True


class ReplayTransport(TransportLife):
    """Stands in for a recorded device. `finish` raises unless all of the recording was used."""

    def __init__(
        self,
        recording: Recording,
        name: str = "recording",
        *,
        by_clock: Collection[tuple[int, int]] = (),
    ) -> None:
        """by_clock: (window, offset) of registers that are used outside the order."""
        super().__init__(name)
        self.traits = Traits(any_order=False, counts_interrupts=False)
        self.identity: PciIdentity = recording.identity
        self.recording = recording
        self.position = 0
        self._by_clock = frozenset(by_clock)
        self._clocked: dict[tuple[int, int], Access] = {}  # the last of each, so far
        self._windows = {
            index: ReplayWindow(self, index, size) for index, size in recording.windows.items()
        }
        self._interrupts: ReplayInterrupts | None = None
        if recording.interrupts:
            self._interrupts = ReplayInterrupts(recording.interrupts, self._wait)
        self._memories: dict[int, ReplayMemory] = {}
        self._allocated = 0
        self._present = True
        self._go_on()
        self.opened()

    # ---- order -------------------------------------------------------------------------------

    def read(self, access: Access) -> Access:
        """The recorded read that `access` repeats."""
        clocked = self._clocked.get((access.window, access.offset))
        if clocked is not None and clocked.width == access.width:
            self.check_open()
            return clocked
        found = self._next(access)
        assert isinstance(found, Access)
        return found

    def repeat(self, entry: Entry) -> None:
        """Take the next recorded entry; TransportError unless it is `entry`."""
        if isinstance(entry, Access) and self._is_clocked(entry):
            self.check_open()
            return
        self._next(entry)

    def _next(self, entry: Entry) -> Entry:
        self.check_open()
        with self.lock:
            self._go_on(asked=True)
            if self.position >= len(self.recording.entries):
                raise TransportError("it goes on after the end of the recording", entry=str(entry))
            wanted = self.recording.entries[self.position]
            if not _same(entry, wanted):
                raise TransportError(
                    "not what was recorded",
                    position=self.position,
                    entry=str(entry),
                    recorded=str(wanted)[:200],
                )
            for memory in self._memories.values():
                memory.compare()
            self.position += 1
            if isinstance(wanted, Allocation):
                self._memories[wanted.number] = ReplayMemory(self, wanted)
            elif isinstance(wanted, Free):
                self._memories.pop(wanted.number, None)
            self._go_on()
            return wanted

    def _wait(self) -> None:
        """The driver waits: show what had changed when it waited then."""
        with self.lock:
            entries = self.recording.entries
            if self.position < len(entries) and isinstance(entries[self.position], Wait):
                self.position += 1
                self._go_on()

    def _go_on(self, *, asked: bool = False) -> None:
        """Let happen what nobody asked for, up to the next entry that somebody must repeat. asked:
        somebody does so now, so that waiting is over; else it ends where the driver waited."""
        entries = self.recording.entries
        while self.position < len(entries):
            entry = entries[self.position]
            if isinstance(entry, Content):
                self._change(entry, asked=asked)
            elif isinstance(entry, Presence):
                self._present = entry.present
            elif isinstance(entry, Access) and self._is_clocked(entry):
                if not entry.is_write:
                    self._clocked[entry.window, entry.offset] = entry
            elif not (isinstance(entry, Wait) and asked):
                return
            self.position += 1

    def _is_clocked(self, access: Access) -> bool:
        return (access.window, access.offset) in self._by_clock

    def _change(self, entry: Content, *, asked: bool) -> None:
        memory = self._memories.get(entry.number)
        end = entry.offset + len(entry.data)
        if memory is None or entry.offset < 0 or end > memory.size:
            raise BadArgument(
                "the recording changes memory that is not there",
                position=self.position, number=entry.number, offset=entry.offset,
            )  # fmt: skip
        memory.change(entry, asked=asked)

    def finish(self) -> None:
        """TransportError if something of the recording was not repeated."""
        self._go_on(asked=True)
        if self.position < len(self.recording.entries):
            first = str(self.recording.entries[self.position])[:200]
            raise TransportError("accesses are missing", position=self.position, first=first)

    # ---- hcq.transport.base.Transport --------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        return self.read(Access(CONFIG, offset, width, False, 0)).value or 0

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.repeat(Access(CONFIG, offset, width, True, value))

    def window(self, index: int) -> ReplayWindow:
        self.check_open()
        if index not in self._windows:
            raise BadArgument("no such window in the recording", index=index)
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> ReplayMemory:
        """The next allocation of the recording, which must have that size."""
        if size <= 0:
            raise BadArgument("DMA memory has a positive size", size=size)
        size = -(-size // PAGE) * PAGE
        number = self._allocated
        self.repeat(Allocation(number, size, ()))
        self._allocated += 1
        return self._memories[number]

    def free(self, memory: ReplayMemory) -> None:
        """Repeat that memory was taken from the device; nothing after the end."""
        if not self.closed and self.position < len(self.recording.entries):
            self.repeat(Free(memory.number))

    @property
    def interrupts(self) -> ReplayInterrupts | None:
        """None where the device had none."""
        self.check_open()
        return self._interrupts

    def reset(self, kind: ResetKind) -> None:
        self.repeat(Reset(kind))

    def present(self) -> bool:
        """Whether the device answered then."""
        self._wait()
        return self._present and not self.closed


def _same(entry: Entry, wanted: Entry) -> bool:
    """Whether a driver did what was recorded; of a read, and of an allocation's place, the
    recording knows more."""
    if isinstance(entry, Allocation) and isinstance(wanted, Allocation):
        return (entry.number, entry.size) == (wanted.number, wanted.size)
    if not isinstance(entry, Access) or not isinstance(wanted, Access):
        return entry == wanted
    places = [(a.window, a.offset, a.width, a.is_write, a.data is None) for a in (entry, wanted)]
    if places[0] != places[1]:
        return False
    return not entry.is_write or (entry.value, entry.data) == (wanted.value, wanted.data)
