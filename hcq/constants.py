"""Named numbers from C headers: macros and enumerators, read from text tables made by the
generator.

A table is text, one name a line, sorted; lines that start with `#` are remarks at the top:

    NAME value [enumeration]
    NAME() lsb width                a macro that places its argument in a word: a Field

Values are what the C compiler computes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from hcq.fields import Field


class Constants:
    """The named numbers of one header: `nvd.PACKET3_NOP` is an int.

    A macro with an argument, such as `WRITE_DATA_DST_SEL(x)`, is a Field: `.insert(word, x)` places
    and checks. Where the header's macro does not mask its argument the field reaches to the end of
    the word.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._groups: dict[str, dict[str, int]] = {}
        self._values: dict[str, int] = {}
        self._fields: dict[str, Field] = {}
        for line in text.splitlines():
            if not line or line.startswith("#"):
                continue
            key, value, *rest = line.split()
            if key.endswith("()"):
                key = key.removesuffix("()")
                self._fields[key] = Field(key, int(value), int(rest[0]))
                continue
            self._values[key] = int(value, 0)
            if rest:
                self._groups.setdefault(rest[0], {})[key] = self._values[key]

    def __getattr__(self, name: str) -> int:
        if name.startswith("__") or name in ("_values", "_fields"):
            raise AttributeError(name)
        value = self._values.get(name)
        if value is None:
            near = difflib.get_close_matches(name, [*self._values, *self._fields], n=3, cutoff=0.7)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise AttributeError(f"{self.name} has no constant {name}{hint}")
        return value

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def field(self, name: str) -> Field:
        """The bits in which the macro `name(x)` places its argument; KeyError if there is none."""
        return self._fields[name]

    def enumeration(self, tag: str) -> dict[str, int]:
        """All enumerators of one enumeration by name; KeyError if there is none of that tag."""
        return dict(self._groups[tag])

    def names(self, value: int, *, prefix: str = "", enumeration: str | None = None) -> list[str]:
        """All names of a value, to show it: those with `prefix`, or of one enumeration."""
        source = self._values if enumeration is None else self._groups[enumeration]
        return [name for name, own in source.items() if own == value and name.startswith(prefix)]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return f"<Constants {self.name}, {len(self)} names>"
