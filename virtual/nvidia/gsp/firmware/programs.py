"""The layout of synthetic programs, by which a virtual falcon finds out what it is to run.

A program's code starts with a header that names it; the rest of its code is filler. The falcon runs
the effect of the program, never its bytes.
"""

from __future__ import annotations

import enum
import struct

from ugpu.virtual.nvidia.gsp.firmware.containers import Signed, padded
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms, short, sign

SEC2, GSP = 1, 0x400  # engine masks
BLOCK = 256
_HEAD = struct.Struct("<8sHHI")
_MAGIC = b"UGPUCODE"
PATCH_IN_DATA = 0x10  # of the booters, from Ampere's GA102 on
OLD_PATCH_IN_DATA = 0x200  # of Turing's and GA100's


class Program(enum.IntEnum):
    """The programs that a falcon can run."""

    FWSEC = 1
    BOOTER_LOAD = 2
    BOOTER_UNLOAD = 3
    SCRUBBER = 4
    LOADER = 5  # the generic boot loader of Turing


def head(program: Program, covered: int) -> bytes:
    """Return the start of a program's code. covered: bytes of data that its signature covers."""
    return _HEAD.pack(_MAGIC, program, 0, covered)


def parse(code: bytes) -> tuple[Program, int] | None:
    """Return the program and the signed bytes of its data; None for code that is not synthetic."""
    if len(code) < _HEAD.size:
        return None
    magic, number, _, covered = _HEAD.unpack_from(code)
    if magic != _MAGIC or number not in list(Program):
        return None
    return Program(number), covered


def signed_content(code: bytes, data: bytes, place: int, size: int) -> bytes:
    """Return what a signature at `place` of the data covers: code and data, without itself."""
    return code + data[:place] + bytes(size) + data[place + size :] if data else code


def secure_program(
    program: Program, terms: Terms, *, code_size: int, data_size: int, count: int = 2
) -> Signed:
    """Return a program for SEC2 with `count` signatures: for `terms.fuse` and versions below."""
    code = padded(head(program, data_size) + program.name.encode(), BLOCK).ljust(code_size, b"\0")
    data = bytearray(data_size)
    data[:4] = b"DATA"
    content = signed_content(code, bytes(data), PATCH_IN_DATA, SIZE)
    signatures = [
        sign(terms._replace(fuse=max(0, terms.fuse - index)), content) for index in range(count)
    ]
    system = b"os of " + program.name.encode()
    image = system.ljust(BLOCK, b"\0") + code + bytes(data)
    data_at = BLOCK + code_size
    return Signed(image, BLOCK, code_size, data_at, data_at + PATCH_IN_DATA, signatures, terms)


def old_program(program: Program, terms: Terms, *, size: int) -> Signed:
    """Return a program as Turing (signature of 16 bytes) and GA100 (0x180) have it."""
    code = padded(head(program, 0x400) + program.name.encode(), BLOCK)
    data = bytearray(0x400)
    content = signed_content(code, bytes(data), OLD_PATCH_IN_DATA, size)
    signature = short(content) if size == 16 else sign(terms, content, size)
    image = (b"os of " + program.name.encode()).ljust(BLOCK, b"\0") + code + bytes(data)
    return Signed(
        image, BLOCK, len(code), 2 * BLOCK, 2 * BLOCK + OLD_PATCH_IN_DATA, [signature], terms
    )
