"""Named numbers from C headers: macros and enumerators, read from text tables made by the
generator.

A table is text, one name a line, sorted. Lines that start with `#` are comments, at the top:

    NAME value [enumeration]
    NAME() lsb width                a macro that places its argument in a word: a Field

Values are those that the C compiler computes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from ugpu.hcq.registers.fields import Field
from ugpu.hcq.registers.malformed import DAMAGE, refuse, rows_of


class Constants:
    """The named numbers of one header: `nvd.PACKET3_NOP` is an int.

    A macro with an argument, such as `WRITE_DATA_DST_SEL(x)`, is a Field: `.insert(word, x)` places
    the argument and checks it. If the header's macro does not mask its argument, the field reaches
    to the end of the word.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        # A line is parsed when its name is first used; a table may have ten thousand.
        rows = rows_of(text)
        self._placing = {key[:-2]: rows.pop(key) for key in [k for k in rows if k.endswith("()")]}
        self._rows = rows
        self._values: dict[str, int] = {}
        self._whole: dict[str, int] | None = None
        self._groups: dict[str, dict[str, int]] | None = None
        # Names by value, by the prefix and enumeration of the request.
        self._named: dict[tuple[str, str | None], dict[int, list[str]]] = {}

    def _value(self, name: str) -> int | None:
        value = self._values.get(name)
        if value is None:
            row = self._rows.get(name)
            if row is None:
                return None
            try:
                value = int(row.split(" ", 2)[1], 0)
            except DAMAGE as error:
                refuse(self.name, name, error)
            self._values[name] = value
        return value

    def values(self) -> Mapping[str, int]:
        """Return the values of all names, in the table's order; not to be changed."""
        if self._whole is None:
            values: dict[str, int] = {}
            name = ""
            try:
                for name, row in self._rows.items():
                    values[name] = int(row.split(" ", 2)[1], 0)
            except DAMAGE as error:
                refuse(self.name, name, error)
            self._whole = values
        return self._whole

    def __getattr__(self, name: str) -> int:
        if name.startswith("__") or name in ("_rows", "_placing", "_values"):
            raise AttributeError(name)
        value = self._value(name)
        if value is None:
            near = difflib.get_close_matches(name, [*self._rows, *self._placing], n=3, cutoff=0.7)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise AttributeError(f"{self.name} has no constant {name}{hint}")
        self.__dict__[name] = value  # found without this method from now on
        return value

    def __getitem__(self, name: str) -> int:
        value = self._value(name)
        if value is None:
            raise KeyError(name)
        return value

    def field(self, name: str) -> Field:
        """Return the bits in which the macro `name(x)` places its argument; KeyError if there is
        none."""
        row = self._placing[name]
        try:
            _, lsb, width = row.split()
            return Field(name, int(lsb), int(width))
        except DAMAGE as error:
            refuse(self.name, name, error)

    def fields(self) -> Iterator[Field]:
        """Return every macro that places its argument."""
        return map(self.field, self._placing)

    def enumeration(self, tag: str) -> dict[str, int]:
        """Return all enumerators of one enumeration by name; KeyError for an unknown tag."""
        if self._groups is None:
            groups: dict[str, dict[str, int]] = {}
            for name, row in self._rows.items():
                tags = row.split()[2:]
                if tags:
                    groups.setdefault(tags[0], {})[name] = self[name]
            self._groups = groups
        return dict(self._groups[tag])

    def names(self, value: int, *, prefix: str = "", enumeration: str | None = None) -> list[str]:
        """Return all names of a value, for display: those with `prefix`, or of one enumeration."""
        names = self._named.get((prefix, enumeration))
        if names is None:
            source = self._rows if enumeration is None else self.enumeration(enumeration)
            names = self._named[prefix, enumeration] = {}
            for name in source:
                if name.startswith(prefix):
                    names.setdefault(self[name], []).append(name)
        return list(names.get(value, ()))

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._placing

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._rows]

    def __repr__(self) -> str:
        return f"<Constants {self.name}, {len(self)} names>"
