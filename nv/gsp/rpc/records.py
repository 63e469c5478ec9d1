"""Records of the message queues: their headers, checksums, and messages that take several.

An element group is 1 to 16 pages of a queue: the queue's header of 0x30 bytes, an RPC header of
0x20, and a payload. A message of more than 16 pages continues in groups of their own, each with
the function CONTINUATION_RECORD. Source: open-gpu-kernel-modules 570.144 message_queue_cpu.c,
rpc.c (_issueRpcLarge), g_rpc-message-header.h; both releases have the same headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ugpu.hcq.errors import BadArgument, FirmwareError

PAGE = 4096
MOST_PAGES = 16  # of a group
ELEMENT_SIZE, RPC_SIZE = 0x30, 0x20
_MOST_RECORD = MOST_PAGES * PAGE - ELEMENT_SIZE  # RPC header included
MOST_PAYLOAD = _MOST_RECORD - RPC_SIZE
MOST_MESSAGE = 1 << 20  # our limit of a whole message; the largest known has 0x4000 bytes
_VERSION, _SIGNATURE = 0x0300_0000, 0x4350_5256  # "VRPC"
PENDING = 0xFFFF_FFFF
CONTINUATION = 71
_RPC = struct.Struct("<8I")
_ELEMENT = struct.Struct("<32x3I4x")
_CHECKSUM_AT = 0x20


@dataclass(frozen=True)
class Record:
    """One record as received. result: 0, or why the call failed before it reached its object."""

    function: int
    result: int
    sequence: int
    payload: bytes


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return the XOR of all 64-bit words, folded to 32 bits; the end is padded with zeros."""
    whole = bytes(data) + bytes(-len(data) % 8)
    word = int(np.bitwise_xor.reduce(np.frombuffer(whole, np.uint64))) if whole else 0
    return (word >> 32) ^ (word & 0xFFFF_FFFF)


def pages_of(length: int) -> int:
    """Return how many pages a record of `length` bytes takes, its RPC header included."""
    return -(-(ELEMENT_SIZE + length) // PAGE)


def encode(
    function: int, payload: bytes | memoryview, *, number: int, sequence: int, length: int = 0
) -> bytes:
    """Return one group of pages. number: of the group, in its direction. length: that the RPC
    header states, if it differs from the payload's."""
    if len(payload) > MOST_PAYLOAD:
        raise BadArgument("the payload is too long for a record", size=len(payload))
    count = RPC_SIZE + len(payload)
    pages = pages_of(count)
    out = bytearray(pages * PAGE)
    _ELEMENT.pack_into(out, 0, 0, number, pages)
    _RPC.pack_into(
        out, ELEMENT_SIZE, _VERSION, _SIGNATURE, length or count, function, PENDING, PENDING,
        sequence, 0,
    )  # fmt: skip
    out[ELEMENT_SIZE + RPC_SIZE : ELEMENT_SIZE + count] = payload
    struct.pack_into("<I", out, _CHECKSUM_AT, checksum(out))
    return bytes(out)


def encode_message(function: int, payload: bytes, *, number: int, sequence: int) -> Iterator[bytes]:
    """Yield the groups of a message, of any length up to MOST_MESSAGE."""
    if len(payload) > MOST_MESSAGE:
        raise BadArgument("the message is too long", size=len(payload), most=MOST_MESSAGE)
    yield encode(function, payload[:MOST_PAYLOAD], number=number, sequence=sequence)
    for start in range(MOST_PAYLOAD, len(payload), MOST_PAYLOAD):
        number += 1
        part = payload[start : start + MOST_PAYLOAD]
        yield encode(CONTINUATION, part, number=number, sequence=sequence)


class BadRecord(FirmwareError):
    """The GSP's queue contains a record that is not well-formed; carries expected and found."""

    @classmethod
    def unless_same(cls, expected: object, found: object, text: str) -> None:
        """Raise the error unless both are the same."""
        if expected != found:
            raise cls(text, expected=expected, found=found)


def read_length(first: bytes | memoryview) -> int:
    """Return the length that the RPC header in a group's first page states."""
    version, signature, length = struct.unpack_from("<3I", first, ELEMENT_SIZE)
    text = "the GSP's queue contains no RPC header where a record begins"
    BadRecord.unless_same(_VERSION, version, text)
    BadRecord.unless_same(_SIGNATURE, signature, text)
    if not RPC_SIZE <= length <= _MOST_RECORD:
        raise BadRecord("the GSP's record has an invalid length", length=length)
    return int(length)


def decode(group: bytes | memoryview) -> tuple[Record, int]:
    """Check a group of pages; return its record, and the group's number in its direction. BadRecord
    names the defect."""
    length = read_length(group)
    stated, number, pages = _ELEMENT.unpack_from(group)
    BadRecord.unless_same(
        pages_of(length), pages, "the GSP's record states a wrong number of pages"
    )
    # The firmware sums header and record; nouveau's side sums whole pages, with zeros at the end.
    end = ELEMENT_SIZE + length
    rest = checksum(group[:end])
    if checksum(group) != 0:
        BadRecord.unless_same(stated ^ rest, stated, "the checksum of the GSP's record is wrong")
    fields = _RPC.unpack_from(group, ELEMENT_SIZE)
    _, _, _, function, result, _, sequence, _ = fields
    payload = bytes(group[ELEMENT_SIZE + RPC_SIZE : end])
    return Record(function, result, sequence, payload), int(number)
