"""Read SDMA packet headers: packets described by remarks and by triples of macros.

    ** Definitions for PACKET packet
    /*define for WORD word*/
    /*define for FIELD field*/
    #define PACKET_WORD_FIELD_offset dword    ..._mask unshifted mask    ..._shift lsb

Each packet becomes a structure whose members are called WORD_FIELD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ugpu.tools.clang2py.cheaders import HeaderError, Row

_REMARK = re.compile(
    r"\*\* Definitions for (?P<packet>\w+) packet"
    r"|/\*define for (?P<word>\w+) word\*/"
    r"|/\*define for (?P<field>\w+) field\*/"
)
_WORD_BYTES = 4


def read_packets(text: str, constants: Mapping[str, tuple[int, str]]) -> dict[str, Row]:
    """Return a row for each packet. constants: the numbers that the compiler computed."""
    members: dict[str, list[tuple[str, str, int, int, int]]] = {}
    packet = word = ""
    for remark in _REMARK.finditer(text):
        if remark["packet"]:
            packet = remark["packet"]
            members[packet] = []
        elif remark["word"]:
            word = remark["word"]
        else:
            name = f"{word}_{remark['field']}"
            try:
                dword, mask, shift = (
                    constants[f"{packet}_{name}_{part}"][0] for part in ("offset", "mask", "shift")
                )
            except KeyError as missing:
                raise HeaderError(f"{packet} {name}: no macro {missing}") from None
            width = mask.bit_length()
            if mask != (1 << width) - 1 or not 0 < width <= 32 - shift:
                raise HeaderError(f"{packet} {name}: mask {mask:#x} at bit {shift} is not a field")
            if (shift, width) == (0, 32):
                members[packet].append((name, "u32", dword * _WORD_BYTES, 0, 0))
            else:
                at = dword * _WORD_BYTES + shift // 8
                members[packet].append((name, "u32", at, shift % 8, width))
    rows = {}
    for name, parts in members.items():
        last = max(offset // _WORD_BYTES for _, _, offset, _, _ in parts)
        rows[name] = Row(name, (last + 1) * _WORD_BYTES, tuple(parts))
    return rows
