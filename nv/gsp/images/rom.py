"""The board's expansion ROM: its images, and the tables of NVIDIA's video BIOS (VBIOS) in them.

Sources: PCI Firmware Specification 3.0, 5.1 (images, PCIR); for what NVIDIA adds, Linux 7.3
nouveau nvkm/subdev/bios, nova-core vbios.rs, and open-gpu-kernel-modules 570.144
kernel_gsp_vbios_tu102.c: the IFR header before the ROM, NPDE after PCIR, images of code type 0xE0,
which form one block, and BIT, a table of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ugpu.hcq.bare.firmware import Image

SIZE = 1 << 20  # of the window through which the ROM is read
_MOST_IMAGES = 16
_BLOCK = 512
_SIGNATURES = (0xAA55, 0x4E56)
_PCIR = (b"PCIR", b"NPDS")
_IFR, _DIRECTORY = 0x4947564E, 0x44524652  # "NVGI", "RFRD"
_DIRECTORY_AT = 0x1000
PC_AT, NBSI, SECURE = 0x00, 0x70, 0xE0  # code types
_BIT = b"\xff\xb8BIT\0"
_BIT_HEADER, _MOST_TOKENS = 12, 64

Read = Callable[[int, int], bytes]  # offset and size in the ROM, in bytes


@dataclass(frozen=True)
class RomImage:
    """One image of the ROM. kind: its code type. offset: in the ROM."""

    kind: int
    offset: int
    data: bytes


class _Window(Image):
    """The ROM through `read`, which is read where it is needed."""

    def __init__(self, read: Read) -> None:
        super().__init__("VBIOS", b"")
        self._read = read

    def cut(self, offset: int, size: int, what: str) -> memoryview:
        inside, text = 0 <= offset <= offset + size <= SIZE, f"{what} extends past the ROM's window"
        self.check(inside, text, offset=offset, length=size)
        start, end = offset & ~3, offset + size + 3 & ~3
        return memoryview(self._read(start, min(end, SIZE) - start))[offset - start :][:size]


def _start(window: _Window) -> int:
    """Return where the first image lies: behind the IFR header, if there is one."""
    if window.word(0, "IFR header") != _IFR:
        return 0
    word = window.word(4, "IFR header")
    version, fixed = word >> 8 & 0xFF, word >> 16 & 0x7FFF
    if version in (1, 2):
        return window.word(fixed + 4, "ROM address")
    window.check(version == 3, f"IFR version must be 1 to 3, got {version}")
    total = window.word(8, "IFR header") & 0xFFFFF
    directory = window.word(total, "flash status") + _DIRECTORY_AT
    found = window.word(directory, "ROM directory")
    text = "the IFR header points to no ROM directory"
    window.check(found == _DIRECTORY, text, expected=_DIRECTORY, found=found)
    return window.word(directory + 8, "ROM directory")


def _header(window: _Window, at: int) -> tuple[int, int, bool]:
    """Return code type and size of the image at `at`, and whether it is the last one."""
    (signature,), text = window.unpack("H", at, "ROM image header"), f"the image at {at:#x} has no"
    known = signature in _SIGNATURES
    window.check(known, f"{text} ROM signature", expected=0xAA55, found=signature)
    (place,) = window.unpack("H", at + 0x18, "pointer to PCIR")
    mark = bytes(window.cut(at + place, 4, "PCIR"))
    window.check(mark in _PCIR, f"{text} PCIR", found=mark)
    length, blocks, kind, last = window.unpack("H4xH2xBB", at + place + 0xA, "PCIR")
    more = at + (place + length + 15 & ~15)
    if more + 12 <= SIZE and bytes(window.cut(more, 4, "NPDE")) == b"NPDE":
        blocks, last = window.unpack("HB", more + 8, "NPDE")
    return kind, blocks * _BLOCK, bool(last & 0x80) or kind == NBSI


def read_images(read: Read) -> Iterator[RomImage]:
    """Read the images of a ROM, first to last.

    read: returns bytes of the ROM; its offset and size are multiples of 4. FirmwareInvalid for a
    ROM that is not well-formed, LinkError as `read` raises it.
    """
    window = _Window(read)
    at = _start(window)
    for _ in range(_MOST_IMAGES):
        kind, size, last = _header(window, at)
        window.check(size, f"the image at {at:#x} states a size of 0")
        yield RomImage(kind, at, bytes(window.cut(at, size, "ROM image")))
        if last:
            return
        at += size
    raise window.invalid(f"expected at most {_MOST_IMAGES} images, found more")


class Vbios:
    """The video BIOS: its first image, and the block of secure images behind it.

    Pointers in its tables count from the start of the first image, as if the block followed it.
    """

    def __init__(self, base: bytes, block: bytes) -> None:
        self.base = Image("VBIOS", base)
        self.block = Image("VBIOS (secure part)", block)

    @classmethod
    def read(cls, read: Read) -> Vbios:
        """Read a ROM; FirmwareInvalid if it has no image of type 0 or no secure images."""
        base, block = None, b""
        for image in read_images(read):
            if image.kind == PC_AT and base is None:
                base = image.data
            elif image.kind == SECURE or block:
                block += image.data
        if base is None or not block:
            kind = "0" if base is None else "0xe0, which holds FWSEC"
            raise Image("VBIOS", b"").invalid(f"expected an image of code type {kind}, found none")
        return cls(base, block)

    def beyond(self, pointer: int, what: str) -> int:
        """Return the offset in `block` of a pointer that leads there."""
        size, text = len(self.base), f"the pointer to {what} must lie behind the first image"
        self.base.check(pointer >= size, text, pointer=pointer, size=size)
        return pointer - size

    def tokens(self) -> Iterator[tuple[int, ...]]:
        """Return the entries of BIT: kind, version, and size and offset in the first image of the
        entry's data."""
        place = bytes(self.base.data).find(_BIT)
        self.base.check(place >= 0, "BIT header not found")
        return self.base.table(
            place, "BIT header", "BBHH", first=_BIT[0], skip=8, head=_BIT_HEADER, most=_MOST_TOKENS
        )
