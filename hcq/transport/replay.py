"""Recordings as transports: a driver runs on one without the device.

The driver is held to the recorded order: each access, allocation and reset must be the next one,
and reads give what was read then. Memory shared by DMA changes as it did: what was found changed
before an entry is in place as soon as the entry before it has been repeated. Interrupts that are
waited for come at once.

A driver that uses a register by the clock, and not because of anything it did (a health check, or
the taking in of reports while it waits), does so more or less often from run to run; such places
are named as `by_clock`, and are outside the order: reads give what was last read, writes are taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from hcq.errors import BadArgument, TransportError
from hcq.transport.base import PciIdentity, ResetKind
from hcq.transport.life import TransportLife
from hcq.transport.recording import (
    LONG,
    Allocation,
    Content,
    Entry,
    Free,
    LongWrite,
    Recording,
    Reset,
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
        self._owner = owner
        self._closed = False

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

    def __init__(self, vectors: int) -> None:
        self.vectors = vectors
        self._enabled = 1

    def enable(self, count: int) -> None:
        if not 1 <= count <= self.vectors:
            raise BadArgument("the function has not so many", wanted=count, vectors=self.vectors)
        self._enabled = max(self._enabled, count)

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        if not 0 <= vector < self._enabled:
            raise BadArgument("that vector is not enabled", vector=vector, enabled=self._enabled)
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
        self.identity: PciIdentity = recording.identity
        self.recording = recording
        self.position = 0
        self._by_clock = frozenset(by_clock)
        self._clocked: dict[tuple[int, int], Access] = {}  # the last of each, so far
        self._windows = {
            index: ReplayWindow(self, index, size) for index, size in recording.windows.items()
        }
        self._interrupts = ReplayInterrupts(recording.interrupts) if recording.interrupts else None
        self._memories: dict[int, ReplayMemory] = {}
        self._go_on()

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
        self.position += 1
        if isinstance(wanted, Allocation):
            self._memories[wanted.number] = ReplayMemory(self, wanted)
        self._go_on()
        return wanted

    def _go_on(self) -> None:
        """Let happen what nobody asked for, up to the next entry that somebody must repeat."""
        entries = self.recording.entries
        while self.position < len(entries):
            entry = entries[self.position]
            if isinstance(entry, Content):
                self._change(entry)
            elif isinstance(entry, Access) and self._is_clocked(entry):
                if not entry.is_write:
                    self._clocked[entry.window, entry.offset] = entry
            else:
                return
            self.position += 1

    def _is_clocked(self, access: Access) -> bool:
        return (access.window, access.offset) in self._by_clock

    def _change(self, entry: Content) -> None:
        memory = self._memories.get(entry.number)
        end = entry.offset + len(entry.data)
        if memory is None or entry.offset < 0 or end > memory.size:
            raise BadArgument(
                "the recording changes memory that is not there",
                position=self.position, number=entry.number, offset=entry.offset,
            )  # fmt: skip
        memory.view[entry.offset : end] = entry.data

    def finish(self) -> None:
        """TransportError if something of the recording was not repeated."""
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
        number = len(self._memories)
        self.repeat(Allocation(number, size, ()))
        return self._memories[number]

    def free(self, memory: ReplayMemory) -> None:
        """Repeat that memory was taken from the device; nothing after the end."""
        if not self.closed and self.position < len(self.recording.entries):
            self.repeat(Free(memory.number))

    @property
    def interrupts(self) -> ReplayInterrupts | None:
        """None where the device had none."""
        return self._interrupts

    def reset(self, kind: ResetKind) -> None:
        self.repeat(Reset(kind))

    def present(self) -> bool:
        return not self.closed


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
