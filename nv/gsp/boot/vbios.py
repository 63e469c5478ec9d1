"""Step "vbios": find FWSEC in the board's ROM, and the signature that fits the chip's fuses."""

from __future__ import annotations

import struct

from ugpu.hcq.errors import NotSupported
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.images.fwsec import Fwsec
from ugpu.nv.gsp.images.rom import Vbios

_PROM = 0x30_0000
# Engine mask of a program -> the fuses' bank with the versions of its 16 programs.
_BANKS = (
    (1 << 0, "NV_FUSE_OPT_FPF_SEC2_UCODE1_VERSION"),
    (1 << 2, "NV_FUSE_OPT_FPF_NVDEC_UCODE1_VERSION"),
    (1 << 10, "NV_FUSE_OPT_FPF_GSP_UCODE1_VERSION"),
)
_PROGRAMS = 16


def read_rom(chip: GspChip, offset: int, size: int) -> bytes:
    """Read bytes of the ROM; both numbers are multiples of 4."""
    first = (_PROM + offset) // 4
    return struct.pack(
        f"<{size // 4}I", *(chip.bus.read32(first + number) for number in range(size // 4))
    )


def fuse_version(chip: GspChip, engines: int, ucode: int) -> int:
    """Read the fuses with the least version of a program. ucode: its number, from 1."""
    bank = next((name for mask, name in _BANKS if engines & mask), "")
    if not bank or not 1 <= ucode <= _PROGRAMS:
        raise NotSupported(
            "the fuses of this kind of program are not known", engines=engines, ucode=ucode
        )
    return chip.bus.read32(chip.nv[bank].index + ucode - 1)


def find_fwsec(start: Start) -> None:
    """Read the ROM and choose the signature. Nothing of the chip is changed."""
    chip = start.chip
    fwsec = Fwsec.find(Vbios.read(lambda offset, size: read_rom(chip, offset, size)))
    descriptor = fwsec.descriptor
    if descriptor.version == 3:
        fuse = fuse_version(chip, descriptor.engines, descriptor.ucode)
        start.signature = fwsec.signature(fuse)
    start.fwsec = fwsec
