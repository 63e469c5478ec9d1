"""The note in VRAM with which a process leaves the firmware running for the next one.

It tells where on the bus the firmware's queues, logs and arguments lay, and how far the messages
were. The next process places memory there again. The note lies at the start of the driver's part of
VRAM; a process that uses the card erases it, so one that dies leaves none.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ugpu.hcq.errors import FirmwareInvalid
from ugpu.nv.gsp.chip.vram import FbVram
from ugpu.nv.gsp.rpc.calls import LeftCalls
from ugpu.nv.gsp.rpc.queue import Indices

PLACE, SIZE = 1 << 20, 16 << 10
_HEAD = struct.Struct("<8sII")  # magic, bytes of text, their CRC-32
_MAGIC = b"ugpuGSP2"
_MOST_ENTRIES = 64


@dataclass(frozen=True)
class Note:
    """What one process leaves. memory: bus address of each piece, by name. contexts: begin in
    VRAM of the buffers that all graphics contexts share, by kind; sizes: of every kind."""

    chip: str
    release: str
    memory: Mapping[str, int]
    calls: LeftCalls
    contexts: Mapping[str, int]
    sizes: Mapping[str, int]


def write(vram: FbVram, note: Note) -> None:
    """Write a note. ORDER: its head is last, so that an interrupted write leaves none."""
    text = json.dumps(asdict(note), separators=(",", ":")).encode("ascii")
    assert len(text) <= SIZE - _HEAD.size
    vram.write(PLACE + _HEAD.size, text + bytes(-len(text) % 4))
    vram.write(PLACE, _HEAD.pack(_MAGIC, len(text), zlib.crc32(text)))


def erase(vram: FbVram) -> None:
    """Remove the note, if there is one."""
    vram.write(PLACE, bytes(_HEAD.size))


def read(vram: FbVram) -> Note | None:
    """Return the note, None if there is none or it is damaged. BAR 1 is not used: what it shows is
    not known yet."""
    magic, size, check = _HEAD.unpack(vram.read_beyond(PLACE, _HEAD.size))
    if magic != _MAGIC or size > SIZE - _HEAD.size:
        return None
    text = vram.read_beyond(PLACE + _HEAD.size, -(-size // 4) * 4)[:size]
    if zlib.crc32(text) != check:
        return None
    try:
        return parse(text)
    except FirmwareInvalid:
        return None


def parse(text: bytes) -> Note:
    """Return the note that a text is; FirmwareInvalid for any other text."""
    try:
        found = json.loads(text)
        calls = found["calls"]
        indices = Indices(**_numbers(calls["indices"]))
        left = LeftCalls(indices, _number(calls["sequence"]), _number(calls["clients"]))
        memory, contexts, sizes = (
            _numbers(found[name]) for name in ("memory", "contexts", "sizes")
        )
        if not contexts.keys() <= sizes.keys():
            raise ValueError("a context's buffer without a size")
        return Note(str(found["chip"]), str(found["release"]), memory, left, contexts, sizes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FirmwareInvalid(f"the note in VRAM is not one of ugpu: {error}") from error


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ValueError(f"expected a number below 2**64, found {value!r:.40}")
    return value


def _numbers(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MOST_ENTRIES:
        raise ValueError(f"expected at most {_MOST_ENTRIES} entries")
    return {name: _number(number) for name, number in value.items()}
