"""Read C headers through libclang: structures, enumerations and macros, with the compiler's own
numbers.

Nothing about layout is derived here: sizes and offsets come from the compiler, so that `#pragma
pack`, attributes and bitfields of mixed storage come out right. Members of unnamed structures are
reached through the type of the field itself, never through a table keyed by libclang's USR: two
unnamed unions in one record share a USR.

The target is always x86-64 Linux and the standard headers are our own stubs, so that the result
does not depend on the host. libclang is imported here and nowhere else; only `make regen` and the
generator's tests need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clang.cindex import (
    Cursor,
    CursorKind,
    Diagnostic,
    Index,
    TranslationUnit,
    Type,
    TypeKind,
)

from ugpu.tools.clang2py.names import HeaderError as HeaderError
from ugpu.tools.clang2py.names import TypeNames, depends_on_place, kind_of, spelling_of

STUBS = Path(__file__).parent / "stubs"
#: zero-size members that our stub of DECLARE_FLEX_ARRAY must add to be valid C
EMPTY = "ugpu_empty_"
_INPUT = "ugpu-input.c"
_ROUNDS = 8
#: a macro of two numbers and a colon: the bits of a field, high and low
_RANGE = re.compile(r"\(?(\d+):(\d+)\)?")
_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL)
_SIGNED = {
    TypeKind.CHAR_S,  # plain char: bytes of text, read as unsigned
    TypeKind.SCHAR,
    TypeKind.SHORT,
    TypeKind.INT,
    TypeKind.LONG,
    TypeKind.LONGLONG,
}
_UNSIGNED = {
    TypeKind.BOOL,
    TypeKind.CHAR_U,
    TypeKind.UCHAR,
    TypeKind.USHORT,
    TypeKind.UINT,
    TypeKind.ULONG,
    TypeKind.ULONGLONG,
    TypeKind.POINTER,
}


@dataclass(frozen=True)
class Row:
    """One structure. members: (name, type, byte offset, bit, bitfield width or 0). spelling: its
    type in C; an unnamed structure is named after the member that contains it."""

    name: str
    size: int
    members: tuple[tuple[str, str, int, int, int], ...]
    spelling: str = ""


@dataclass
class Header:
    """All definitions of one header."""

    rows: dict[str, Row] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    #: name -> (value, tag of the enumeration or "")
    constants: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: macro with one argument that places it in a word -> (lsb, width)
    placements: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: macros whose body is not an integer constant
    left_out: list[str] = field(default_factory=list)


class Reader:
    """Read one header of a source tree.

    `before` is C text that precedes the header: types that it expects, macros that choose a
    variant. With `names_only` the header's own includes are dropped, errors are tolerated, and only
    names and their numbers are read, no structures: for headers that include the kernel.
    `word_bits` bounds the fields of placing macros that do not mask their argument. With `below`,
    the definitions of every header under that folder count, not only those of this header.
    """

    def __init__(
        self,
        path: Path,
        *,
        before: str = "",
        include: Sequence[Path] = (),
        names_only: bool = False,
        word_bits: int = 32,
        below: Path | None = None,
    ) -> None:
        self.path = path
        self.below = f"{below}/" if below else ""
        self.names_only = names_only
        self.word_bits = word_bits
        self._arguments = ["--target=x86_64-linux-gnu", "-std=gnu11", "-nostdinc"]
        self._arguments += ["-Wno-everything", "-Werror=macro-redefined"]
        self._arguments += ["-ferror-limit=0", f"-I{STUBS}", *(f"-I{folder}" for folder in include)]
        self._source = f'{before}\n#include "{path}"\n'
        self._unsaved: list[tuple[str, str]] = []
        if names_only:
            text = path.read_text(encoding="utf-8", errors="replace")
            self._unsaved.append(
                (str(path), re.sub(r"^[ \t]*#[ \t]*include.*$", "", text, flags=re.M))
            )
        self._index = Index.create()
        self._header = Header()
        self._types = TypeNames(self.path)

    def read(self) -> Header:
        """Read everything; HeaderError if the header cannot be trusted."""
        unit = self._parse(self._source, detailed=True)
        errors = [d for d in unit.diagnostics if d.severity >= Diagnostic.Error]
        if errors and not self.names_only:
            raise HeaderError(f"{self.path}: {errors[0]}")
        self._types.read(unit)
        for cursor in unit.cursor.get_children():
            if self._is_ours(cursor):
                self._declaration(cursor)
        self._macros(unit)
        return self._header

    def _parse(self, text: str, *, detailed: bool = False) -> TranslationUnit:
        options = TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD if detailed else 0
        unsaved = [(_INPUT, text), *self._unsaved]
        return self._index.parse(_INPUT, self._arguments, unsaved, options)

    def _is_ours(self, cursor: Cursor) -> bool:
        if cursor.location.file is None:
            return False
        name = str(cursor.location.file.name)
        return name.startswith(self.below) if self.below else name == str(self.path)

    # Structures ------------------------------------------------------------------------------

    def _declaration(self, cursor: Cursor) -> None:
        if cursor.kind == CursorKind.ENUM_DECL:
            self._enumeration(cursor)
        elif self.names_only:
            return
        elif cursor.kind in _RECORDS:
            if cursor.is_definition() and not cursor.is_anonymous():
                self._record(cursor.type.get_canonical(), cursor.spelling)
        elif cursor.kind == CursorKind.TYPEDEF_DECL:
            target = cursor.underlying_typedef_type.get_canonical()
            if kind_of(target) == TypeKind.RECORD and target.get_size() >= 0:
                name = self._record(target, cursor.spelling)
                if name != cursor.spelling:
                    self._header.aliases[cursor.spelling] = name

    def _enumeration(self, cursor: Cursor) -> None:
        tag = self._types.name(cursor.type)
        for child in cursor.get_children():
            if child.kind == CursorKind.ENUM_CONSTANT_DECL:
                self._constant(child.spelling, child.enum_value, tag)

    def _constant(self, name: str, value: int, tag: str = "") -> None:
        earlier = self._header.constants.setdefault(name, (value, tag))
        if earlier[0] != value:
            raise HeaderError(f"{self.path}: {name} is both {earlier[0]} and {value}")

    def _record(self, record: Type, fallback: str) -> str:
        """Add a record and its nested records; return its name."""
        named = self._types.name(record)
        name = named or fallback
        self._types.claim(name, record)
        if name in self._header.rows:
            return name
        place = "" if "." in fallback else fallback
        spelling = spelling_of(record) if named else place
        self._header.rows[name] = Row(name, -1, ())  # keeps self-referential structures finite
        members = tuple(self._members(record, 0, name))
        self._header.rows[name] = Row(name, record.get_size(), members, spelling)
        return name

    def _members(
        self, record: Type, base_bits: int, owner: str
    ) -> Iterator[tuple[str, str, int, int, int]]:
        for member in record.get_fields():
            at = base_bits + member.get_field_offsetof()
            kind = member.type.get_canonical()
            holder = kind.get_declaration()
            for inner in member.get_children():
                if inner.kind == CursorKind.ENUM_DECL:
                    self._enumeration(inner)
            if kind.get_size() == 0 and member.spelling.startswith(EMPTY):
                continue
            unnamed = not member.spelling or "(" in member.spelling
            if unnamed and holder.kind in _RECORDS:
                yield from self._members(kind, at, owner)
            elif unnamed:
                continue  # an unnamed bitfield is padding
            elif member.is_bitfield():
                width = member.get_bitfield_width()
                scalar = self._type(kind, f"{owner}.{member.spelling}")
                yield member.spelling, scalar, at // 8, at % 8, width
            else:
                yield member.spelling, self._type(kind, f"{owner}.{member.spelling}"), at // 8, 0, 0

    def _type(self, kind: Type, path: str) -> str:
        """Return a member's type in the notation of the tables."""
        kind = kind.get_canonical()
        word = kind_of(kind)
        if word == TypeKind.CONSTANTARRAY:
            element = self._type(kind.get_array_element_type(), path)
            base, bracket, rest = element.partition("[")
            return f"{base}[{kind.element_count}]{bracket}{rest}"
        if word == TypeKind.INCOMPLETEARRAY:
            element = self._type(kind.get_array_element_type(), path)
            base, bracket, rest = element.partition("[")
            return f"{base}[0]{bracket}{rest}"
        if word == TypeKind.RECORD:
            return f"@{self._record(kind, path)}"
        if word == TypeKind.ENUM:
            return self._type(kind.get_declaration().enum_type, path)
        size = kind.get_size()
        if word in (TypeKind.FLOAT, TypeKind.DOUBLE):
            return f"f{size * 8}"
        if word == TypeKind.CHAR_S or word in _UNSIGNED:
            return f"u{size * 8}"
        if word in _SIGNED:
            return f"i{size * 8}"
        raise HeaderError(f"{self.path}: {path} is a {kind.spelling}")

    # Macros ----------------------------------------------------------------------------------

    def _macros(self, unit: TranslationUnit) -> None:
        plain: dict[str, str] = {}
        placing: dict[str, str] = {}
        bodies: dict[str, list[str]] = {}
        for cursor in unit.cursor.get_children():
            if cursor.kind != CursorKind.MACRO_DEFINITION or cursor.location.file is None:
                continue
            name = cursor.spelling
            tokens = [token.spelling for token in cursor.get_tokens()]
            bodies[name] = tokens[1:]
            if not self._is_ours(cursor):
                continue
            adjacent = list(cursor.get_tokens())[:2]
            call = (
                len(adjacent) == 2
                and adjacent[1].spelling == "("
                and adjacent[1].extent.start.offset == adjacent[0].extent.end.offset
            )
            if call:
                if len(tokens) > 4 and tokens[3] == ")":
                    placing[name] = name
            elif len(tokens) > 1 and (bits := _RANGE.fullmatch("".join(tokens[1:]))):
                high, low = int(bits[1]), int(bits[2])
                self._header.placements[name] = (low, high - low + 1)
            elif len(tokens) > 1:
                plain[name] = name
        wandering = depends_on_place(bodies)
        values = self._evaluate({name: f"({name})" for name in plain if name not in wandering})
        for name, value in values.items():
            self._constant(name, value)
        self._header.left_out = sorted(set(plain) - values.keys())
        self._placements({name: name for name in placing if name not in wandering})

    def _placements(self, names: Mapping[str, str]) -> None:
        """Find macros of one argument that are linear in it: they place a field in a word."""
        zero = self._evaluate({name: f"({name}(0))" for name in names})
        units = self._evaluate({name: f"({name}(1ull))" for name in zero})
        ones = self._evaluate({name: f"({name}(0xffffffffffffffffull))" for name in units})
        for name, everything in ones.items():
            if units[name] <= 0:
                continue
            lsb = units[name].bit_length() - 1
            everything &= (1 << 64) - 1
            if zero[name] != 0 or units[name] != 1 << lsb or everything & ((1 << lsb) - 1):
                continue
            # A macro without a mask reaches past the word; the field ends with the word.
            everything &= (1 << self.word_bits) - 1
            width = everything.bit_length() - lsb
            if width > 0 and everything == ((1 << width) - 1) << lsb:
                self._header.placements[name] = (lsb, width)

    def _evaluate(self, expressions: Mapping[str, str]) -> dict[str, int]:
        """Let the compiler compute integer constant expressions; drop expressions that are not.

        Each expression becomes an enumerator of type unsigned long long on a line of its own. A
        second enumerator shows whether it is negative. Lines with errors are removed and the rest
        is parsed again.
        """
        live = list(expressions)
        first_line = self._source.count("\n") + 1
        for _ in range(_ROUNDS):
            lines = []
            for i, name in enumerate(live):
                text = expressions[name]
                whole = f"_Generic({text}, float: -1, double: -1, default: 1)"
                lines.append(
                    f"enum : unsigned long long {{ ugpu_v{i} = (unsigned long long){text}, "
                    f"ugpu_n{i} = ({text} < 0), ugpu_w{i} = 1 / ({whole} > 0) }};"
                )
            unit = self._parse(self._source + "\n".join(lines) + "\n")
            bad = {
                d.location.line - first_line
                for d in unit.diagnostics
                if d.severity >= Diagnostic.Error
                and d.location.file is not None
                and d.location.file.name == _INPUT
            }
            if not bad:
                return self._collect(unit, live)
            live = [name for i, name in enumerate(live) if i not in bad]
        raise HeaderError(f"{self.path}: macros still fail after {_ROUNDS} rounds")

    @staticmethod
    def _collect(unit: TranslationUnit, live: Sequence[str]) -> dict[str, int]:
        enumerators: dict[str, int] = {}
        for cursor in unit.cursor.get_children():
            if cursor.kind == CursorKind.ENUM_DECL:
                for child in cursor.get_children():
                    enumerators[child.spelling] = child.enum_value
        values = {}
        for i, name in enumerate(live):
            value = enumerators[f"ugpu_v{i}"]
            values[name] = value - (1 << 64) if enumerators[f"ugpu_n{i}"] else value
        return values
