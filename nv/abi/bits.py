"""Methods and descriptors as named bit fields, from text tables that the generator writes.

A table is text with one method or descriptor a line; lines that start with `#` are comments:

    NAME offset[+stride] [FIELD ...]          a method at a byte offset; an array's stride in bytes
    NAME :size [FIELD ...]                    a descriptor of `size` bytes

    FIELD is  NAME:lsb:width[+stride*count][=VALUE:number,...]     all in bits

A method's fields are in its 32-bit word; a descriptor's fields may be anywhere in the descriptor.
Names and values are spelled as in NVIDIA's header, without the prefix. Nothing is truncated: an
unknown name, an index past the end or a value that does not fit raises BadArgument.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index as whole
from typing import TypeVar

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.malformed import DAMAGE, refuse, rows_of

Raw = bytearray | memoryview
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BitField:
    """`width` bits from bit `lsb` up; element i of an array is i times `stride` bits higher."""

    name: str
    lsb: int
    width: int
    stride: int
    count: int
    values: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> BitField:
        """Parse a field from a word of a table."""
        place, _, listed = text.partition("=")
        name, lsb, rest = place.split(":")
        width, _, array = rest.partition("+")
        stride, _, count = array.partition("*")
        values: dict[str, int] = {}
        if listed:
            for pair in filter(None, listed.split(",")):
                key, _, number = pair.rpartition(":")
                values[key] = int(number, 0)
        return cls(name, int(lsb), int(width), int(stride or 0), int(count or 1), values)

    @property
    def maximum(self) -> int:
        """The largest value the field holds."""
        return (1 << self.width) - 1

    def bit(self, index: int = 0) -> int:
        """The first bit of element `index`."""
        if not 0 <= index < self.count:
            raise BadArgument(f"index of {self.name} must be below {self.count}", index=index)
        return self.lsb + index * self.stride

    def number(self, value: int | str) -> int:
        """Return a value of the field, given as a number or by a name of the header."""
        if isinstance(value, str):
            return _found(self.values, value, self.name, "value")
        number = whole(value)
        if not 0 <= number <= self.maximum:
            raise BadArgument(
                f"field {self.name} must be 0 to {self.maximum:#x}", field=self.name, value=number
            )
        return number

    def name_of(self, number: int) -> str | None:
        """The header's first name for a value, or None."""
        return next((name for name, known in self.values.items() if known == number), None)


def _found(known: Mapping[str, _T], name: str, owner: str, kind: str) -> _T:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise BadArgument(f"{owner} has no {kind} {name}{hint}")
    return known[name]


class Method:
    """One method of a class: its offset, and the fields of its word."""

    __slots__ = ("fields", "name", "offset", "stride")

    def __init__(self, name: str, offset: int, stride: int, fields: Mapping[str, BitField]) -> None:
        self.name = name
        self.offset = offset
        self.stride = stride
        self.fields = fields

    def __index__(self) -> int:
        return self.offset

    def at(self, index: int) -> int:
        """The byte offset of element `index` of an array of methods."""
        if index < 0 or (index and not self.stride):
            raise BadArgument(f"{self.name} is not an array with element [{index}]")
        return self.offset + index * self.stride

    def field(self, name: str) -> BitField:
        """Find a field; BadArgument lists similar names."""
        return _found(self.fields, name, self.name, "field")

    def encode(self, **values: int | str) -> int:
        """Build the method's word from its fields; fields not given are zero."""
        word = 0
        for name, value in values.items():
            field = self.field(name)
            word |= field.number(value) << field.lsb
        return word

    def decode(self, word: int) -> dict[str, int]:
        """Return the value of every field in a word."""
        return {name: (word >> f.lsb) & f.maximum for name, f in self.fields.items()}

    def undefined(self, word: int) -> int:
        """The bits of `word` that no field covers; without fields the whole word is one value."""
        covered = 0 if self.fields else 0xFFFF_FFFF
        for field in self.fields.values():
            covered |= field.maximum << field.lsb
        return word & ~covered

    def __repr__(self) -> str:
        return f"<Method {self.name} at {self.offset:#x}>"


class Descriptor:
    """A block of memory described by bit fields: a QMD, a page table entry, USERD."""

    __slots__ = ("fields", "name", "size")

    def __init__(self, name: str, size: int, fields: Mapping[str, BitField]) -> None:
        self.name = name
        self.size = size
        self.fields = fields

    def field(self, name: str) -> BitField:
        """Find a field; BadArgument lists similar names."""
        return _found(self.fields, name, self.name, "field")

    def new(self, **values: int | str) -> bytearray:
        """Create a descriptor of zeros, then set `values`."""
        raw = bytearray(self.size)
        for name, value in values.items():
            self.set(raw, name, value)
        return raw

    def _place(self, raw: Raw | bytes, field: BitField, index: int) -> tuple[int, int, int]:
        if len(raw) < self.size:
            raise BadArgument(f"{self.name} needs {self.size} bytes", given=len(raw))
        bit = field.bit(index)
        return bit // 8, (bit + field.width + 7) // 8, bit % 8

    def get(self, raw: Raw | bytes, name: str, index: int = 0) -> int:
        """Read a field."""
        field = self.field(name)
        first, end, shift = self._place(raw, field, index)
        return (int.from_bytes(raw[first:end], "little") >> shift) & field.maximum

    def set(self, raw: Raw, name: str, value: int | str, index: int = 0) -> None:
        """Write a field, given as a number or by the name of one of its values."""
        field = self.field(name)
        number = field.number(value)
        first, end, shift = self._place(raw, field, index)
        word = int.from_bytes(raw[first:end], "little")
        word = (word & ~(field.maximum << shift)) | (number << shift)
        raw[first:end] = word.to_bytes(end - first, "little")

    def decode(self, raw: Raw | bytes) -> dict[str, int | list[int]]:
        """Read every field; an array becomes a list."""
        found: dict[str, int | list[int]] = {}
        for name, field in self.fields.items():
            if field.stride:
                found[name] = [self.get(raw, name, i) for i in range(field.count)]
            else:
                found[name] = self.get(raw, name)
        return found

    def undefined(self, raw: Raw | bytes) -> int:
        """The set bits of `raw` that no field covers, as one large number; 0 if there are none."""
        covered = 0
        for field in self.fields.values():
            for i in range(field.count):
                covered |= field.maximum << field.bit(i)
        return int.from_bytes(bytes(raw[: self.size]), "little") & ~covered

    def __repr__(self) -> str:
        return f"<Descriptor {self.name}, {self.size} bytes, {len(self.fields)} fields>"


class BitTable:
    """All methods and descriptors of one table, by name: `table.LAUNCH_DMA`, `table["QMD"]`.

    A line is parsed when its name is first used. Safe to share between threads.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._rows = rows_of(text)
        self._parsed: dict[str, Method | Descriptor] = {}
        self._offsets: list[tuple[int, int, str]] = []

    def _entry(self, name: str) -> Method | Descriptor:
        found = self._parsed.get(name)
        if found is None:
            row = _found(self._rows, name, self.name, "entry")
            try:
                _, head, *words = row.split(" ")
                fields = {field.name: field for field in map(BitField.parse, words)}
                if head.startswith(":"):
                    found = Descriptor(name, int(head[1:]), fields)
                else:
                    offset, _, stride = head.partition("+")
                    found = Method(name, int(offset, 16), int(stride or 0), fields)
            except DAMAGE as error:
                refuse(self.name, name, error)
            self._parsed[name] = found
        return found

    def method(self, name: str) -> Method:
        """Find a method; BadArgument lists similar names."""
        found = self._entry(name)
        if not isinstance(found, Method):
            raise BadArgument(f"{self.name}: {name} is a descriptor, not a method")
        return found

    def descriptor(self, name: str) -> Descriptor:
        """Find a descriptor; BadArgument lists similar names."""
        found = self._entry(name)
        if not isinstance(found, Descriptor):
            raise BadArgument(f"{self.name}: {name} is a method, not a descriptor")
        return found

    def _places(self) -> list[tuple[int, int, str]]:
        """Return the offset, stride and name of each method."""
        places = []
        name = ""
        try:
            for name, row in self._rows.items():
                head = row.split(" ", 2)[1]
                if not head.startswith(":"):
                    offset, _, stride = head.partition("+")
                    places.append((int(offset, 16), int(stride or 0), name))
        except DAMAGE as error:
            refuse(self.name, name, error)
        return places

    def find(self, offset: int) -> tuple[Method, int] | None:
        """Return the method at a byte offset and the array element there; None if there is none.

        The headers do not give the length of an array: it extends to the next method of the class.
        """
        if not self._offsets:
            self._offsets = sorted(self._places())
        end = bisect_right(self._offsets, (offset, 1 << 32, ""))
        for start, stride, name in reversed(self._offsets[:end]):
            if start == offset:
                return self.method(name), 0
            if not stride:
                return None
            if (offset - start) % stride == 0:
                return self.method(name), (offset - start) // stride
        return None

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.method(name)
        except BadArgument as error:
            raise AttributeError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._rows]

    def __repr__(self) -> str:
        return f"<BitTable {self.name}, {len(self)} entries>"
