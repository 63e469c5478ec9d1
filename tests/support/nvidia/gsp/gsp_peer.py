"""The GSP's end of the message queues, written from the headers alone, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment

PAGE, SLOTS, QUEUE = 4096, 63, 0x40000
COMMANDS, STATUSES = PAGE, PAGE + QUEUE  # in the region, behind the table of its pages
SIZE = PAGE + 2 * QUEUE


class Memory:
    """DMA memory of a toy bus, in one piece or in pages that do not follow each other."""

    def __init__(self, size: int, address: int = 0x10_0000, *, scattered: bool = False) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        step = 3 * PAGE if scattered else PAGE
        self.segments: Sequence[DmaSegment] = tuple(
            DmaSegment(BusAddr(address + step * number), PAGE) for number in range(size // PAGE)
        )
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Peer:
    """Reads the command queue and writes the status queue of a region."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.sent = 0
        self.received = 0

    def link(self) -> None:
        """Initialise the status queue, as the GSP does when it starts."""
        struct.pack_into("<8I", self.view, STATUSES, 0, QUEUE, PAGE, SLOTS, 0, 1, 0x20, PAGE)

    def word(self, at: int) -> int:
        found: int = struct.unpack_from("<I", self.view, at)[0]
        return found

    # ---- commands

    def take(self) -> tuple[int, int, bytes] | None:
        """Return function, sequence and payload of the next record in the command queue."""
        read, write = self.word(STATUSES + 0x20), self.word(COMMANDS + 0x10)
        if read == write:
            return None
        first = COMMANDS + PAGE

        def slot(number: int) -> bytes:
            at = first + (read + number) % SLOTS * PAGE
            return bytes(self.view[at : at + PAGE])

        count = struct.unpack_from("<I", slot(0), 0x28)[0]
        group = b"".join(slot(number) for number in range(count))
        folded = 0
        for (part,) in struct.iter_unpack("<Q", group):
            folded ^= part
        assert (folded >> 32) ^ (folded & 0xFFFFFFFF) == 0, "checksum"
        assert struct.unpack_from("<I", group, 0x24)[0] == self.received, "sequence of groups"
        self.received += 1
        version, signature, length, function, result, private, sequence, spare = struct.unpack_from(
            "<8I", group, 0x30
        )
        assert (version, signature) == (0x03000000, 0x43505256)
        assert (result, private, spare) == (0xFFFFFFFF, 0xFFFFFFFF, 0)
        assert count == -(-(0x30 + length) // PAGE) <= 16
        struct.pack_into("<I", self.view, STATUSES + 0x20, (read + count) % SLOTS)
        return function, sequence, group[0x50 : 0x30 + length]

    # ---- statuses

    def group(self, function: int, payload: bytes, result: int = 0, sequence: int = 0) -> bytearray:
        """Return a record's group with a valid checksum."""
        length = 0x20 + len(payload)
        count = -(-(0x30 + length) // PAGE)
        out = bytearray(count * PAGE)
        struct.pack_into("<3I", out, 0x20, 0, self.sent, count)
        struct.pack_into(
            "<8I", out, 0x30, 0x03000000, 0x43505256, length, function, result, 0, sequence, 0
        )
        out[0x50 : 0x50 + len(payload)] = payload
        self.seal(out)
        return out

    @staticmethod
    def seal(group: bytearray) -> None:
        """Write the checksum."""
        struct.pack_into("<I", group, 0x20, 0)
        folded = 0
        for (part,) in struct.iter_unpack("<Q", group):
            folded ^= part
        struct.pack_into("<I", group, 0x20, (folded >> 32) ^ (folded & 0xFFFFFFFF))

    def put(self, group: bytes | bytearray) -> None:
        """Write a group into the status queue."""
        write = self.word(STATUSES + 0x10)
        count = len(group) // PAGE
        for number in range(count):
            at = STATUSES + PAGE + (write + number) % SLOTS * PAGE
            self.view[at : at + PAGE] = group[number * PAGE : (number + 1) * PAGE]
        self.sent += 1
        struct.pack_into("<I", self.view, STATUSES + 0x10, (write + count) % SLOTS)

    def send(self, function: int, payload: bytes = b"", result: int = 0, sequence: int = 0) -> None:
        """Send a record."""
        self.put(self.group(function, payload, result, sequence))
