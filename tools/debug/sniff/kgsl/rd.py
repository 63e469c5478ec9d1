"""Write the submissions of a recording as an .rd file, the format of freedreno's tools.

    u32 section, u32 bytes, the bytes; repeated. Source: Mesa 25.0.7,
    src/freedreno/common/redump.h.

A submission is the content of all its memory, followed by the indirect buffers in order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument
from ugpu.tools.debug.sniff.kgsl.streams import Streams

_GPUADDR, _CMDSTREAM_ADDR, _BUFFER_CONTENTS, _GPU_ID, _CHIP_ID = 3, 6, 12, 13, 14

#: the first section of every file that `write` writes: a chip id, 8 bytes
KIND = outfile.Kind("a file of command streams", re.escape(struct.pack("<II", _CHIP_ID, 8)))


def _section(kind: int, data: bytes) -> bytes:
    padded = data + bytes(-len(data) % 4)
    return struct.pack("<II", kind, len(padded)) + padded


def _place(address: int, size: int) -> bytes:
    """Return an address's two halves, with a size between them."""
    return struct.pack("<III", address & 0xFFFF_FFFF, size, address >> 32)


def sections(streams: Streams) -> Iterator[bytes]:
    """Yield the parts of the file."""
    yield _section(_CHIP_ID, struct.pack("<Q", streams.chip_id))
    if streams.gpu_id:
        yield _section(_GPU_ID, struct.pack("<I", streams.gpu_id))
    for submission in streams.submissions:
        for address, content in submission.memory:
            yield _section(_GPUADDR, _place(address, len(content)))
            yield _section(_BUFFER_CONTENTS, content)
        for address, size in submission.buffers:
            yield _section(_CMDSTREAM_ADDR, _place(address, size // 4))


def write(streams: Streams, path: Path) -> int:
    """Write the file; return its number of submissions. BadArgument if the recording has none or
    the file cannot be written."""
    if not streams.submissions:
        raise BadArgument("the recording has no submission with its memory: record with --memory")
    outfile.check_file(path, KIND)
    try:
        with path.open("wb") as file:
            file.writelines(sections(streams))
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from None
    return len(streams.submissions)
