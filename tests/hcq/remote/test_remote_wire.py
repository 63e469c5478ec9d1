"""Frames: what is encoded is decoded, however a stream is cut; everything else is refused."""

from __future__ import annotations

import random
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote import wire
from ugpu.hcq.remote.failures import from_wire, to_wire
from ugpu.hcq.remote.wire import (
    EVENTS,
    REQUESTS,
    Buffered,
    Limits,
    Message,
    WireError,
    check,
    encode,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=20),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=4), each),
    max_leaves=10,
)


def fed(data: bytes, cuts: random.Random, limits: Limits | None = None) -> list[Message]:
    """Messages out of a stream that arrives in pieces."""
    incoming = Buffered(limits or Limits())
    found = []
    while data:
        space = incoming.space()
        count = min(len(data), cuts.randint(1, len(space)))
        space[:count] = data[:count]
        data = data[count:]
        message = incoming.took(count)
        while message is not None:
            found.append(message)
            message = incoming.more()
    return found


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.text(max_size=8), st.lists(plain, max_size=4), st.binary(max_size=200)),
        max_size=4,
    ),
    st.integers(0, 1 << 32),
)
def test_what_is_sent_arrives(sent: list[tuple[str, list[Any], bytes]], seed: int) -> None:
    messages = [
        Message(operation, arguments, number, data, number + 7, number)
        for number, (operation, arguments, data) in enumerate(sent)
    ]
    stream = b"".join(bytes(part) for message in messages for part in encode(message))
    found = fed(stream, random.Random(seed))
    assert [(m.operation, m.arguments, m.call, bytes(m.data)) for m in found] == [
        (m.operation, m.arguments, m.call, m.data) for m in messages
    ]
    assert [(m.sequence, m.acknowledged) for m in found] == [
        (m.sequence, m.acknowledged) for m in messages
    ]


def test_a_frame_by_hand() -> None:
    """The bytes as the module's description has them."""
    meta = b"\x93\xa4free\x00\x91\x05"
    data = b"abc"
    head = struct.pack("<4sIIIQQ", b"uq01", len(meta), 3, zlib.crc32(meta + data), 9, 4)
    (found,) = fed(head + meta + data, random.Random(1))
    assert (found.operation, found.arguments, found.call) == ("free", [5], 0)
    assert (bytes(found.data), found.sequence, found.acknowledged) == (b"abc", 9, 4)
    assert b"".join(map(bytes, encode(found))) == head + meta + data


def frame(content: bytes, tail: bytes = b"", **header: Any) -> bytes:
    crc = zlib.crc32(content + tail)
    values = {"magic": b"uq01", "meta": len(content), "data": len(tail), "crc": crc, **header}
    return struct.pack("<4sIIIQQ", *values.values(), 1, 1) + content + tail


GOOD = msgpack.packb(["free", 0, [1]])


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (frame(GOOD, magic=b"GET "), "frame that starts"),
        (frame(GOOD, meta=0), "1 to 4096 bytes, got 0"),
        (frame(GOOD, meta=1 << 31), "1 to 4096 bytes"),
        (frame(GOOD, data=1 << 31), "at most 64 bytes of data"),
        (frame(GOOD, crc=1), "checksum"),
        (frame(b"\xc1"), "does not contain a message"),
        (frame(b"\x93\xa1a"), "does not contain a message"),
        (frame(GOOD + b"\x00"), "does not contain a message"),
        (frame(msgpack.packb({"a": 1})), "three parts"),
        (frame(msgpack.packb(["free", 0])), "three parts"),
        (frame(msgpack.packb([1, 0, []])), "operation, call"),
        (frame(msgpack.packb(["free", -1, []])), "operation, call"),
        (frame(msgpack.packb(["free", True, []])), "operation, call"),
        (frame(msgpack.packb(["x" * 33, 0, []])), "operation, call"),
        (frame(b"\x91" * 2000), "does not contain a message|nested"),
        (frame(msgpack.packb(msgpack.ExtType(1, b"x"))), "does not contain a message"),
    ],
)
def test_what_is_no_frame_is_refused(stream: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        fed(stream, random.Random(2), Limits(4096, 64))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("fly", []), "unknown operation 'fly'"),
        (Message("free", []), "expected 1 arguments, got 0"),
        (Message("free", [-1]), "argument 0 must be a number"),
        (Message("free", [1 << 64]), "must be a number"),
        (Message("free", [1.0]), "must be a number, got float"),
        (Message("free", [True]), "must be a number, got bool"),
        (Message("allocate", [1, 2]), "argument 1 must be a text"),
        (Message("extend", [None, float("nan")]), "must be a real"),
        (Message("extend", [None, -1]), "must be a real"),
        (Message("replay", [[1, "2"]]), "must be a numbers"),
        (Message("lease", [{1: 2}]), "must be a map"),
    ],
)
def test_wrong_arguments_are_refused(message: Message, text: str) -> None:
    with pytest.raises(WireError, match=text):
        check(message, REQUESTS)


def test_every_operation_takes_kinds_that_are_known() -> None:
    examples = {
        "number": 1, "numbers": [1], "text": "", "real": 0.5, "map": {}, "any": None,
    }  # fmt: skip
    for operation, kinds in {**REQUESTS, **EVENTS}.items():
        given = [examples[kind.rstrip("?")] for kind in kinds]
        check(Message(operation, given), {**REQUESTS, **EVENTS})


def some(seed: random.Random) -> bytes:
    """A frame with a few bytes changed, cut or added."""
    data = bytearray(frame(GOOD, seed.randbytes(seed.randint(0, 8))))
    for _ in range(seed.randint(0, 3)):
        data[seed.randrange(len(data))] = seed.randrange(256)
    if not seed.randrange(4):
        del data[seed.randrange(len(data)) :]
    if not seed.randrange(2):  # a right checksum over wrong content
        data[12:16] = struct.pack("<I", zlib.crc32(data[32:]))
    return bytes(data) + seed.randbytes(seed.randint(0, 4))


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """Feed changed frames; how many were messages, and how many refused."""
    random_ = random.Random(seed)
    taken = refused = 0
    for _ in range(count):
        try:
            for message in fed(some(random_), random_, Limits(4096, 64)):
                check(message, REQUESTS)
                taken += 1
        except WireError:
            refused += 1
    return taken, refused


def test_changed_frames_are_refused_or_right() -> None:
    taken, refused = fuzz(5_000, 1)
    assert taken and refused


@pytest.mark.slow
def test_a_million_changed_frames() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    fuzz(100_000, 1)
    before = resident()
    taken, refused = fuzz(1_000_000, 2)
    assert taken and refused
    assert resident() - before < 4 << 20, "memory grows with the number of frames"


def test_errors_keep_their_class_and_facts() -> None:
    from ugpu.hcq import errors

    error = errors.PageFault("at", address=1 << 63, places=[1, (2, "x")], what=object)
    again = from_wire(*msgpack.unpackb(msgpack.packb(to_wire(error))))
    assert type(again) is errors.PageFault and again.address == 1 << 63
    unknown: UgpuError = from_wire("NewError", "text", {"a": 1})
    assert isinstance(unknown, errors.TransportError) and "NewError: text" in str(unknown)
    assert isinstance(from_wire("os", "text", {}), errors.TransportError)
    assert wire.VERSION == 1
