"""Programs that the host writes into a falcon's memories through its ports: Turing and GA100.

A program of the VBIOS is brought in by a small loader, which runs from the top of IMEM and finds
the program's place in system memory in a descriptor at the start of DMEM.
Sources: open-gpu-kernel-modules 570.144 kernel_gsp_falcon_tu102.c (s_prepareHsFalconDirect,
s_prepareHsFalconWithLoader), rmflcnbl.h; Linux 7.3 nouveau nvkm/falcon/gm200.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.registers.fields import RegisterBlock

BLOCK = 256
_LOADER_CONTEXT = 4  # the memory interface's context that the loader uses
_DESCRIPTOR = struct.Struct("<16x16xIQ4IIQ3I")


@dataclass(frozen=True)
class Part:
    """Code for IMEM. place: in IMEM, tag: its virtual address; both are multiples of 256."""

    place: int
    tag: int
    secure: bool
    content: bytes


@dataclass(frozen=True)
class PortProgram:
    """A program to write through ports. data: of DMEM, from its start. start: where it begins."""

    name: str
    code: tuple[Part, ...]
    data: bytes
    start: int


def loader_descriptor(
    code: int, plain: tuple[int, int], secure: tuple[int, int], data: int, data_size: int
) -> bytes:
    """Return the loader's descriptor. code, data: addresses on the bus. plain, secure: offset and
    size in the code of what is not secure, and of what is."""
    return _DESCRIPTOR.pack(_LOADER_CONTEXT, code, *plain, *secure, 0, data, data_size, 0, 0)


def write_code(regs: RegisterBlock, part: Part) -> None:
    """Write code into IMEM, with a tag for each block."""
    regs.IMEMC0.write(BLK=part.place // BLOCK, AINCW=1, SECURE=part.secure)
    for at in range(0, len(part.content), BLOCK):
        regs.IMEMT0.write((part.tag + at) // BLOCK)
        block = part.content[at : at + BLOCK].ljust(BLOCK, b"\0")
        for (word,) in struct.iter_unpack("<I", block):
            regs.IMEMD0.write(word)


def write_data(regs: RegisterBlock, content: bytes) -> None:
    """Write data into DMEM, from its start."""
    regs.DMEMC0.write(AINCW=1)
    for (word,) in struct.iter_unpack("<I", content.ljust(-(-len(content) // 4) * 4, b"\0")):
        regs.DMEMD0.write(word)
