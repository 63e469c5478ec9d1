"""Generate the instruction tables of virtual/amd/isa/targets.

    python -m ugpu.tools.instructions --tinygrad DIR      DIR: an unpacked wheel of tinygrad 0.14.0

Run it only when a source changes; the tables are committed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ugpu.tools.instructions import encodings, llvm
from ugpu.tools.instructions.encodings import Encoding
from ugpu.tools.instructions.llvm import Disassemble, Disassembler, Isolated
from ugpu.tools.instructions.probe import probe
from ugpu.tools.instructions.rows import section
from ugpu.tools.instructions.types import load

OUTPUT = Path("virtual/amd/isa/targets")


@dataclass(frozen=True)
class Table:
    """A table to generate.

    isas: of the wheel, the first one that has an operation counts. fragile: LLVM's disassembler
    ends its process at some words.
    """

    processor: str
    features: str
    encodings: Mapping[str, Encoding]
    isas: tuple[str, ...]
    fragile: bool = False


TABLES = {
    "gfx11": Table("gfx1100", "+wavefrontsize32", encodings.GFX11, ("rdna3",)),
    "gfx12": Table(
        "gfx1201", "+wavefrontsize32,+real-true16", encodings.GFX12, ("rdna4",), fragile=True
    ),
    "gfx942": Table("gfx942", "", encodings.GFX9, ("cdna", "rdna3"), fragile=True),
    "gfx950": Table("gfx950", "", encodings.GFX9, ("cdna", "rdna3"), fragile=True),
    "gfx1030": Table("gfx1030", "+wavefrontsize32", encodings.GFX10, ("rdna3", "cdna")),
}


def text_of(name: str, wheel: Path) -> str:
    """Return the text of a table."""
    table = TABLES[name]
    operands = tuple(load(wheel, isa) for isa in table.isas)
    digest = hashlib.sha256()
    for isa in table.isas:
        path = wheel / "tinygrad" / "runtime" / "autogen" / "amd" / isa / "operands.py"
        digest.update(path.read_bytes())
    lines = [
        f"# Instructions of {table.processor}, by encoding; generated, do not edit .",
        f"# Numbers, names, widths and fixed bits: the disassembler of LLVM {llvm.version()}.",
        f"# Types: AMD's machine-readable ISA ({', '.join(table.isas)}) in tinygrad 0.14.0,",
        f"# runtime/autogen/amd/*/operands.py, SHA-256 {digest.hexdigest()[:16]}.",
        "# Columns and attributes: virtual/amd/isa/targets/table.py.",
    ]
    with ExitStack() as stack:
        if table.fragile:
            disassemble: Disassemble = stack.enter_context(
                Isolated(table.processor, table.features)
            )
        else:
            disassemble = Disassembler(table.processor, table.features)
        for encoding, layout in table.encodings.items():
            probes = list(probe(disassemble, encoding, layout))
            lines += ["", *section(encoding, probes, operands)]
    with Isolated(table.processor, table.features) as isolated:
        lines += formats(isolated, table.encodings)
    return "\n".join(lines) + "\n"


def formats(disassemble: Disassemble, layouts: Mapping[str, Encoding]) -> list[str]:
    """Return the section of buffer formats: number and name."""
    typed = layouts.get("MTBUF")
    lsb, opcode = (19, 0)
    if typed is None or typed.opcode != (15, 4):
        typed, lsb, opcode = layouts["MUBUF"], 55, 0x80
    lines = []
    for number in range(128):
        values = {**typed.base, "bits": number << lsb}
        size, text = disassemble(typed.code(opcode, values).to_bytes(4 * typed.words, "little"))
        name = text.partition("format:[")[2].partition("]")[0]
        if size and name:
            lines.append(f"{number} {name}")
    return ["", "[FORMATS] fixed=0x0/0x0", *lines] if lines else []


def main(arguments: list[str] | None = None) -> int:
    """Write the tables."""
    parser = argparse.ArgumentParser(prog="python -m ugpu.tools.instructions")
    parser.add_argument("--tinygrad", type=Path, required=True, help="an unpacked wheel")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("targets", nargs="*", default=list(TABLES), metavar="TARGET")
    parsed = parser.parse_args(arguments)
    for name in parsed.targets:
        (parsed.output / f"{name}.txt").write_text(text_of(name, parsed.tinygrad))
    return 0


if __name__ == "__main__":
    sys.exit(main())
