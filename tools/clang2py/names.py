"""Names of C types. C has two name spaces: a tag (`struct foo`) and a typedef (`foo`) of one name
may be two types. The tables have one, so there such a tag is written with its keyword: struct.foo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clang.cindex import Cursor, CursorKind, TranslationUnit, Type, TypeKind

from ugpu.hcq.errors import UsageError

_KEYWORDS = {
    CursorKind.STRUCT_DECL: "struct",
    CursorKind.UNION_DECL: "union",
    CursorKind.ENUM_DECL: "enum",
}
#: the compiler's own macros whose value depends on the place of their use
_PLACES = frozenset({"__LINE__", "__COUNTER__", "__INCLUDE_LEVEL__"})


class HeaderError(UsageError):
    """A header cannot be parsed, or contains something that the tables cannot express."""


def kind_of(described: Type) -> TypeKind | None:
    """Return the kind of a type; None for one that this release of libclang has no word for."""
    try:
        return described.kind
    except ValueError:  # clang's parser has more types than its bindings: _Float16
        return None


def spelling_of(described: Type) -> str:
    """Return what C calls a record or an enumeration, without qualifiers."""
    return str(described.get_declaration().type.spelling)


class TypeNames:
    """The names that the tables give to the records and enumerations of one header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: records and enumerations are in tables of their own
        self._typedefs: set[tuple[TypeKind, str]] = set()
        self._named: dict[str, Cursor] = {}

    def read(self, unit: TranslationUnit) -> None:
        """Find the typedefs that are another type than the tag of their name."""
        for cursor in unit.cursor.get_children():
            if cursor.kind != CursorKind.TYPEDEF_DECL:
                continue
            target = cursor.underlying_typedef_type.get_canonical()
            kind = kind_of(target)
            if kind not in (TypeKind.RECORD, TypeKind.ENUM):
                continue
            keyword = _KEYWORDS[target.get_declaration().kind]
            if spelling_of(target) != f"{keyword} {cursor.spelling}":
                self._typedefs.add((kind, cursor.spelling))

    def name(self, described: Type) -> str:
        """Return the name of a record or an enumeration, "" for one that has none."""
        declared = described.get_declaration()
        name = str(declared.spelling)
        if not name.isidentifier():
            return ""
        is_tag = spelling_of(described) != name
        if is_tag and (kind_of(described.get_canonical()), name) in self._typedefs:
            return f"{_KEYWORDS[declared.kind]}.{name}"
        return name

    def claim(self, name: str, described: Type) -> None:
        """Give a name to a record; HeaderError if another record has it."""
        declared = described.get_declaration().canonical
        holder = self._named.setdefault(name, declared)
        if holder != declared:
            raise HeaderError(
                f"{self._path}: two types are called {name}",
                first=str(holder.location),
                second=str(declared.location),
            )


def depends_on_place(macros: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the macros whose value depends on where they are used. macros: name -> its tokens."""
    dependent = set(_PLACES)
    while True:
        more = {name for name, body in macros.items() if not dependent.isdisjoint(body)} - dependent
        if not more:
            return dependent
        dependent |= more
