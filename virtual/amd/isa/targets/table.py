"""Read the tables of instructions, `<target>.txt`, which `ugpu.tools.instructions` generates.

A section begins with `[ENCODING] fixed=MASK/VALUE`: bits that have this value in its instructions,
unless a row says otherwise. A row has the opcode, LLVM's mnemonic and:

- scalar and vector encodings: the type of the destination ("-" for none) and those of the sources
  (`operands.Type`; "literal" is the constant word of fmamk and fmaak, "mask" a lane mask, "message"
  an immediate). VOPDX and VOPDY are the halves of a pair.
- SMEM: registers loaded, registers of the base. DS: "a" if there is an address, then registers of
  destination, first and second data. FLAT, GLOBAL, SCRATCH: registers of destination and data; the
  name lacks the segment. MUBUF, MTBUF: registers of data. "-" stands for none.

Attributes: `fixed`; `kinds=N:LETTERS` for sources that are not free: v a vector register, s a
scalar one, i an inline constant, l a literal; `dpp`: codes of permuted lanes that the first source
may have; `plain`: bits of the word of these lanes that must be 0; `ignored`: bits that change
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ugpu.virtual.amd.isa.targets.canonical import CANONICAL

_FREE = "vsil"
_PERMUTED = (250, 233)
_COUNTED = ("SMEM", "DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "MTBUF")


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction of a table.

    name: LLVM's mnemonic. operation: the name of its semantics, shared by all targets. dst, srcs:
    types. counts: of memory encodings, registers of each operand in the table's order. fixed,
    value: bits that must have a value; ignored: bits of modifiers that the instruction does not
    have. kinds: what each source may be. dpp, plain: see the module.
    """

    name: str
    operation: str
    dst: str = ""
    srcs: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    fixed: int = 0
    value: int = 0
    kinds: tuple[str, str, str] = (_FREE, _FREE, _FREE)
    dpp: tuple[int, ...] = ()
    ignored: int = 0
    plain: int = 0


Table = Mapping[int, Row]


def load(name: str) -> dict[str, dict[int, Row]]:
    """Return the tables of a target, by encoding and opcode."""
    path = Path(__file__).with_name(f"{name}.txt")
    tables: dict[str, dict[int, Row]] = {}
    encoding, common = "", (0, 0)
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            encoding, _, attribute = line[1:].partition("] ")
            common = _bits(attribute.removeprefix("fixed="))
            tables[encoding] = {}
        elif line and not line.startswith("#"):
            opcode, *columns = line.split()
            tables[encoding][int(opcode)] = _row(encoding, columns, common)
    return tables


def _bits(text: str) -> tuple[int, int]:
    mask, _, value = text.partition("/")
    return int(mask, 16), int(value, 16)


def _row(encoding: str, columns: list[str], common: tuple[int, int]) -> Row:
    name = columns[0]
    plain = [column for column in columns[1:] if "=" not in column]
    attributes = dict(column.split("=", 1) for column in columns[1:] if "=" in column)
    fixed, value = _bits(attributes["fixed"]) if "fixed" in attributes else common
    if encoding == "FORMATS":
        return Row(name, name)
    kinds = [_FREE] * 3
    for entry in filter(None, attributes.get("kinds", "").split(",")):
        number, _, letters = entry.partition(":")
        kinds[int(number)] = letters.replace("-", "")
    dpp = attributes.get("dpp")
    permuted: tuple[int, ...] = _PERMUTED if encoding in ("VOP1", "VOP2", "VOPC", "VOP3") else ()
    if dpp is not None:
        permuted = tuple(int(code) for code in dpp.split(",") if code != "-")
    counted = encoding in _COUNTED
    counts = tuple(_count(column) for column in plain) if counted else ()
    types = [] if counted else plain
    return Row(
        name,
        CANONICAL.get(name, name),
        types[0].replace("-", "") if types else "",
        tuple(types[1:]),
        counts,
        fixed,
        value,
        (kinds[0], kinds[1], kinds[2]),
        permuted,
        int(attributes.get("ignored", "0"), 16),
        int(attributes.get("plain", "0"), 16),
    )


def _count(column: str) -> int:
    return {"-": 0, "a": 1}[column] if column in "-a" else int(column)
