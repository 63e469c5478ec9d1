"""C structures as bytes with explicit offsets, from text tables made by the generator.

A table is text, one structure (or union) a line, sorted by name. Lines that start with `#` are
comments:

    NAME size [FIELD:type:offset[:bit:width] ...]
    NAME = OTHER                                      the same structure under a typedef's name

`type` is u8 to u64, i8 to i64, f32, f64, or `@NAME` for a structure of the same table, with one
`[count]` for each dimension of an array (a flexible array has count 0). `offset` counts bytes from
the start of the structure. A bitfield lies at bit `bit` (0 to 7) of the byte at `offset` and is
`width` bits wide. Members of unnamed structures and unions appear in the structure that holds them.
Everything is little endian. The offsets are those the compiler computed: nothing is derived here,
so neither packing nor alignment nor the host's ABI can change them.
"""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Generic, TypeVar, cast

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.malformed import DAMAGE, refuse, rows_of

_SCALARS = {
    "u8": struct.Struct("<B"),
    "u16": struct.Struct("<H"),
    "u32": struct.Struct("<I"),
    "u64": struct.Struct("<Q"),
    "i8": struct.Struct("<b"),
    "i16": struct.Struct("<h"),
    "i32": struct.Struct("<i"),
    "i64": struct.Struct("<q"),
    "f32": struct.Struct("<f"),
    "f64": struct.Struct("<d"),
}
_TYPE = re.compile(r"(@?[\w.]+)((?:\[\d+\])*)")
_COUNT = re.compile(r"\d+")
_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a structure.

    Attributes:
        name: as in the header.
        kind: a scalar's name, or the name of another layout.
        dimensions: of an array, () for a single element.
        offset: in bytes.
        layout: of a structure; None for a scalar.
        bit: the lowest bit of a bitfield.
        width: bits of a bitfield; 0 for anything else.
    """

    name: str
    kind: str
    dimensions: tuple[int, ...]
    offset: int
    layout: Layout[Struct] | None = None
    bit: int = 0
    width: int = 0

    @property
    def item_size(self) -> int:
        """Bytes of one element."""
        return _SCALARS[self.kind].size if self.layout is None else self.layout.size

    @property
    def size(self) -> int:
        """Bytes of the member with all its elements; of a bitfield, the bytes it touches."""
        if self.width:
            return (self.bit + self.width + 7) // 8
        total = self.item_size
        for count in self.dimensions:
            total *= count
        return total

    def _read_bits(self, raw: memoryview, at: int) -> int:
        word = int.from_bytes(raw[at : at + self.size], "little")
        value = (word >> self.bit) & ((1 << self.width) - 1)
        if self.kind[0] == "i" and value >> (self.width - 1):
            value -= 1 << self.width
        return value

    def _write_bits(self, raw: memoryview, at: int, value: int) -> None:
        try:
            value = index(value)
        except TypeError:
            raise BadArgument(f"{self.name} must be an int", field=self.name, value=value) from None
        signed = self.kind[0] == "i"
        low = -(1 << (self.width - 1)) if signed else 0
        if not low <= value < low + (1 << self.width):
            raise BadArgument(
                f"{self.name} must fit in {self.width} bits", field=self.name, value=value
            )
        mask = ((1 << self.width) - 1) << self.bit
        word = int.from_bytes(raw[at : at + self.size], "little")
        word = (word & ~mask) | ((value << self.bit) & mask)
        raw[at : at + self.size] = word.to_bytes(self.size, "little")

    def get(self, raw: memoryview, at: int, dimensions: tuple[int, ...]) -> Any:
        """Read the value at `at`. Any: an int or float, an Array or a Struct, by the table."""
        if dimensions:
            return Array(self, raw, at, dimensions)
        if self.layout is not None:
            return Struct(self.layout, raw[at : at + self.layout.size])
        if self.width:
            return self._read_bits(raw, at)
        return _SCALARS[self.kind].unpack_from(raw, at)[0]

    def set(self, raw: memoryview, at: int, dimensions: tuple[int, ...], value: Any) -> None:
        """Write the value at `at`. Any: what `get` returns, or a sequence for an array."""
        if raw.readonly:
            raise BadArgument("the structure's memory is read-only", field=self.name)
        if dimensions:
            Array(self, raw, at, dimensions)[:] = value
        elif self.layout is not None:
            if not isinstance(value, Struct) or value.layout is not self.layout:
                raise BadArgument(f"{self.name} must be a {self.layout.name}", field=self.name)
            raw[at : at + self.layout.size] = value.raw
        elif self.width:
            self._write_bits(raw, at, value)
        else:
            try:
                _SCALARS[self.kind].pack_into(raw, at, value)
            except (struct.error, TypeError, OverflowError):
                raise BadArgument(
                    f"{self.name} must be a {self.kind}", field=self.name, value=value
                ) from None


class Array(Sequence[Any]):
    """A view of the elements of an array member; writing an element writes the structure.

    Elements are Any for mypy: ints, floats, Structs or further Arrays, depending on the table.
    """

    __slots__ = ("_at", "_dimensions", "_member", "_raw", "_stride")

    def __init__(
        self, member: Member, raw: memoryview, at: int, dimensions: tuple[int, ...]
    ) -> None:
        self._member = member
        self._raw = raw
        self._at = at
        self._dimensions = dimensions
        self._stride = member.item_size
        for count in dimensions[1:]:
            self._stride *= count

    @property
    def raw(self) -> memoryview:
        """The bytes of all elements."""
        return self._raw[self._at : self._at + self._stride * len(self)]

    def __len__(self) -> int:
        return self._dimensions[0]

    def _place(self, position: int) -> int:
        count = len(self)
        if not -count <= position < count:
            raise IndexError(f"{self._member.name} has {count} elements, not [{position}]")
        return self._at + (position % count) * self._stride

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, slice):
            return [self[i] for i in range(*where.indices(len(self)))]
        return self._member.get(self._raw, self._place(where), self._dimensions[1:])

    def __setitem__(self, where: int | slice, value: Any) -> None:
        if not isinstance(where, slice):
            self._member.set(self._raw, self._place(where), self._dimensions[1:], value)
            return
        places = range(*where.indices(len(self)))
        values = list(value)
        if len(values) != len(places):
            raise BadArgument(
                f"{self._member.name} takes {len(places)} elements here",
                field=self._member.name,
                given=len(values),
            )
        for place, item in zip(places, values, strict=True):
            self[place] = item

    def __bytes__(self) -> bytes:
        return bytes(self.raw)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (bytes, bytearray, memoryview)):
            return self.raw == other
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


class Struct:
    """One structure in memory: members are attributes, or items if a name is computed.

    Items also reach a member that the header happens to call `raw` or `layout`.

    It does not own the bytes: writing a member writes the given buffer. An unknown member name
    raises AttributeError, a value that does not fit BadArgument; nothing is truncated silently.
    """

    __slots__ = ("layout", "raw")

    layout: Layout[Any]  # Any: a Struct does not know the stub class that describes it
    raw: memoryview

    def __init__(self, layout: Layout[Any], raw: memoryview) -> None:
        object.__setattr__(self, "layout", layout)
        object.__setattr__(self, "raw", raw)

    def __getattr__(self, name: str) -> Any:
        member = self.layout.fields.get(name)
        if member is None:
            raise AttributeError(self.layout.unknown(name))
        return member.get(self.raw, member.offset, member.dimensions)

    def __setattr__(self, name: str, value: Any) -> None:
        member = self.layout.fields.get(name)
        if member is None or name in Struct.__slots__:
            raise AttributeError(self.layout.unknown(name))
        member.set(self.raw, member.offset, member.dimensions, value)

    def __getitem__(self, name: str) -> Any:
        member = self.layout.fields[name]
        return member.get(self.raw, member.offset, member.dimensions)

    def __setitem__(self, name: str, value: Any) -> None:
        member = self.layout.fields[name]
        member.set(self.raw, member.offset, member.dimensions, value)

    def __bytes__(self) -> bytes:
        return bytes(self.raw)

    def __len__(self) -> int:
        return self.layout.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return other.layout is self.layout and other.raw == self.raw

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.layout.fields]

    def __repr__(self) -> str:
        shown = []
        for name in self.layout.fields:
            value = self[name]
            large = isinstance(value, int) and not -10 < value < 10
            shown.append(f"{name}={value:#x}" if large else f"{name}={value!r}")
        return f"{self.layout.name}({', '.join(shown)})"


StructT = TypeVar("StructT", bound=Struct)


class Layout(Generic[StructT]):
    """The size of a structure and the offsets of its members."""

    def __init__(self, name: str, size: int, fields: Mapping[str, Member]) -> None:
        self.name = name
        self.size = size
        self.fields = fields

    def new(self, **values: Any) -> StructT:
        """Make a structure of zeros with its own memory, then set `values`."""
        structure = Struct(self, memoryview(bytearray(self.size)))
        for name, value in values.items():
            setattr(structure, name, value)
        return cast(StructT, structure)

    def view(self, buffer: memoryview | bytearray | bytes, offset: int = 0) -> StructT:
        """View `buffer` from byte `offset` as this structure; BadArgument if it is too short."""
        raw = memoryview(buffer).cast("B")
        if offset < 0 or offset + self.size > len(raw):
            raise BadArgument(
                f"{self.name} needs {self.size} bytes", offset=offset, available=len(raw)
            )
        return cast(StructT, Struct(self, raw[offset : offset + self.size]))

    def unknown(self, name: str) -> str:
        """Return the message for an unknown member, with similar names."""
        near = difflib.get_close_matches(name, self.fields, n=3, cutoff=0.6)
        return f"{self.name} has no member {name}" + (f"; near: {', '.join(near)}" if near else "")

    def offset_of(self, path: str) -> int:
        """Return the byte offset of a member such as `a.b[3].c`, or of a bitfield's first byte."""
        layout: Layout[Any] | None = self
        member: Member | None = None
        dimensions: tuple[int, ...] = ()
        at = end = 0
        for step in _STEP.finditer(path):
            if step.start() != end:
                break
            end = step.end()
            if step[1] is not None:
                member = (
                    layout.fields.get(step[1]) if layout is not None and not dimensions else None
                )
                if member is None:
                    raise BadArgument(f"{self.name} has no {path}", at=path[:end])
                at, dimensions, layout = at + member.offset, member.dimensions, member.layout
            else:
                if member is None or not dimensions:
                    raise BadArgument(f"{self.name}: {path[: step.start()]} is not an array")
                stride = member.item_size
                for count in dimensions[1:]:
                    stride *= count
                if dimensions[0] and int(step[2]) >= dimensions[0]:
                    raise BadArgument(f"{self.name}: {path} is past the end", count=dimensions[0])
                at, dimensions = at + stride * int(step[2]), dimensions[1:]
        if end != len(path) or not path:
            raise BadArgument(f"{path!r} is not the path of a member of {self.name}")
        return at

    def __repr__(self) -> str:
        return f"<Layout {self.name}, {self.size} bytes, {len(self.fields)} members>"


class Layouts:
    """All structures of one table, by name: `layouts.ip_v4`, or `layouts["ip_v4"]`."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._rows = rows_of(text)

    def get(self, name: str) -> Layout[Any] | None:
        """Find a layout by name, or None."""
        parsed = self.__dict__.get(name)
        if isinstance(parsed, Layout):
            return parsed
        row = self._rows.get(name)
        if row is None:
            return None
        try:
            _, size, *members = row.split()
            layout = self[members[0]] if size == "=" else self._parse(name, int(size), members)
        except DAMAGE as error:
            refuse(self.name, name, error)
        self.__dict__[name] = layout
        return layout

    def _parse(self, name: str, size: int, texts: Sequence[str]) -> Layout[Any]:
        fields = {}
        for text in texts:
            field, kind_text, offset, *bits = text.split(":")
            match = _TYPE.fullmatch(kind_text)
            if match is None:
                raise BadArgument(f"{self.name}: {name} has a malformed member", member=text)
            kind = match[1].removeprefix("@")
            nested = self[kind] if match[1].startswith("@") else None
            dimensions = tuple(map(int, _COUNT.findall(match[2])))
            bit, width = (int(bits[0]), int(bits[1])) if bits else (0, 0)
            fields[field] = Member(field, kind, dimensions, int(offset), nested, bit, width)
        return Layout(name, size, fields)

    def __getattr__(self, name: str) -> Layout[Any]:
        if name.startswith("__") or name == "_rows":
            raise AttributeError(name)
        layout = self.get(name)
        if layout is None:
            near = difflib.get_close_matches(name, self._rows, n=3, cutoff=0.6)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise AttributeError(f"{self.name} has no structure {name}{hint}")
        return layout

    def __getitem__(self, name: str) -> Layout[Any]:
        layout = self.get(name)
        if layout is None:
            raise KeyError(f"{self.name} has no structure {name}")
        return layout

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._rows]

    def __repr__(self) -> str:
        return f"<Layouts {self.name}, {len(self)} structures>"
