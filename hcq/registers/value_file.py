"""Values of registers in a file, by "block.NAME": written by `ugpu reg read --save`, and contained
in bundles as registers.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.outfile import Kind

FORMAT = "ugpu registers 1"
SAVED = Kind("a file of saved registers", rb'\{"format": "ugpu registers ')


@dataclass(frozen=True)
class RegisterFile:
    """Values of registers.

    Attributes:
        source: where they were read, for people.
        chip: as in virtual:<chip>, or "".
        values: by name.
    """

    source: str
    chip: str
    values: Mapping[str, int]

    def dumps(self) -> str:
        """Return the file's text; values keep their order."""
        values = {name: int(value) for name, value in self.values.items()}
        content = {"format": FORMAT, "source": self.source, "chip": self.chip, "registers": values}
        return json.dumps(content) + "\n"

    @staticmethod
    def loads(text: str | bytes, where: str) -> RegisterFile:
        """Read the output of `dumps`; BadArgument names `where` and the fault."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"expected format {FORMAT!r}, got {content['format']!r}")
            values = dict(content["registers"])
            if not all(isinstance(value, int) for value in values.values()):
                raise ValueError("expected an integer for each register")
            return RegisterFile(str(content["source"]), str(content["chip"]), values)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise BadArgument(f"{where} is not a register file: {error}") from None
