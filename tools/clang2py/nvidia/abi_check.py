"""Compare a firmware's tables with NVIDIA's own assertions about them (gsp_abi_check.c)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.layout import Layouts
from ugpu.tools.clang2py.nvidia.catalogue import ABI_CHECK

_SIZE = re.compile(r"^ABI_CHECK_SIZE_(EQ|GE)\((\w+), (\d+)\);", re.M)
_FIELD = re.compile(r"^ABI_CHECK_FIELD(?:_FLEXIBLE)?\((\w+), ([\w.\[\]]+), (\d+)", re.M)
_VALUE = re.compile(r"^ABI_CHECK_ENUM_VAL_EQ\(\w+, (\w+), (\w+)\);", re.M)


def contradictions(text: str, structs: Layouts, constants: Constants) -> Iterator[str]:
    """Yield each assertion of the file `text` that the tables contradict. Structures and numbers
    that the tables leave out are not compared."""
    for kind, name, size in _SIZE.findall(text):
        if name in structs:
            actual = structs[name].size
            if actual < int(size) or (kind == "EQ" and actual != int(size)):
                yield f"{name} has {actual} bytes, expected {size}"
    for name, member, offset in _FIELD.findall(text):
        if name not in structs:
            continue
        try:
            place = structs[name].offset_of(member)
        except UgpuError:
            yield f"{name} has no member {member}"
            continue
        if place != int(offset):
            yield f"{name}.{member} is at {place}, expected {offset}"
    for name, value in _VALUE.findall(text):
        if name in constants and constants[name] != int(value, 0):
            yield f"{name} is {constants[name]:#x}, expected {value}"


def compared(text: str, structs: Layouts) -> tuple[int, int]:
    """Return how many sizes and offsets of the file `text` are in the tables."""
    sizes = sum(name in structs for _, name, _ in _SIZE.findall(text))
    return sizes, sum(name in structs for name, _, _ in _FIELD.findall(text))


def check(tree: Path, tables: Mapping[str, str]) -> list[str]:
    """Return the contradictions between a release's own file, if it has one, and its tables."""
    path = tree / ABI_CHECK
    if not path.is_file():
        return []
    structs = Layouts(tables["structs"], "firmware")
    constants = Constants(tables["constants"], "firmware")
    return list(contradictions(path.read_text(encoding="utf-8"), structs, constants))
