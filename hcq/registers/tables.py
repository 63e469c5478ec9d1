"""Folders of generated tables: registers, structures and constants, read on first use.

A folder such as am/regs holds text files written by tools/clang2py: `NAME.txt` for registers,
`NAME.structs.txt` and `NAME.constants.txt` for the definitions of a C header. A table is read once
per process. BadArgument for an unknown name lists the existing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.fields import Bus, RegisterBlock, RegisterMap
from ugpu.hcq.registers.layout import Layouts


class Tables:
    """The tables of one folder. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._registers: dict[str, RegisterMap] = {}
        self._structs: dict[str, Layouts] = {}
        self._constants: dict[str, Constants] = {}

    def _read(self, name: str, kind: str) -> str:
        suffix = f".{kind}.txt" if kind else ".txt"
        try:
            return (self.folder / f"{name}{suffix}").read_text(encoding="ascii")
        except FileNotFoundError:
            stems = (path.name.removesuffix(suffix) for path in self.folder.glob(f"*{suffix}"))
            names = sorted(stem for stem in stems if "." not in stem and stem != "MANIFEST")
            raise BadArgument(
                f"no table of {kind or 'registers'} {name}; there are {', '.join(names)}"
            ) from None

    def load(self, name: str) -> RegisterMap:
        """Return the registers of a block, by the name of its table."""
        registers = self._registers.get(name)
        if registers is None:
            registers = self._registers[name] = RegisterMap(self._read(name, ""), name)
        return registers

    def block(self, name: str, bases: Sequence[int], bus: Bus) -> RegisterBlock:
        """Return the registers of a block in a chip; `bases` holds each segment's dword address."""
        return RegisterBlock(self.load(name), bases, bus)

    def structs(self, name: str) -> Layouts:
        """Return the structures of a C header, for example `v11_structs`."""
        layouts = self._structs.get(name)
        if layouts is None:
            layouts = self._structs[name] = Layouts(self._read(name, "structs"), name)
        return layouts

    def constants(self, name: str) -> Constants:
        """Return the macros and enumerators of a C header, for example `nvd`."""
        constants = self._constants.get(name)
        if constants is None:
            constants = self._constants[name] = Constants(self._read(name, "constants"), name)
        return constants
