"""Steps "vbios" and "frts": FWSEC, the program in the board's ROM. It is found there, with the
signature that fits the chip's fuses; it protects a region at the end of VRAM (WPR2) and copies data
there (FRTS)."""

from __future__ import annotations

import struct

from ugpu.hcq.errors import FirmwareRejected, NotSupported
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import GspChip, is_locked
from ugpu.nv.gsp.chip.falcon import Program
from ugpu.nv.gsp.chip.ports import BLOCK, Part, PortProgram, loader_descriptor
from ugpu.nv.gsp.images.fwsec import FRTS, Fwsec, frts_arguments
from ugpu.nv.gsp.images.rom import Vbios
from ugpu.nv.gsp.layout.memory import Pages

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


def protected_region(chip: GspChip) -> tuple[int, int]:
    """Return begin and end of WPR2 in VRAM; (0, 0) if there is none."""
    found = chip.nv.NV_PFB_PRI_MMU_WPR2_ADDR_HI.read()
    if is_locked(int(found)):  # under Confidential Computing; FSP then refuses by itself
        return 0, 0
    high = found.VAL << 12
    if not high:
        return 0, 0
    return chip.nv.NV_PFB_PRI_MMU_WPR2_ADDR_LO.read().VAL << 12, high


def place_fwsec(start: Start, command: int, arguments: bytes) -> Pages:
    """Copy FWSEC with a command into memory, as `program` loads it."""
    assert start.fwsec is not None
    image = start.fwsec.with_command(command, arguments, start.signature)
    if not start.boot.dma:
        code = start.fwsec.descriptor.imem
        image = image[:code].ljust(_up(code), b"\0") + image[code:]
    return start.memory.take(len(image), image)


def program(start: Start, image: Pages, name: str) -> Program | PortProgram:
    """Return how FWSEC is loaded from its image in memory."""
    assert start.fwsec is not None
    descriptor = start.fwsec.descriptor
    if not start.boot.dma:
        return _loaded(start, image, name)
    return Program(
        name=name,
        address=image.address,
        code=(0, descriptor.imem),
        start=descriptor.virtual,
        data=(descriptor.imem, descriptor.dmem),
        parameters=descriptor.signature_at,
        engines=descriptor.engines,
        ucode=descriptor.ucode,
    )


def _loaded(start: Start, image: Pages, name: str) -> PortProgram:
    """Return the loader that brings FWSEC in."""
    fwsec, loader = start.fwsec, start.files.loader
    assert fwsec is not None and loader is not None
    found = fwsec.descriptor
    if found.version != 2:
        raise NotSupported("FWSEC of a later generation on this chip", version=found.version)
    descriptor = loader_descriptor(
        image.address,
        (0, found.imem - found.secure_size),
        (found.secure_base - found.virtual, _up(found.secure_size)),
        image.address + _up(found.imem),
        found.dmem,
    )
    code, tag = loader.code, loader.start * BLOCK
    part = Part(start.gsp.code_size - _up(len(code)), tag, False, code)
    return PortProgram(name, (part,), descriptor, tag)


def _up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def run_frts(start: Start) -> None:
    """Run FWSEC's command FRTS; FirmwareRejected if it fails or protects another region."""
    chip = start.chip
    begin, size = start.places["frtsOffset"], start.places["frtsSize"]
    pages = place_fwsec(start, FRTS, frts_arguments(begin, size))
    start.gsp.run(program(start, pages, "FWSEC-FRTS"))
    error = chip.nv.NV_PBUS_SW_SCRATCH_0E.read().FRTS_ERROR
    expected = (begin, begin + size)
    found = protected_region(chip)
    if error or found != expected:
        what = "protected another region than requested"
        if not found[1]:
            what = "has protected nothing: it did not run, as if its signature were refused"
        raise FirmwareRejected(
            f"FWSEC-FRTS reports error {error:#x}" if error else f"FWSEC-FRTS {what}",
            image="FWSEC", stage="FRTS", status=error,
            expected=f"{expected[0]:#x}-{expected[1]:#x}", found=f"{found[0]:#x}-{found[1]:#x}",
        )  # fmt: skip
    start.memory.close([pages])
