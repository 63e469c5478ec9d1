"""Generate the tables of qcom/regs: registers, packets, descriptors, numbers, KGSL's interface."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ugpu.hcq.registers.fields import Register
from ugpu.tools.clang2py.adreno.catalogue import (
    CHOSEN,
    DATABASES,
    DESCRIPTORS,
    FOLDER,
    GENERATIONS,
    INPUTS,
    KGSL,
    LEFT_OUT,
    LEFT_OUT_ENUMERATIONS,
    LICENCE,
    MOVED,
    PACKETS,
    REGISTERS,
)
from ugpu.tools.clang2py.adreno.rnn import Database, RnnError
from ugpu.tools.clang2py.adreno.sources import MesaTree
from ugpu.tools.clang2py.emit import constant_text, heading, register_text, structure_text
from ugpu.tools.clang2py.manifest import Manifest, digest
from ugpu.tools.clang2py.regen import Outputs, read_header, write_folder

_REGISTERS = "NAME offset segment [FIELD:lsb:width ...]"
_CONSTANTS = "NAME value [enumeration]; REGISTER__FIELD__SHR: low bits that a field leaves out"


def _sources(tree: MesaTree, paths: Iterable[str]) -> list[tuple[str, str]]:
    return [(path, digest((tree.folder / path).read_bytes())) for path in paths]


def _chosen(name: str) -> bool:
    return bool(CHOSEN.match(name)) and not LEFT_OUT.match(name)


def _numbers(
    database: Database, generation: int, enums: Iterable[str], shifts: dict[str, int]
) -> str:
    numbers: dict[str, tuple[int, str]] = {name: (value, "") for name, value in shifts.items()}
    for enum in enums:
        for name, value in database.enumerators(enum, generation).items():
            if not name.isidentifier():
                continue
            earlier = numbers.setdefault(name, (value, enum))
            if earlier[0] != value:
                raise RnnError(f"{name} is {earlier[0]} in {earlier[1]} and {value} in {enum}")
    return constant_text(numbers, {})


def corrected(registers: Sequence[Register], generation: int) -> list[Register]:
    """Move the registers that the release places wrongly; RnnError if one is already right."""
    moves = {name: offset for (number, name), offset in MOVED.items() if number == generation}
    placed = []
    for register in registers:
        offset = moves.pop(register.name, None)
        if offset == register.offset:
            raise RnnError(f"{register.name} is at {offset:#x}, to which it was to be moved")
        if offset is not None:
            register = Register(register.name, offset, register.segment, register.fields.values())
        placed.append(register)
    if moves:
        raise RnnError(f"registers to be moved are missing: {sorted(moves)}")
    return placed


def generation_tables(database: Database, generation: int, top: dict[str, str]) -> Outputs:
    """Return the tables of one generation. top: the headings."""
    stem = GENERATIONS[generation]
    registers, shifts = database.registers(REGISTERS, generation, keep=_chosen)
    registers = corrected(registers, generation)
    packets: list[Register] = []
    for domain in database.domains:
        if PACKETS.match(domain) or domain in DESCRIPTORS:
            words, more = database.registers(domain, generation, f"{domain}_")
            packets += words
            shifts |= more
    packets.sort(key=lambda register: register.name)
    enums = [name for name in database.enums if not LEFT_OUT_ENUMERATIONS.match(name)]
    return {
        f"{stem}.txt": top["registers"] + register_text(registers),
        f"{stem}_packets.txt": top["registers"] + register_text(packets),
        f"{stem}.constants.txt": top["constants"] + _numbers(database, generation, enums, shifts),
    }


def generate(tree: MesaTree) -> Outputs:
    """Generate everything in memory: file name -> text."""
    database = Database(tree.folder / path for path in DATABASES)
    sources = _sources(tree, DATABASES)
    top = {
        "registers": heading(sources, _REGISTERS, LICENCE, tree.origin),
        "constants": heading(sources, _CONSTANTS, LICENCE, tree.origin),
    }
    outputs: Outputs = {}
    for generation in GENERATIONS:
        outputs |= generation_tables(database, generation, top)
    header = read_header(tree.folder, KGSL)
    sources = _sources(tree, KGSL.inputs)
    remark = "NAME value [enumeration]; NAME() lsb width"
    outputs[f"{KGSL.name}.constants.txt"] = heading(
        sources, remark, KGSL.licence, tree.origin
    ) + constant_text(header.constants, header.placements)
    remark = "NAME size [FIELD:type:offset[:bit:width] ...]"
    outputs[f"{KGSL.name}.structs.txt"] = heading(
        sources, remark, KGSL.licence, tree.origin
    ) + structure_text(header.rows, header.aliases)
    return outputs


def write(tree: MesaTree, root: Path) -> list[Path]:
    """Generate everything below `root`; return the files that changed, were added or removed."""
    outputs = generate(tree)
    inputs = dict(_sources(tree, INPUTS))
    digests = {name: digest(text.encode("ascii")) for name, text in outputs.items()}
    return write_folder(root / FOLDER, outputs, Manifest(tree.origin, inputs, digests))
