"""The layout of synthetic programs, by which a virtual falcon finds out what it is to run.

A program's code starts with a header that names it; the rest of its code is filler. The falcon runs
the effect of the program, never its bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

from ugpu.virtual.nvidia.gsp.firmware.containers import Signed
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


def secure_program(program: Program, terms: Terms) -> Signed:
    """Return a program for SEC2 with two signatures: for `terms.fuse` and the version below."""
    fuses = (terms.fuse, max(0, terms.fuse - 1))
    return _signed(
        program, terms, (0x200, 0x600), (PATCH_IN_DATA, SIZE),
        lambda content: [sign(terms._replace(fuse=fuse), content) for fuse in fuses],
    )  # fmt: skip


def old_program(program: Program, terms: Terms, *, size: int) -> Signed:
    """Return a program as Turing (signature of 16 bytes) and GA100 (0x180) have it."""
    return _signed(
        program, terms, (BLOCK, 0x400), (OLD_PATCH_IN_DATA, size),
        lambda content: [short(content) if size == 16 else sign(terms, content, size)],
    )  # fmt: skip


def _signed(
    program: Program,
    terms: Terms,
    sizes: tuple[int, int],
    field: tuple[int, int],
    signatures: Callable[[bytes], list[bytes]],
) -> Signed:
    """sizes: of code and data. field: place and size of the signature in the data."""
    name, (code_size, data_size) = program.name.encode(), sizes
    code = (head(program, data_size) + name).ljust(code_size, b"\0")
    data = b"DATA".ljust(data_size, b"\0")
    image = (b"os of " + name).ljust(BLOCK, b"\0") + code + data
    made, data_at = signatures(signed_content(code, data, *field)), BLOCK + code_size
    return Signed(
        program.name.lower(), image, BLOCK, code_size, data_at, data_at + field[0], made, terms
    )
