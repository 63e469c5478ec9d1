"""The layout of synthetic programs, by which a virtual falcon finds out what it is to run.

A program's code starts with a header that names it; the rest of its code is filler. The falcon runs
the effect of the program, never its bytes.
"""

from __future__ import annotations

import enum
import struct

from ugpu.virtual.nvidia.gsp.firmware.containers import Signed
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms, short, sign

SEC2, GSP = 1, 0x400  # engine masks
BLOCK = 256
_HEAD = struct.Struct("<8sHHI")
_MAGIC = b"UGPUCODE"
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


def secure_program(program: Program, terms: Terms, *, old: int = 0) -> Signed:
    """Return a program for SEC2 with two signatures: for `terms.fuse` and the version below. old:
    bytes of the only signature of a program of Turing (16) or GA100 (0x180)."""
    name, code_size, data_size, place, size = program.name.encode(), 0x200, 0x600, 0x10, SIZE
    if old:
        code_size, data_size, place, size = BLOCK, 0x400, OLD_PATCH_IN_DATA, old
    code = (head(program, data_size) + name).ljust(code_size, b"\0")
    data = b"DATA".ljust(data_size, b"\0")
    content = signed_content(code, data, place, size)
    fuses = (terms.fuse,) if old else (terms.fuse, max(0, terms.fuse - 1))
    signatures = [sign(terms._replace(fuse=fuse), content, size) for fuse in fuses]
    if size == 16:
        signatures = [short(content)]
    image, data_at = (b"os of " + name).ljust(BLOCK, b"\0") + code + data, BLOCK + code_size
    return Signed(
        program.name.lower(), image, BLOCK, code_size, data_at, data_at + place, signatures, terms
    )
