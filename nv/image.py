"""Images: a cubin laid out for memory, linked, with a note before each kernel and the PTX behind.

Layout: for each text section 256 bytes for the note (nv.abi.note), then the code; then data and
constants; then the PTX. Relocations: the types that ptxas leaves in a finished cubin (R_CUDA_*),
observed with CUDA 12.9 to 13.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hcq.errors import BadCodeObject, NotSupported
from nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_NAME_LIMIT, NOTE_SIZE, NOTE_VERSION
from nv.cubin import Cubin, Relocation

CODE_ALIGN = 256
MAX_IMAGE = 512 << 20
PREFETCH = 4096  # bytes behind the code that instruction fetch may touch
# Relocation type -> (byte in the place, width in bytes, bits dropped from the value).
_RULES = {
    1: (0, 4, 0),  # R_CUDA_32
    2: (0, 8, 0),  # R_CUDA_64
    3: (0, 4, 0),  # R_CUDA_G32
    4: (0, 8, 0),  # R_CUDA_G64
    0x38: (4, 4, 0),  # R_CUDA_ABS32_LO_32: the upper half of an instruction's first word
    0x39: (4, 4, 32),  # R_CUDA_ABS32_HI_32
}


@dataclass
class Image:
    """A cubin's memory. offsets: section number -> offset from the base. ptx: text, or empty."""

    cubin: Cubin
    ptx: bytes
    size: int = 0
    ptx_at: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def entry(self, kernel: str) -> int:
        """The offset of a kernel's code."""
        return self.offsets[self.cubin.kernels[kernel].text]

    def link(self, base: int) -> bytes:
        """The bytes for device address `base`, a multiple of 256."""
        image = bytearray(self.size)
        for index, offset in self.offsets.items():
            data = self.cubin.sections[index].data
            image[offset : offset + len(data)] = data
        for relocation in self.cubin.relocations:
            if relocation.section in self.offsets:
                self._apply(image, base, relocation)
        for name, kernel in self.cubin.kernels.items():
            note = self.offsets[kernel.text] - NOTE_SIZE
            struct.pack_into(
                NOTE_FORMAT,
                image,
                note,
                NOTE_MAGIC,
                NOTE_VERSION,
                kernel.parameters_at,
                kernel.parameters_size,
                len(name.encode()),
                base + self.ptx_at if self.ptx else 0,
                len(self.ptx),
            )
            start = note + struct.calcsize(NOTE_FORMAT)
            image[start : start + len(name.encode())] = name.encode()
        image[self.ptx_at : self.ptx_at + len(self.ptx)] = self.ptx
        return bytes(image)

    def _apply(self, image: bytearray, base: int, relocation: Relocation) -> None:
        place, width, shift = _RULES[relocation.kind]
        symbol = self.cubin.symbols[relocation.symbol]
        target = symbol.value
        if symbol.section is not None:
            target += base + self.offsets[symbol.section]
        at = self.offsets[relocation.section] + relocation.offset + place
        addend = relocation.addend
        if addend is None:
            addend = int.from_bytes(image[at : at + width], "little") << shift
        value = (target + addend & 0xFFFF_FFFF_FFFF_FFFF) >> shift
        image[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")


def lay_out(cubin: Cubin, ptx: bytes = b"") -> Image:
    """Place what is loaded; BadCodeObject for what cannot be linked, NotSupported for relocations
    of types we do not know."""
    image = Image(cubin, ptx)
    texts = [section for section in cubin.sections if section.name.startswith(".text.")]
    for section in texts:
        image.offsets[section.index] = image.size + NOTE_SIZE
        image.size = _up(image.size + NOTE_SIZE + section.size, CODE_ALIGN)
    for section in cubin.sections:
        if section.name.startswith((".nv.global", ".nv.constant")):
            start = _up(image.size, max(section.align, CODE_ALIGN))
            image.offsets[section.index] = start
            image.size = _up(start + section.size, CODE_ALIGN)
        _limit(image.size)
    image.ptx_at = image.size
    image.size = _up(image.size + len(ptx) + PREFETCH, CODE_ALIGN)
    _limit(image.size)
    for name in cubin.kernels:
        if len(name.encode()) > NOTE_NAME_LIMIT:
            raise BadCodeObject(f"a kernel's name has at most {NOTE_NAME_LIMIT} bytes", kernel=name)
    _check_relocations(image)
    return image


def _check_relocations(image: Image) -> None:
    cubin = image.cubin
    for relocation in cubin.relocations:
        if relocation.section not in image.offsets:
            continue  # debugging information: not loaded, so not linked
        rule = _RULES.get(relocation.kind)
        symbol = cubin.symbols[relocation.symbol]
        if rule is None:
            raise NotSupported(f"relocation type {relocation.kind:#x} of {symbol.name!r}")
        if relocation.offset + rule[0] + rule[1] > len(cubin.sections[relocation.section].data):
            raise BadCodeObject("a relocation reaches beyond its section", symbol=symbol.name)
        if symbol.section is None or symbol.section not in image.offsets:
            raise BadCodeObject(f"the symbol {symbol.name!r} is not defined", symbol=symbol.name)


def _limit(size: int) -> None:
    if size > MAX_IMAGE:
        raise BadCodeObject("the cubin unfolds to more than is sensible", size=size)


def _up(size: int, align: int) -> int:
    return -(-size // align) * align
