"""Compare the tables with the output of another generator, if its wheel is installed.

python -m ugpu.tools.clang2py.nvidia.oracle          tinygrad's nv_570 and nv_580 against ours

For developers only; neither the product nor its tests need the wheel.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from ugpu.nv import abi

_FIELDS = re.compile(r"^(?:struct_)?(\w+)\.register_fields\(\[(.*)\]\)", re.M)
_FIELD = re.compile(r"\('(\w+)', .+?, (\d+)(?:, (\d+), (\d+))?\)(?=, \(|$)")
_TAKEN = 2


def _blocks(text: str) -> dict[str, dict[str, int]]:
    """Map each structure to its members and their bit offsets."""
    blocks = {}
    for name, members in _FIELDS.findall(text):
        places = {m: int(at) * 8 + int(bit or 0) for m, at, _, bit in _FIELD.findall(members)}
        blocks[name] = places
    return blocks


def compare(branch: str, module: ModuleType) -> tuple[int, int, list[str]]:
    """Return the number of structures and of constants that both have, and the differences."""
    table = abi.select(f"{branch}.0")
    said = []
    structures = constants = 0
    assert module.__file__ is not None
    for name, places in _blocks(Path(module.__file__).read_text(encoding="utf-8")).items():
        theirs = getattr(module, name, None)
        if name not in table.structs or theirs is None:
            continue
        structures += 1
        ours = table.structs[name]
        if ours.size != theirs.SIZE:
            said.append(f"{name}: {ours.size} bytes, they say {theirs.SIZE}")
        for member, at in places.items():
            field = ours.fields.get(member)
            if field is not None and field.offset * 8 + field.bit != at:
                said.append(f"{name}.{member}: bit {field.offset * 8 + field.bit}, they say {at}")
    for name in table.constants:
        theirs = getattr(module, name, None)
        if isinstance(theirs, int):
            constants += 1
            if (theirs ^ table.constants[name]) & 0xFFFF_FFFF_FFFF_FFFF:
                said.append(f"{name}: {table.constants[name]:#x}, they say {theirs:#x}")
    for name, value in vars(module).items():
        pair = isinstance(value, tuple) and len(value) == _TAKEN and name in table.constants
        if pair and all(isinstance(number, int) for number in value):
            constants += 1
            bits = table.constants.field(name)
            if (bits.lsb + bits.width - 1, bits.lsb) != value:
                said.append(f"{name}: {bits}, they say {value}")
    return structures, constants, said


def main() -> int:
    """Compare the available tables; return 0 if nothing differs, 2 without the wheel."""
    worst = 0
    for branch in ("570", "580"):
        try:
            module = importlib.import_module(f"tinygrad.runtime.autogen.nv_{branch}")
        except ModuleNotFoundError:
            print(f"oracle: tinygrad's nv_{branch} is not installed", file=sys.stderr)
            return 2
        structures, constants, said = compare(branch, module)
        both = f"{structures} structures, {constants} constants"
        print(f"oracle: {branch}: {both}, {len(said)} differ")
        for line in said:
            print(f"oracle:   {line}")
        worst |= bool(said)
    return worst


if __name__ == "__main__":
    sys.exit(main())
