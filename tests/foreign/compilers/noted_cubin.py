"""Put our loader's note and the PTX into a cubin that another loader will load.

The virtual SMs execute PTX, which they find by a note before a kernel's code (nv/abi/note.py). Our
loader writes it; others know nothing of it. So the cubin carries it: a section with the note that
lies right before the code, one with the PTX, and relocations for the note's addresses
(R_CUDA_64, which is 2), which any loader of cubins applies. The code is as it was.

Source: the generic ABI for ELF-64 (section headers, symbols, relocations with addends).
"""

from __future__ import annotations

import struct

from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE, NOTE_VERSION
from ugpu.nv.code.cubin import parse_cubin

_HEADER = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QQq")  # Elf64_Rela
_PROGBITS, _SYMTAB, _RELA, _ALLOC, _R_CUDA_64 = 1, 2, 4, 2, 2
_SHOFF, _SHNUM, _SHSTRNDX = 0x28, 0x3C, 0x3E
_NOTE_AT = 0x100  # in the image
_PTX_FIELD, _NAME_FIELD = 24, 56  # of the note
_NOTE, _PTX = b".ugpu.note", b".ugpu.ptx"


def noted(image: bytes, ptx: bytes) -> bytes:
    """The cubin of one kernel with its PTX; ValueError unless it has one kernel."""
    cubin = parse_cubin(image)
    if len(cubin.kernels) != 1:
        raise ValueError(f"expected a cubin of one kernel, got {len(cubin.kernels)}")
    (kernel,) = cubin.kernels.values()
    name = kernel.name.encode()
    (table,) = struct.unpack_from("<Q", image, _SHOFF)
    count, names = struct.unpack_from("<HH", image, _SHNUM)
    headers = [
        list(_HEADER.unpack_from(image, table + _HEADER.size * index)) for index in range(count)
    ]
    output = bytearray(image)

    def put(data: bytes) -> tuple[int, int]:
        output.extend(bytes(-len(output) % 16))
        output.extend(data)
        return len(output) - len(data), len(data)

    def content(index: int) -> bytes:
        offset, size = headers[index][4:6]
        return image[offset : offset + size]

    note = struct.pack(
        NOTE_FORMAT, NOTE_MAGIC, NOTE_VERSION, kernel.parameters_at, kernel.parameters_size,
        len(name), 0, len(ptx), 0, 0, 0,
    ).ljust(NOTE_SIZE, b"\0")  # fmt: skip
    code_at = _NOTE_AT + NOTE_SIZE
    ptx_at = code_at + -(-kernel.code_size // 256) * 256
    headers[kernel.text][3] = code_at

    symtab = next(index for index, header in enumerate(headers) if header[1] == _SYMTAB)
    symbols = content(symtab)
    first = len(symbols) // _SYMBOL.size
    for value in (0, len(ptx)):  # the PTX, and the name behind it
        symbols += _SYMBOL.pack(0, 0x10, 0, count + 1, value, 0)
    headers[symtab][4:6] = put(symbols)

    strings = content(names)
    note_name = len(strings) + len(b".rela") - 0
    added = b".rela" + _NOTE + b"\0" + _PTX + b"\0"
    rela_name, ptx_name = len(strings), len(strings) + len(b".rela" + _NOTE) + 1
    headers[names][4:6] = put(strings + added)

    relocations = b"".join(
        _RELOCATION.pack(field, first + number << 32 | _R_CUDA_64, 0)
        for number, field in enumerate((_PTX_FIELD, _NAME_FIELD))
    )
    headers += [
        [note_name, _PROGBITS, _ALLOC, _NOTE_AT, *put(note), 0, 0, NOTE_SIZE, 0],
        [ptx_name, _PROGBITS, _ALLOC, ptx_at, *put(ptx + name), 0, 0, 16, 0],
        [rela_name, _RELA, 0, 0, *put(relocations), symtab, count, 8, _RELOCATION.size],
    ]
    start, _ = put(b"".join(_HEADER.pack(*header) for header in headers))
    struct.pack_into("<Q", output, _SHOFF, start)
    struct.pack_into("<H", output, _SHNUM, len(headers))
    return bytes(output)
