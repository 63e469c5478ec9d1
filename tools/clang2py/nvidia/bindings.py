"""Read a branch's interface from bindings that others generated, where its headers are not to be
had here: the lines in which it differs from the branch before it.

Source: tinygrad's tinygrad/runtime/autogen/nv_<branch>.py (MIT licence), which libclang wrote from
the release that `catalogue.BINDINGS` names. The file is read as text, and never run: structures
with types and offsets of members, macros that are numbers, and pairs of bits. What it does not have
stays as in the branch before. `oracle` compares the same files for branches that have headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ugpu.tools.clang2py.cheaders import HeaderError
from ugpu.tools.clang2py.emit import number_text

_ALIAS = re.compile(r"^(\w+): TypeAlias = (.+)$", re.M)
_SIZE = re.compile(r"^class (\w+)\(c\.(?:Struct|Union)\):\n  SIZE = (\d+)$", re.M)
_FIELDS = re.compile(r"^(\w+)\.register_fields\(\[(.*)\]\)$", re.M)
_FIELD = re.compile(r"\('(\w+)', (.+?), (\d+)(?:, (\d+), (\d+))?\)(?=, \('|$)")
_ARRAY = re.compile(r"c\.Array\[(.+), Literal\[(\d+)\]\]")
_VALUE = re.compile(r"^(\w+) = \(?(0x[0-9a-fA-F]+|\d+|[A-Z]\w+)\)?$", re.M)
_PREFIX = "struct_"
_SCALARS = {
    "ctypes.c_ubyte": "u8", "ctypes.c_uint8": "u8", "ctypes.c_uint16": "u16",
    "ctypes.c_uint32": "u32", "ctypes.c_uint64": "u64", "ctypes.c_void_p": "u64",
    "ctypes.c_byte": "i8", "ctypes.c_int16": "i16", "ctypes.c_int32": "i32",
    "ctypes.c_int64": "i64",
}  # fmt: skip
_COMMAND = "_CTRL_CMD_"


class Bindings:
    """Structures and numbers of one file of bindings, in the words of our tables."""

    def __init__(self, text: str) -> None:
        self._aliases = dict(_ALIAS.findall(text))
        self._sizes = {name: int(size) for name, size in _SIZE.findall(text)}
        self._members = {name: _FIELD.findall(fields) for name, fields in _FIELDS.findall(text)}
        self._structs = {name.removeprefix(_PREFIX): name for name in self._members}
        self._values = dict(_VALUE.findall(text))

    def value(self, name: str) -> int | None:
        """Return a macro's number; None where the bindings have none, or an expression."""
        seen = set()
        while name in self._values and name not in seen:
            seen.add(name)
            name = self._values[name]
        return int(name, 0) if name[:1].isdigit() else None

    def _name(self, name: str) -> str:
        while name in self._aliases and name not in self._members:
            name = self._aliases[name]
        return name if name in self._members else self._structs.get(name, name)

    def _kind(self, text: str, known: dict[str, str]) -> str:
        array = _ARRAY.fullmatch(text)
        if array:
            return f"{self._kind(array[1], known)}[{array[2]}]"
        name = self._name(text)
        scalar = _SCALARS.get(name)
        if scalar:
            return scalar
        for block in (text, name, name.removeprefix(_PREFIX)):
            if block in known:
                return f"@{block}"
        if name in self._members:
            block = name.removeprefix(_PREFIX)
            known[block] = self.row(block, known)
            return f"@{block}"
        raise HeaderError(f"the bindings use the type {text}, which no table has")

    def members(self, block: str) -> dict[str, int] | None:
        """Map the members of a structure to their bits; None if the bindings do not have it."""
        fields = self._members.get(self._name(block))
        if fields is None:
            return None
        return {name: int(at) * 8 + int(bit or 0) for name, _, at, _, bit in fields}

    def size(self, block: str) -> int:
        """Return the bytes of a structure that the bindings have."""
        return self._sizes[self._name(block)]

    def row(self, block: str, known: dict[str, str]) -> str:
        """Return the line of a structure, and add those that it contains to `known`, the tables'
        lines, where they lack them."""
        words = [block, str(self.size(block))]
        for name, text, at, width, bit in self._members[self._name(block)]:
            place = f"{name}:{self._kind(text, known)}:{at}"
            words.append(f"{place}:{bit}:{width}" if width else place)
        return " ".join(words)


def _places(row: str) -> tuple[int, dict[str, int]]:
    _, size, *fields = row.split(" ")
    places = {}
    for field in fields:
        name, _, at, *bits = field.split(":")
        places[name] = int(at) * 8 + (int(bits[0]) if bits else 0)
    return int(size), places


def _structures(base: str, bindings: Bindings) -> str:
    rows = {line.split(" ", 1)[0]: line for line in base.splitlines()}
    for block, row in list(rows.items()):
        places = bindings.members(block)
        if row.split(" ")[1] == "=" or places is None:
            continue
        if _places(row) != (bindings.size(block), places):
            rows[block] = bindings.row(block, rows)
    return "".join(f"{row}\n" for row in rows.values())


def _constants(base: str, bindings: Bindings) -> tuple[str, dict[int, int]]:
    """Return the table, and old number -> new number of the controls that moved."""
    lines = []
    moved = {}
    for line in base.splitlines():
        name, text, *tag = line.split(" ")
        now = bindings.value(name)
        if now is not None and now != int(text, 0):
            if _COMMAND in name:
                moved[int(text, 0)] = now
            text = number_text(now)
        lines.append(" ".join([name, text, *tag]) + "\n")
    return "".join(lines), moved


def _calls(base: str, moved: Mapping[int, int]) -> str:
    lines = []
    for line in base.splitlines():
        kind, number, *rest = line.split(" ")
        if kind == "control":
            at = int(number, 16)
            number = f"{moved.get(at, at):#010x}"
        lines.append(" ".join([kind, number, *rest]))
    return "".join(f"{line}\n" for line in sorted(lines))


def tables_of(base: Mapping[str, str], bindings: Bindings) -> dict[str, str]:
    """Return the tables of a branch: those of the branch before it, with what bindings change."""
    constants, moved = _constants(base["constants"], bindings)
    return {
        "structs": _structures(base["structs"], bindings),
        "constants": constants,
        "calls": _calls(base["calls"], moved),
    }
