"""Calls inside a loaded shared library, redirected to another function.

A library calls its own exported functions through the slots of its procedure linkage table, which
hold addresses once it is bound (RTLD_NOW, as ctypes loads libraries). Sources: System V ABI (gABI),
chapter 5 "Dynamic Section"; the x86-64 and AArch64 psABI, "Global Offset Table": three words for
the linker, then a slot for each relocation of DT_JMPREL.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PT_DYNAMIC, _PT_GNU_RELRO = 2, 0x6474E552
_DT_PLTRELSZ, _DT_PLTGOT = 2, 3
_RELOCATION_SIZE = 24  # Elf64_Rela
_RESERVED = 3  # words for the linker before the slots


class _Found(ctypes.Structure):  # Dl_info (dlfcn.h)
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def redirect(library: ctypes.CDLL, name: str, target: int) -> bool:
    """Redirect the library's own calls of its function `name` to the address `target`. Return False
    and change nothing if it does not call it by a slot that may be written."""
    function = _address(getattr(library, name))
    found = _Found()
    locate = ctypes.CDLL(None).dladdr
    locate.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    if not locate(function, ctypes.byref(found)) or not found.base:
        return False
    base: int = found.base
    segments = [(kind, base + start, base + end) for kind, start, end in _segments(found.name)]
    dynamic = next((start for kind, start, _ in segments if kind == _PT_DYNAMIC), 0)
    facts = dict(_dynamic(dynamic)) if dynamic else {}
    table, size = facts.get(_DT_PLTGOT, 0), facts.get(_DT_PLTRELSZ, 0)
    if not table or not size:
        return False
    table += base * (table < base)  # some linkers leave it relative
    words = (ctypes.c_uint64 * (_RESERVED + size // _RELOCATION_SIZE)).from_address(table)
    try:
        slot = list(words).index(function, _RESERVED)
    except ValueError:
        return False
    place = table + 8 * slot
    if any(kind == _PT_GNU_RELRO and start <= place < end for kind, start, end in segments):
        return False
    words[slot] = target
    return True


def _address(function: Any) -> int:  # a function of a library, whose class ctypes makes
    found: int = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found


def _segments(path: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield program headers of a library's file, loaded or not: type, start and end."""
    with Path(os.fsdecode(path)).open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":  # 64 bits, little endian
            return
        at, size, count = struct.unpack_from("<Q14xHH", header, 32)
        file.seek(at)
        for _ in range(count):
            kind, start, length = struct.unpack_from("<I12xQ16xQ", file.read(size))
            yield kind, start, start + length


def _dynamic(at: int) -> Iterator[tuple[int, int]]:
    """Yield entries of the dynamic section."""
    while True:
        tag, value = struct.unpack("<QQ", ctypes.string_at(at, 16))
        if not tag:
            return
        yield tag, value
        at += 16
