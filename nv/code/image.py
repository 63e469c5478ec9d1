"""Images: a cubin laid out for memory and linked, with a note before each kernel, and its PTX.

Layout: for each text section 256 bytes for the note (nv.abi.note), then the code; after these the
constants, the PTX, the table of its variables' addresses and the kernels' names. Kernels only read
all of these. The variables of `.global`, which kernels write, start on a page of their own.
Relocations: the types that ptxas leaves in a finished cubin (R_CUDA_*), observed with CUDA 12.9 to
13.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE, NOTE_VERSION, VARIABLE_FORMAT
from ugpu.nv.code.cubin import Cubin, Relocation, Symbol
from ugpu.nv.rm.memory import HUGE_PAGE, SMALL_PAGE

CODE_ALIGN = 256
MAX_IMAGE = 512 << 20
PREFETCH = 4096  # bytes after the code that instruction fetch may touch
# Relocation type -> pieces of the value: (first bit in the place, bits, bits of the value dropped).
# Code is patched in instructions of 128 bits; a call's target is an absolute address in words.
_RULES: dict[int, tuple[tuple[int, int, int], ...]] = {
    1: ((0, 32, 0),),  # R_CUDA_32
    2: ((0, 64, 0),),  # R_CUDA_64
    3: ((0, 32, 0),),  # R_CUDA_G32
    4: ((0, 64, 0),),  # R_CUDA_G64
    0x38: ((32, 32, 0),),  # R_CUDA_ABS32_LO_32
    0x39: ((32, 32, 32),),  # R_CUDA_ABS32_HI_32
    0x3A: ((34, 47, 2),),  # R_CUDA_ABS47_34: a call, before Hopper
    0x4B: ((16, 8, 2), (34, 47, 10)),  # R_CUDA_ABS55_16_34: a call, from Hopper on
}


_FUNCTIONS = 2  # constant bank with a kernel's table of functions
# Routines that CUDA's driver links in at load, and the alternatives for a caller without them.
_SYSTEM = {
    "malloc": "malloc needs the program as PTX, in which the loader puts its own routine",
    "free": "free needs the program as PTX, in which the loader puts its own routine",
    "vprintf": "printf needs the program as PTX, in which the loader puts its own routine",
    "__assertfail": "assert needs the program as PTX, in which the loader puts its own routine",
    "__cuda_syscall_cp_async_bulk_unicast": "cp.async.bulk is made of it for sm_120, unless it goes"
    " to .shared::cta",
}


@dataclass
class Image:
    """A cubin's memory. offsets: section number -> offset from the base. ptx: text, or empty.
    fixed: bytes from the start that kernels only read; whole pages if other data follows."""

    cubin: Cubin
    ptx: bytes
    size: int = 0
    fixed: int = 0
    ptx_at: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def entry(self, kernel: str) -> int:
        """The offset of a kernel's code."""
        return self.offsets[self.cubin.kernels[kernel].text]

    def variables(self) -> list[Symbol]:
        """The symbols of the PTX's variables: those of `.global`, and of `.const` in bank 3."""
        sections = self.cubin.sections
        return [
            symbol
            for symbol in self.cubin.symbols
            if symbol.section in self.offsets
            and symbol.name.strip(".") == symbol.name != ""
            and sections[symbol.section].name.startswith((".nv.global", ".nv.constant3"))
        ]

    @property
    def table_size(self) -> int:
        """Bytes of the table of variables."""
        return len(self._table(0))

    def _table(self, base: int) -> bytes:
        named = self.functions(base)
        for symbol in self.variables():
            assert symbol.section is not None
            named[symbol.name] = base + self.offsets[symbol.section] + symbol.value
        found = bytearray()
        for text, address in named.items():
            name = text.encode()
            found += struct.pack(VARIABLE_FORMAT, address, len(name)) + name
        return bytes(found)

    def functions(self, base: int) -> dict[str, int]:
        """Return the values that code uses as addresses of functions.

        Observed in code that nvJitLink 13.5.37 links: a function has a section of its own, and the
        value is the section's address. Observed in whole programs that ptxas 13.5.37 assembles for
        sm_75 to sm_120: the value is eight times the function's number in the module. Bank 2 of
        each kernel contains, by that number, where in the kernel's section the function begins; its
        symbol there is `$kernel$function`.
        """
        sections = self.cubin.sections
        found = {
            symbol.name: base + self.offsets[symbol.section] + symbol.value
            for symbol in self.cubin.symbols
            if symbol.section in self.offsets
            and sections[symbol.section].name == f".text.{symbol.name}"
            and symbol.name not in self.cubin.kernels
        }
        for kernel in self.cubin.kernels.values():
            number = kernel.constants.get(_FUNCTIONS)
            if number is None:
                continue
            if sections[number].name != f".nv.constant{_FUNCTIONS}.{kernel.name}":
                continue
            data = sections[number].data
            places = struct.iter_unpack("<Q", data[: len(data) // 8 * 8])
            numbers = {offset: place for place, (offset,) in enumerate(places) if place}
            start = f"${kernel.name}$"
            for symbol in self.cubin.symbols:
                if symbol.section == kernel.text and symbol.name.startswith(start):
                    place = numbers.get(symbol.value)
                    if place is not None:
                        found[symbol.name.removeprefix(start)] = 8 * place
        return found

    def link(self, base: int) -> bytes:
        """Return the linked bytes for device address `base`, a multiple of 256."""
        image = bytearray(self.size)
        for index, offset in self.offsets.items():
            data = self.cubin.sections[index].data
            image[offset : offset + len(data)] = data
        for relocation in self.cubin.relocations:
            if relocation.section in self.offsets:
                self._apply(image, base, relocation)
        table, table_at = self._table(base), self.ptx_at + len(self.ptx)
        image[table_at : table_at + len(table)] = table
        name_at = table_at + len(table)
        for name, kernel in self.cubin.kernels.items():
            note, text = self.offsets[kernel.text] - NOTE_SIZE, name.encode()
            struct.pack_into(
                NOTE_FORMAT,
                image,
                note,
                NOTE_MAGIC,
                NOTE_VERSION,
                kernel.parameters_at,
                kernel.parameters_size,
                len(text),
                base + self.ptx_at if self.ptx else 0,
                len(self.ptx),
                base + table_at,
                len(table),
                base + name_at,
            )
            image[name_at : name_at + len(text)] = text
            name_at += len(text)
        image[self.ptx_at : self.ptx_at + len(self.ptx)] = self.ptx
        return bytes(image)

    def _apply(self, image: bytearray, base: int, relocation: Relocation) -> None:
        pieces = _RULES[relocation.kind]
        symbol = self.cubin.symbols[relocation.symbol]
        target = symbol.value
        if symbol.section is not None:
            target += base + self.offsets[symbol.section]
        at = self.offsets[relocation.section] + relocation.offset
        size = _size(pieces)
        word = int.from_bytes(image[at : at + size], "little")
        addend = relocation.addend
        if addend is None:  # the place itself contains it
            addend = sum((word >> bit & (1 << width) - 1) << drop for bit, width, drop in pieces)
        value = target + addend & 0xFFFF_FFFF_FFFF_FFFF
        for bit, width, drop in pieces:
            mask = (1 << width) - 1
            word = word & ~(mask << bit) | (value >> drop & mask) << bit
        image[at : at + size] = word.to_bytes(size, "little")


def lay_out(cubin: Cubin, ptx: bytes = b"") -> Image:
    """Lay out the sections of a cubin that are loaded.

    BadCodeObject if the cubin cannot be linked, NotSupported for an unknown relocation type.
    """
    image = Image(cubin, ptx)
    texts = [section for section in cubin.sections if section.name.startswith(".text.")]
    for section in texts:
        image.offsets[section.index] = image.size + NOTE_SIZE
        image.size = _up(image.size + NOTE_SIZE + section.size, CODE_ALIGN)
    _place(image, ".nv.constant")
    written = sum(_is_written(section.name) for section in cubin.sections)
    size = sum(section.size for section in cubin.sections if _is_written(section.name))
    image.ptx_at = image.size
    names = sum(len(name.encode()) for name in cubin.kernels)
    # The table's size does not depend on where the variables are; their sections follow it.
    image.offsets |= {s.index: 0 for s in cubin.sections if _is_written(s.name)}
    image.size = _up(image.size + len(ptx) + image.table_size + names + PREFETCH, CODE_ALIGN)
    _limit(image.size + size)
    image.fixed = image.size
    if written:
        image.fixed = image.size = _up(image.size, page_of(image.size + size))
        _place(image, ".nv.global")
    for name, kernel in cubin.kernels.items():
        for index in (kernel.text, *(index for bank, index in kernel.constants.items() if bank)):
            if index not in image.offsets:
                raise BadCodeObject(f"{name} lies in section {index}, which is not loaded")
    _check_relocations(image)
    return image


def page_of(size: int) -> int:
    """The page size of the GPU's mapping of an image of about `size` bytes."""
    return HUGE_PAGE if size >= HUGE_PAGE - 2 * SMALL_PAGE else SMALL_PAGE


def _is_written(name: str) -> bool:
    return name.startswith(".nv.global")


def _place(image: Image, prefix: str) -> None:
    """Assign offsets to the sections whose names start with `prefix`."""
    for section in image.cubin.sections:
        if section.name.startswith(prefix):
            start = _up(image.size, max(section.align, CODE_ALIGN))
            image.offsets[section.index] = start
            image.size = _up(start + section.size, CODE_ALIGN)
        _limit(image.size)


def _check_relocations(image: Image) -> None:
    cubin = image.cubin
    for relocation in cubin.relocations:
        if relocation.section not in image.offsets:
            continue  # debugging information: not loaded, so not linked
        rule = _RULES.get(relocation.kind)
        symbol = cubin.symbols[relocation.symbol]
        if rule is None:
            raise NotSupported(
                f"relocation type {relocation.kind:#x} (symbol {symbol.name!r}) is not supported"
            )
        if relocation.offset + _size(rule) > len(cubin.sections[relocation.section].data):
            raise BadCodeObject(
                "the relocation extends past the end of its section", symbol=symbol.name
            )
        missing = _SYSTEM.get(symbol.name) if symbol.section is None else None
        if missing is not None:
            raise NotSupported(
                f"the code calls {symbol.name}, a routine that CUDA's driver supplies: {missing}",
                symbol=symbol.name,
            )
        if symbol.section is None or symbol.section not in image.offsets:
            raise BadCodeObject(f"the symbol {symbol.name!r} is not defined", symbol=symbol.name)


def _size(pieces: tuple[tuple[int, int, int], ...]) -> int:
    """Bytes that the pieces of a relocation touch, from its place on."""
    return max(bit + width + 7 for bit, width, _ in pieces) // 8


def _limit(size: int) -> None:
    if size > MAX_IMAGE:
        raise BadCodeObject("the cubin's sections add up to more than the size limit", size=size)


def _up(size: int, align: int) -> int:
    return -(-size // align) * align
