"""The two message queues in host memory, which driver and GSP share.

Behind a table of the region's pages lie the command queue and the status queue: a page of headers
and 63 slots of a page. Each side writes its own queue's `writePtr`. How far it has read the other
queue it writes into its *own* queue's header page (flag "swap rx"): one side writes each page.
Source: open-gpu-kernel-modules 570.144 message_queue_cpu.c, msgq.c.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.clock import Clock
from ugpu.nv.gsp.layout.arguments import QUEUE_SIZE, REGION_SIZE
from ugpu.nv.gsp.layout.memory import PAGE, Pages
from ugpu.nv.gsp.rpc.records import BadRecord, Record, decode, encode_message, pages_of, read_length

log = logging.getLogger(__name__)

SLOTS = QUEUE_SIZE // PAGE - 1
_HEADER = struct.Struct("<8I")  # version, size, msgSize, msgCount, writePtr, flags, rxHdrOff, ...
_WRITE_AT, _READ_AT = 0x10, 0x20
_SWAPPED = 1
# TIMEOUT: how long the GSP may take to drain a queue that is full; RM waits as long for a reply.
_ROOM_LIMIT_S = 4.0
_REREADS = 3  # as RM does: a record may be seen before all of it has arrived


@dataclass(frozen=True)
class Indices:
    """Where both sides are, between two messages. written, read: index in the command and in the
    status queue, which the driver writes; sent, received: the numbers of the next groups there."""

    written: int = 0
    read: int = 0
    sent: int = 0
    received: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.written < SLOTS and 0 <= self.read < SLOTS):
            raise BadRecord("indices must lie inside the queues", written=self.written,
                            read=self.read, slots=SLOTS)  # fmt: skip


class _Numbers:
    """Numbers of the groups in one direction. The index in memory says whether a step was taken, so
    that an exception at any line (Ctrl-C) leaves index and number in agreement."""

    def __init__(self, index: int, number: int) -> None:
        self._steps = ((index, number), (index, number))

    def at(self, index: int) -> int:
        """Return the number of the group at an index."""
        for place, number in self._steps:
            if place == index:
                return number
        raise BadRecord("an index of the driver's own was changed", found=index)

    def plan(self, index: int, number: int, then: int, following: int) -> None:
        """Note what follows once the index is moved to `then`."""
        self._steps = ((index, number), (then, following))


def _header(write: int, read: int) -> bytes:
    """Return the first words of a queue's header page, up to the index of what its owner read."""
    head = _HEADER.pack(0, QUEUE_SIZE, PAGE, SLOTS, write, _SWAPPED, _READ_AT, PAGE)
    return head + struct.pack("<I", read)


class MessageQueues:
    """Both queues of one start. Not thread-safe. The owner of `pages` keeps them until the GSP no
    longer runs. ring: tells the GSP that the command queue has new records."""

    def __init__(
        self,
        pages: Pages,
        clock: Clock,
        ring: Callable[[], None],
        left: Indices | None = None,
    ) -> None:
        """left: by an earlier process, whose GSP has these queues; its headers are written too."""
        if pages.size < REGION_SIZE:
            raise BadArgument("the region of the queues is too small", size=pages.size)
        self._view = pages.view
        self.clock = clock
        self._ring = ring
        self._commands = PAGE
        self._statuses = self._commands + QUEUE_SIZE
        at = left or Indices()
        self._sent = _Numbers(at.written, at.sent)
        self._received = _Numbers(at.read, at.received)
        table = struct.pack(f"<{REGION_SIZE // PAGE}Q", *pages.pages[: REGION_SIZE // PAGE])
        pages.put(table)
        pages.put(_header(at.written, at.read), self._commands)
        if left is not None:
            pages.put(_header(at.read, at.written), self._statuses)

    def indices(self) -> Indices | None:
        """Return where both sides are; None unless each has read all messages of the other."""
        written, read = self.written, self._word(self._commands + _READ_AT)
        taken, added = (self._word(self._statuses + at) for at in (_READ_AT, _WRITE_AT))
        if (taken, added) != (written, read):
            return None
        return Indices(written, read, self._sent.at(written), self._received.at(read))

    def _word(self, at: int) -> int:
        word: int = struct.unpack_from("<I", self._view, at)[0]
        return word

    def _index(self, at: int, what: str) -> int:
        """Read an index that the GSP writes."""
        found = self._word(at)
        if found >= SLOTS:
            raise BadRecord(f"the GSP's {what} is outside of the queue", found=found, slots=SLOTS)
        return found

    # ---- commands ----------------------------------------------------------------------------

    def _room(self) -> int:
        read = self._index(self._statuses + _READ_AT, "read index")
        return (read + SLOTS - self._word(self._commands + _WRITE_AT) - 1) % SLOTS

    @property
    def written(self) -> int:
        """Return the index behind the last command; a message changes it."""
        return self._word(self._commands + _WRITE_AT)

    def send(self, function: int, payload: bytes, sequence: int) -> None:
        """Write a message into the command queue. FirmwareSilent if the GSP frees no room."""
        number = self._sent.at(self._word(self._commands + _WRITE_AT))
        for group in encode_message(function, payload, number=number, sequence=sequence):
            self._await_room(len(group) // PAGE)
            self._put(group)

    def _await_room(self, pages: int) -> None:
        with or_silent("the GSP does not read its command queue"):
            self.clock.wait_until(
                lambda: self._room() >= pages,
                unit="GSP",
                waiting_for=f"room for {pages} pages in its command queue",
                limit_s=_ROOM_LIMIT_S,
                state=lambda: f"{self._room()} pages are free",
            )

    def _put(self, group: bytes) -> None:
        write = self._word(self._commands + _WRITE_AT)
        first = self._commands + PAGE
        count = len(group) // PAGE
        for number in range(count):
            place = first + (write + number) % SLOTS * PAGE
            self._view[place : place + PAGE] = group[number * PAGE : (number + 1) * PAGE]
        # ORDER: x86 makes the stores above visible before this one, and this one before the
        # doorbell (Intel SDM, volume 3, "Memory Ordering").
        after, number = (write + count) % SLOTS, self._sent.at(write)
        self._sent.plan(write, number, after, number + 1)
        struct.pack_into("<I", self._view, self._commands + _WRITE_AT, after)
        self._ring()

    # ---- statuses ----------------------------------------------------------------------------

    def linked(self) -> bool:
        """Return whether the GSP has initialised the status queue."""
        _, size, page, slots, *_ = _HEADER.unpack_from(self._view, self._statuses)
        if not (size or page or slots):
            return False
        expected, found = (
            f"{shape[0]:#x} {shape[1]:#x} {shape[2]}"
            for shape in ((QUEUE_SIZE, PAGE, SLOTS), (size, page, slots))
        )
        BadRecord.unless_same(expected, found, "the GSP's status queue has another shape")
        return True

    def _available(self) -> int:
        write = self._index(self._statuses + _WRITE_AT, "write index")
        return (write + SLOTS - self._word(self._commands + _READ_AT)) % SLOTS

    def receive(self) -> Record | None:
        """Take the next record out of the status queue; None if there is none."""
        available = self._available()
        if not available:
            return None
        for _ in range(_REREADS - 1):
            with contextlib.suppress(BadRecord):
                return self._take(available)
            self.clock.sleep(0)
        return self._take(available)

    def _take(self, available: int) -> Record | None:
        read = self._word(self._commands + _READ_AT)
        first = self._statuses + PAGE
        start = first + read * PAGE
        count = pages_of(read_length(self._view[start : start + PAGE]))
        if count > available:
            text = "the GSP's record is longer than what it wrote"
            raise BadRecord(text, expected=count, found=available)
        group = b"".join(
            bytes(self._view[place : place + PAGE])
            for place in (first + (read + number) % SLOTS * PAGE for number in range(count))
        )
        record, number = decode(group)
        expected = self._received.at(read)
        if number > expected:
            raise BadRecord("the GSP's record is out of order", expected=expected, found=number)
        after = (read + count) % SLOTS
        self._received.plan(read, expected, after, max(expected, number + 1))
        struct.pack_into("<I", self._view, self._commands + _READ_AT, after)
        if number < expected:  # sent twice: RM drops it as well
            log.debug("record %d of the GSP came a second time", number)
            return None
        return record

    def __repr__(self) -> str:
        return f"<MessageQueues {self._word(self._commands + _WRITE_AT)} written>"
