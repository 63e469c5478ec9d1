"""Folders of generated tables: registers, constants and struct layouts, read when first asked for.

A folder such as am/regs holds text files written by tools/clang2py: `NAME.txt` for registers,
`NAME.constants.txt` and `NAME.structs.txt` for what C headers define. A table is read once per process.
"""

from __future__ import annotations

from pathlib import Path

from hcq.errors import BadArgument
from hcq.fields import RegisterMap


class Tables:
    """The tables of one folder. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._registers: dict[str, RegisterMap] = {}

    def _read(self, name: str, suffix: str) -> str:
        try:
            return (self.folder / f"{name}{suffix}").read_text(encoding="ascii")
        except FileNotFoundError:
            known = sorted(
                path.name.removesuffix(suffix)
                for path in self.folder.glob(f"*{suffix}")
                if "." not in path.name.removesuffix(suffix)
            )
            raise BadArgument(f"no table {name}{suffix}; there are {', '.join(known)}") from None

    def load(self, name: str) -> RegisterMap:
        """The registers of a block, for example `gc_11_0_0`; BadArgument names the tables there are."""
        found = self._registers.get(name)
        if found is None:
            found = self._registers[name] = RegisterMap(self._read(name, ".txt"), name)
        return found
