"""Recordings as transports: a driver runs on one without a device.

The driver must repeat the recorded order: each access, allocation and reset must be the next one,
and reads return the recorded values. A wait for an interrupt returns immediately.

Memory shared by DMA changes as in the recording. Content that the device had written when an access
ended is in place when the access ends. Later changes, by the device or the driver, appear when they
were seen. When the driver waits (`clock.polled`, or `interrupts.wait`), the changes that its
recorded poll saw are in place for its next poll. Before each entry, all changes recorded before it
are in place. Until then the driver finds its own writes, so that it can read them back and continue
from there. A word that it waits for, resets and waits for again is seen each time. At every entry
memory must match the recording byte for byte: if a driver writes something else, the error says
where. A write that the driver leaves out is not detected. A driver that polls memory in its own
loop, without any of these calls, waits forever.

Some registers are accessed depending on time, not on the driver's earlier accesses (a health check,
or collecting reports while it waits), so more or less often from run to run. Such places are named
as `by_clock`, and are outside the order: reads return the last value read, writes are accepted.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection

import numpy as np

from ugpu.hcq.errors import BadArgument, DeviceBusy, NotSupported, TransportError
from ugpu.hcq.state.clock import Clock, WatchedClock
from ugpu.hcq.transport.base import PciIdentity, ResetKind, Traits
from ugpu.hcq.transport.life import TransportLife
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access
from ugpu.hcq.transport.recorded.format import (
    LONG,
    Allocation,
    Content,
    Entry,
    Free,
    LongWrite,
    Mark,
    Presence,
    Recording,
    Reset,
    Wait,
    driven,
)

PAGE = 4096


class ReplayMemory:
    """Host memory with its recorded bus address."""

    def __init__(self, owner: ReplayTransport, entry: Allocation) -> None:
        self.number = entry.number
        self.size = entry.size
        self.view = memoryview(bytearray(entry.size))
        self.segments = entry.segments
        self._now = np.frombuffer(self.view, np.uint64)
        self._recorded = np.zeros_like(self._now)  # recorded content so far
        self._owner = owner
        self._closed = False

    def change(self, entry: Content) -> None:
        """Apply a recorded change, except to bytes that the driver has written by now, which stay
        to be compared."""
        first, end = entry.offset, entry.offset + len(entry.data)
        now, recorded = (
            self._now.view(np.uint8)[first:end],
            self._recorded.view(np.uint8)[first:end],
        )
        data = np.frombuffer(entry.data, np.uint8)
        np.copyto(now, data, where=now == recorded)
        recorded[:] = data

    def compare(self) -> None:
        """Raise TransportError unless its content matches the recording."""
        if np.array_equal(self._now, self._recorded):
            return
        place = int(np.flatnonzero(self._now != self._recorded)[0])
        raise TransportError(
            "shared memory differs from the recording",
            number=self.number,
            offset=place * 8,
            found=hex(self._now[place]),
            recorded=hex(self._recorded[place]),
        )

    def close(self) -> None:
        """Unshare it from the device; idempotent."""
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
        _check_value(value, 32)
        self._owner.repeat(Access(self.index, offset, 4, True, value))

    def read64(self, offset: int) -> int:
        return self._number(offset, 8)

    def write64(self, offset: int, value: int) -> None:
        self._check(offset, 8, 8)
        _check_value(value, 64)
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
            raise BadArgument(
                "offset or size is out of range", offset=offset, size=size, window=self.size
            )


class ReplayInterrupts:
    """Interrupts that are always pending; a wait sets memory to its recorded state."""

    def __init__(self, vectors: int, show_next: Callable[[], None]) -> None:
        self.vectors = vectors
        self._enabled = 1
        self._show_next = show_next

    def enable(self, count: int) -> None:
        if not 1 <= count <= self.vectors:
            raise BadArgument(
                f"requested {count} interrupt vectors, the function has {self.vectors}"
            )
        self._enabled = max(self._enabled, count)

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        if not 0 <= vector < self._enabled:
            raise BadArgument("the vector is not enabled", vector=vector, enabled=self._enabled)
        self._show_next()
        return True


class ReplayTransport(TransportLife):
    """Replaces a recorded device. `finish` raises unless all of the recording was used."""

    def __init__(
        self,
        recording: Recording,
        name: str = "recording",
        *,
        by_clock: Collection[tuple[int, int]] = (),
        clock: Clock | None = None,
    ) -> None:
        """by_clock: (window, offset) of registers that are accessed outside the order. clock:
        default: real time."""
        super().__init__(name)
        _check_contents(recording)
        self.traits = Traits(any_order=False, counts_interrupts=False)
        self.identity: PciIdentity = recording.identity
        self.recording = recording
        self._entries = driven(recording.entries)
        self.position = 0
        self._by_clock = frozenset(by_clock)
        self._clocked: dict[tuple[int, int], Access] = {}  # the last of each, so far
        self._windows = {
            index: ReplayWindow(self, index, size) for index, size in recording.windows.items()
        }
        self._interrupts: ReplayInterrupts | None = None
        if recording.interrupts:
            self._interrupts = ReplayInterrupts(recording.interrupts, self._show_next)
        self._memories: dict[int, ReplayMemory] = {}
        self._allocated = 0
        self._user = threading.get_ident()  # the driver's thread
        self._present = True
        self.clock = WatchedClock(clock or Clock(), self.polled)
        self.opened()

    # ---- order -------------------------------------------------------------------------------

    def read(self, access: Access) -> Access:
        """Return the recorded read that `access` repeats."""
        if self._is_clocked(access):
            clocked = self._last_clocked(access)
            if clocked is not None and clocked.width == access.width:
                self.check_open()
                return clocked
        recorded = self._next(access)
        assert isinstance(recorded, Access)
        return recorded

    def repeat(self, entry: Entry) -> None:
        """Take the next recorded entry; TransportError unless it is `entry`."""
        if isinstance(entry, Access) and self._is_clocked(entry):
            self.check_open()
            return
        self._next(entry)

    def _next(self, entry: Entry) -> Entry:
        self.check_open()
        with self.lock:
            self._user = threading.get_ident()
            self._go_on()
            if self.position >= len(self._entries):
                raise TransportError("access after the end of the recording", entry=str(entry))
            recorded = self._entries[self.position]
            if not _same(entry, recorded):
                raise TransportError(
                    "the access differs from the recording",
                    position=self.position,
                    entry=str(entry),
                    recorded=str(recorded)[:200],
                )
            for memory in self._memories.values():
                memory.compare()
            self.position += 1
            if isinstance(recorded, Allocation):
                self._memories[recorded.number] = ReplayMemory(self, recorded)
            elif isinstance(recorded, Free):
                self._memories.pop(recorded.number, None)
            self._answer()
            return recorded

    def polled(self, found: bool) -> None:
        """Show a waiting driver the changes that its next recorded poll saw. See Clock.polled;
        other threads may wait for other things."""
        if not found and not self.closed and self._user == threading.get_ident():
            self._show_next()

    def _show_next(self) -> None:
        with self.lock:
            self._go_on(to_wait=True)

    def _go_on(self, *, to_wait: bool = False) -> None:
        """Apply the entries that the driver does not repeat: all up to the next access, or up to
        the driver's next poll."""
        entries = self._entries
        while self.position < len(entries):
            entry = entries[self.position]
            if isinstance(entry, Content):
                self._change(entry)
            elif isinstance(entry, Presence):
                self._present = entry.present
            elif isinstance(entry, Access) and self._is_clocked(entry):
                if not entry.is_write:
                    self._clocked[entry.window, entry.offset] = entry
            elif not isinstance(entry, Wait | Mark):
                return
            self.position += 1
            if to_wait and isinstance(entry, Wait):
                return

    def _answer(self) -> None:
        """Apply what the device had done when the entry ended."""
        entries = self._entries
        while self.position < len(entries):
            entry = entries[self.position]
            if not (isinstance(entry, Content) and entry.at_once):
                return
            self._change(entry)
            self.position += 1

    def _last_clocked(self, access: Access) -> Access | None:
        """Return the last read of a place outside the order that comes before the next entry in the
        order."""
        place = (access.window, access.offset)
        last = self._clocked.get(place)
        for position in range(self.position, len(self._entries)):
            entry = self._entries[position]
            if isinstance(entry, Access) and self._is_clocked(entry):
                if (entry.window, entry.offset) == place and not entry.is_write:
                    last = entry
            elif not isinstance(entry, Content | Wait | Presence | Mark):
                break
        return last

    def _is_clocked(self, access: Access) -> bool:
        return (access.window, access.offset) in self._by_clock

    def _change(self, entry: Content) -> None:
        self._memories[entry.number].change(entry)

    def finish(self) -> None:
        """Raise TransportError if an entry of the recording was not repeated."""
        self._go_on()
        if self.position < len(self._entries):
            first = str(self._entries[self.position])[:200]
            raise TransportError(
                "recorded accesses were not made", position=self.position, first=first
            )

    # ---- hcq.transport.base.Transport --------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        pci_config.check_access(offset, width)
        return self.read(Access(CONFIG, offset, width, False, 0)).value or 0

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        pci_config.check_access(offset, width)
        _check_value(value, 8 * width)
        self.repeat(Access(CONFIG, offset, width, True, value))

    def window(self, index: int) -> ReplayWindow:
        self.check_open()
        if index not in self._windows:
            raise BadArgument("the recording has no such window", index=index)
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> ReplayMemory:
        """Repeat the next allocation of the recording, which must have that size."""
        if size <= 0:
            raise BadArgument("the size of DMA memory must be positive", size=size)
        size = -(-size // PAGE) * PAGE
        number = self._allocated
        self.repeat(Allocation(number, size, ()))
        self._allocated += 1
        return self._memories[number]

    def free(self, memory: ReplayMemory) -> None:
        """Repeat a recorded free; does nothing after the end of the recording."""
        if not self.closed and self.position < len(self._entries):
            self.repeat(Free(memory.number))

    @property
    def interrupts(self) -> ReplayInterrupts | None:
        """The interrupts; None if the device had none."""
        self.check_open()
        return self._interrupts

    def reset(self, kind: ResetKind) -> None:
        recorded = self._next(Reset(kind))
        assert isinstance(recorded, Reset)
        if recorded.refusal:
            name, _, text = recorded.refusal.partition(" ")
            raise (DeviceBusy if name == "DeviceBusy" else NotSupported)(text)

    def present(self) -> bool:
        """Return whether the device responded at this point of the recording."""
        with self.lock:
            entries = self._entries
            if self.position < len(entries) and isinstance(entries[self.position], Presence):
                self._go_on()
        return self._present and not self.closed


def _check_contents(recording: Recording) -> None:
    """Raise BadArgument unless all contents lie in memory that exists at that point."""
    sizes: dict[int, int] = {}
    for position, entry in enumerate(recording.entries):
        if isinstance(entry, Allocation):
            sizes[entry.number] = entry.size
        elif isinstance(entry, Free):
            sizes.pop(entry.number, None)
        elif isinstance(entry, Content):
            size = sizes.get(entry.number)
            if size is None or entry.offset < 0 or entry.offset + len(entry.data) > size:
                raise BadArgument(
                    "the recording changes memory that was not allocated",
                    position=position, number=entry.number, offset=entry.offset,
                )  # fmt: skip


def _check_value(value: int, bits: int) -> None:
    if not 0 <= value < 1 << bits:
        raise BadArgument(f"the value must fit in {bits} bits", value=value)


def _same(entry: Entry, recorded: Entry) -> bool:
    """Return whether a driver's entry matches the recorded one. For a read, and for an allocation's
    place, only the recording has the result."""
    if isinstance(entry, Allocation) and isinstance(recorded, Allocation):
        return (entry.number, entry.size) == (recorded.number, recorded.size)
    if isinstance(entry, Reset) and isinstance(recorded, Reset):
        return entry.kind is recorded.kind
    if not isinstance(entry, Access) or not isinstance(recorded, Access):
        return entry == recorded
    places = [(a.window, a.offset, a.width, a.is_write, a.data is None) for a in (entry, recorded)]
    if places[0] != places[1]:
        return False
    return not entry.is_write or (entry.value, entry.data) == (recorded.value, recorded.data)
