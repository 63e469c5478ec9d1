"""The two message queues in memory of the host, seen from the GSP.

Source: open-gpu-kernel-modules 570.144 message_queue_cpu.c, msgq.c, msgq_priv.h; Linux 7.3.4
nouveau nvkm/subdev/gsp/rm/r535/rpc.c.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.faults import CardFault

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

PAGE, SLOTS, QUEUE = 0x1000, 63, 0x40000
ELEMENT, RPC = 0x30, 0x20
MOST_ELEMENTS = 16
LARGEST = MOST_ELEMENTS * PAGE - ELEMENT  # bytes of a record with its RPC header
_HEADER_VERSION, _SIGNATURE, _PENDING = 0x0300_0000, 0x43505256, 0xFFFF_FFFF
_CONTINUATION = 71
_TX = struct.Struct("<8I")
_SHAPE, _WRITE, _READ = 0xC, 0x10, 0x20  # in a queue's first page
_RECORD = struct.Struct("<8I")
_PAGES = 1 + 2 * QUEUE // PAGE


@dataclass(frozen=True)
class Damage:
    """What one element states wrongly. checksum, signature: bits that are flipped; number, count,
    function: what is added; length: stated instead. continues: as a continuation record."""

    checksum: int = 0
    signature: int = 0
    number: int = 0
    count: int = 0
    function: int = 0
    length: int | None = None
    continues: bool = False


NONE = Damage()
DAMAGES: Mapping[CardFault, Damage] = {
    CardFault.REPLY_CHECKSUM: Damage(checksum=1),
    CardFault.REPLY_NUMBER: Damage(number=-1),
    CardFault.REPLY_AHEAD: Damage(number=5),
    CardFault.REPLY_SIGNATURE: Damage(signature=1 << 31),
    CardFault.REPLY_LENGTH: Damage(length=16),
    CardFault.REPLY_PAGES: Damage(count=1),
    CardFault.REPLY_OTHER: Damage(function=1),
    CardFault.CONTINUATION_ALONE: Damage(continues=True),
}


class QueueError(Exception):
    """What the host wrote cannot be used."""


def usable(fits: object, why: str) -> None:
    """Raise QueueError unless `fits`."""
    if not fits:
        raise QueueError(why)


def needed(raw: bytes | None, what: str) -> bytes:
    """Return what was read of the host. Raises QueueError for None."""
    if raw is None:
        raise QueueError(f"cannot read the {what}")
    return raw


@dataclass(frozen=True)
class Record:
    """A message of the host. tail: the bytes of its elements behind `body`, which a record's length
    need not count (NVIDIA's module does not count an object's parameters)."""

    function: int
    body: bytes
    tail: bytes
    sequence: int
    length: int


def fold(content: bytes) -> int:
    """Return the checksum of an element: the XOR of its words of 8 bytes, folded."""
    total = 0
    for (word,) in struct.iter_unpack("<Q", content + bytes(-len(content) % 8)):
        total ^= word
    return total >> 32 ^ total & 0xFFFF_FFFF


class MessageQueues:
    """Both queues. Raises QueueError for what the host set up or wrote wrongly."""

    def __init__(self, board: Card, shared: int, entries: int, command: int, status: int) -> None:
        """Check the page table and the command queue's header; initialise the status queue's."""
        self._board = board
        usable(entries == _PAGES, f"pageTableEntryCount must be {_PAGES}, is {entries}")
        usable(shared % PAGE == 0, f"the region at {shared:#x} must be page-aligned")
        text = (
            f"expected queues at {PAGE:#x} and {PAGE + QUEUE:#x}, found {command:#x}, {status:#x}"
        )
        usable((command, status) == (PAGE, PAGE + QUEUE), text)
        table = needed(board.bus_read(shared, 8 * entries), f"queues at {shared:#x}")
        self._pages = struct.unpack(f"<{entries}Q", table)
        fits = self._pages[0] == shared and not any(page % PAGE for page in self._pages)
        usable(fits, "the page table does not start with its own page, or is not aligned")
        self._command, self._status = command, status
        self._check_header()
        self._write(status, _TX.pack(0, QUEUE, PAGE, SLOTS, 0, 1, 0x20, PAGE) + bytes(4))
        self._sent = self._expected = 0
        self.damage = NONE  # of the next message
        self._lock = threading.Lock()

    def _check_header(self) -> None:
        found = _TX.unpack(self._read(self._command, _TX.size))
        wanted = (0, QUEUE, PAGE, SLOTS, found[4], 1, 0x20, PAGE)
        names = ("version", "size", "msgSize", "msgCount", "", "flags", "rxHdrOff", "entryOff")
        for name, value, expected in zip(names, found, wanted, strict=True):
            text = f"the command queue's {name} must be {expected:#x}, is {value:#x}"
            usable(value == expected, text)

    def _read(self, offset: int, size: int) -> bytes:
        address = self._pages[offset // PAGE] + offset % PAGE
        return needed(self._board.bus_read(address, size), f"queues at {address:#x}")

    def _write(self, offset: int, content: bytes) -> None:
        address = self._pages[offset // PAGE] + offset % PAGE
        written = self._board.bus_write(address, content)
        usable(written, f"cannot write the queues at {address:#x}")

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 4), "little")

    def receive(self) -> Record | None:
        """Take the next message of the host; None if there is none."""
        read, write = self._word(self._status + _READ), self._word(self._command + _WRITE)
        if read == write:
            return None
        inside = read < SLOTS and write < SLOTS
        usable(inside, f"pointers must be below {SLOTS}, are {read} and {write}")
        first, written = self._slot(read), (write - read) % SLOTS
        _, number, count, _ = struct.unpack_from("<4I", first, 0x20)
        fits = 1 <= count <= min(MOST_ELEMENTS, written)
        usable(fits, f"elemCount {count}, with {written} elements written")
        content = first + b"".join(self._slot((read + i) % SLOTS) for i in range(1, count))
        record = self._parse(content, count, number)
        self._expected += 1
        self._write(self._status + _READ, struct.pack("<I", (read + count) % SLOTS))
        return record

    def _slot(self, index: int) -> bytes:
        return self._read(self._command + PAGE + index * PAGE, PAGE)

    def _parse(self, content: bytes, count: int, number: int) -> Record:
        words = _RECORD.unpack_from(content, ELEMENT)
        version, signature, length, function, result, private, sequence, _ = words
        known = (version, signature) == (_HEADER_VERSION, _SIGNATURE)
        usable(known, f"RPC header version {version:#x}, signature {signature:#x}")
        fits = RPC <= length <= LARGEST and count == -(-(ELEMENT + length) // PAGE)
        usable(fits, f"elemCount {count} does not fit a record of {length} bytes")
        total = fold(content[: ELEMENT + (length + 7 & ~7)])
        usable(total == 0, f"the checksum of function {function} is wrong")
        usable(number == self._expected, f"seqNum must be {self._expected}, is {number}")
        pending = (result, private) == (_PENDING, _PENDING)
        usable(pending, f"rpc_result must be {_PENDING:#x} in a call, is {result:#x}")
        end = ELEMENT + length
        return Record(function, content[ELEMENT + RPC : end], content[end:], sequence, length)

    def send(self, function: int, payload: bytes, *, result: int = 0, sequence: int = 0) -> None:
        """Send a message, in records of at most LARGEST bytes. QueueError if the host does not
        read."""
        room = LARGEST - RPC
        with self._lock:
            self._send(function, payload[:room], result, sequence)
            for at in range(room, len(payload), room):
                self._send(_CONTINUATION, payload[at : at + room], result, sequence)

    def _send(self, function: int, payload: bytes, result: int, sequence: int) -> None:
        length = RPC + len(payload)
        wrong, self.damage = self.damage, NONE
        function = _CONTINUATION if wrong.continues else function + wrong.function
        record = _RECORD.pack(
            _HEADER_VERSION, _SIGNATURE ^ wrong.signature,
            length if wrong.length is None else wrong.length, function, result, result, sequence, 0,
        )  # fmt: skip
        count = -(-(ELEMENT + length) // PAGE)
        head = bytearray(ELEMENT)
        number = self._sent + wrong.number & 0xFFFF_FFFF
        struct.pack_into("<3I", head, 0x20, 0, number, count + wrong.count)
        total = fold(bytes(head) + record + payload) ^ wrong.checksum
        struct.pack_into("<I", head, 0x20, total)
        content = (bytes(head) + record + payload).ljust(count * PAGE, b"\0")
        write, read = self._word(self._status + _WRITE), self._word(self._command + _READ)
        usable(read < SLOTS, f"the host's read pointer must be below {SLOTS}, is {read}")
        room = (read - write - 1) % SLOTS
        usable(count <= room, f"the status queue is full: the host has read up to {read}")
        for index in range(count):
            slot = self._status + PAGE + (write + index) % SLOTS * PAGE
            self._write(slot, content[index * PAGE : (index + 1) * PAGE])
        self._write(self._status + _WRITE, struct.pack("<I", (write + count) % SLOTS))
        self._sent += 1

    def repeat_number(self) -> None:
        """Give the next message the number of the last one: a planted fault."""
        self._sent -= 1

    def spoil_shape(self) -> None:
        """State another number of slots in the status queue: a planted fault."""
        self._write(self._status + _SHAPE, struct.pack("<I", SLOTS // 2))

    def spoil_index(self, *, read: bool) -> None:
        """Put an index outside of its queue: of what was read, or of what was written."""
        self._write(self._status + (_READ if read else _WRITE), struct.pack("<I", SLOTS + 7))
