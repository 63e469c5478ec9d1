"""Registers by name, with fields: maps read lazily from text tables, and maps bound to a bus.

A table is text, one register a line, sorted by name. Lines that start with `#` are comments, at
the top:

    NAME offset segment [FIELD:lsb:width ...]

`offset` is hexadecimal, in dwords within `segment`; `segment` selects one of the base addresses
that the chip's discovery table lists for the block. A line is parsed on the first use of its
register, so that loading a table of thousands of registers costs one read of a file.

    gc = RegisterBlock(load("BLOCK"), bases, bus)
    gc.CP_HQD_PQ_CONTROL.write(QUEUE_SIZE=9, RPTR_BLOCK_SIZE=5)
    while gc.CP_STAT.read().CP_BUSY: ...

Values are unsigned 32-bit. Names and fields are spelled exactly as the vendor's header spells them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Protocol

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.malformed import DAMAGE, lines_of, refuse

REGISTER_BITS = 32
_ALL_ONES = (1 << REGISTER_BITS) - 1
_MOST_BITS = 4096  # of a field's place or width in any table


class Bus(Protocol):
    """Carries register accesses; an index is absolute and counts dwords."""

    def read32(self, index: int) -> int:
        """Read the register at dword `index`."""
        ...

    def write32(self, index: int, value: int) -> None:
        """Write `value`, 0 to 2**32-1, to the register at dword `index`."""
        ...

    def current32(self, index: int) -> int:
        """Return the content of the register at dword `index`, part of which is about to change:
        read it, unless the bus has its value from an earlier access."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """A range of bits in a word.

    Attributes:
        name: as in the vendor's header.
        lsb: the lowest bit.
        width: number of bits.
    """

    name: str
    lsb: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.lsb

    @property
    def maximum(self) -> int:
        """The largest value the field holds."""
        return (1 << self.width) - 1

    def extract(self, value: int) -> int:
        """Take the field out of the word `value`."""
        return (value >> self.lsb) & ((1 << self.width) - 1)

    def insert(self, value: int, field: int) -> int:
        """Return `value` with this field set to `field`; BadArgument if it does not fit."""
        field = index(field)  # a NumPy integer would wrap around when shifted
        maximum = (1 << self.width) - 1
        if not 0 <= field <= maximum:
            raise BadArgument(
                f"field {self.name} must be 0 to {maximum:#x}", field=self.name, value=field
            )
        return (value & ~(maximum << self.lsb)) | (field << self.lsb)


class Register:
    """One register of a block: where it is and what its bits mean."""

    __slots__ = ("fields", "name", "offset", "segment")

    def __init__(self, name: str, offset: int, segment: int, fields: Iterable[Field] = ()) -> None:
        self.name = name
        self.offset = offset
        self.segment = segment
        by_name: dict[str, Field] = {}
        for field in fields:
            by_name[field.name] = field
        self.fields: Mapping[str, Field] = by_name

    @classmethod
    def parse(cls, line: str) -> Register:
        """Make a register from a line of a table."""
        name, offset, segment, *fields = line.split()
        parsed = []
        for text in fields:
            field, lsb_text, width_text = text.split(":")
            lsb, width = int(lsb_text), int(width_text)
            if not 0 <= lsb <= _MOST_BITS:
                raise ValueError(f"{lsb} is not a number of bits")
            if not 1 <= width <= _MOST_BITS:
                raise ValueError(f"{width} is not a number of bits")
            parsed.append(Field(field, lsb, width))
        return cls(name, int(offset, 16), int(segment), parsed)

    @property
    def defined(self) -> int:
        """The bits of all fields; 0 if the register has none."""
        mask = 0
        for field in self.fields.values():
            mask |= ((1 << field.width) - 1) << field.lsb
        return mask

    def field(self, name: str) -> Field:
        """Find a field; BadArgument lists the existing ones."""
        field = self.fields.get(name)
        if field is None:
            names = ", ".join(self.fields) or "none"
            raise BadArgument(
                f"{self.name} has no field {name}; it has {names}", register=self.name, field=name
            )
        return field

    def insert(self, value: int, fields: Mapping[str, int]) -> int:
        """Return `value` with `fields` set; BadArgument if one is unknown or too large."""
        value = index(value)
        if not 0 <= value <= _ALL_ONES:
            raise BadArgument(
                "a register value must fit in 32 bits", register=self.name, value=value
            )
        for name, content in fields.items():
            value = (self.fields.get(name) or self.field(name)).insert(value, content)
        return value

    def encode(self, **fields: int) -> int:
        """Return a value from fields; fields that are not given are zero."""
        return self.insert(0, fields)

    def decode(self, value: int) -> RegisterValue:
        """Return `value` as a RegisterValue with this register's fields."""
        return RegisterValue(self, value)

    def __repr__(self) -> str:
        fields = " ".join(f"{f.name}:{f.lsb}:{f.width}" for f in self.fields.values())
        return f"{self.name} {self.offset:#x} {self.segment} {fields}".rstrip()


class RegisterValue(int):
    """Value of a register: an int whose fields are attributes, or items by name."""

    register: Register

    def __new__(cls, register: Register, value: int) -> RegisterValue:
        self = super().__new__(cls, value)
        self.register = register
        return self

    def __reduce__(self) -> tuple[type[RegisterValue], tuple[Register, int]]:
        return RegisterValue, (self.register, int(self))

    def __getitem__(self, name: str) -> int:
        return self.register.field(name).extract(self)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_") or name == "register" or name not in self.register.fields:
            raise AttributeError(f"{self.register.name} has no field {name}")
        return self.register.fields[name].extract(self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.register.fields]

    def fields(self) -> dict[str, int]:
        """All fields by name, lowest bit first."""
        return {name: field.extract(self) for name, field in self.register.fields.items()}

    def replace(self, **fields: int) -> RegisterValue:
        """Return a value with `fields` changed."""
        return RegisterValue(self.register, self.register.insert(self, fields))

    def __repr__(self) -> str:
        shown = [f"{self.register.name} {int(self):#010x}"]
        for name, content in self.fields().items():
            if content:
                shown.append(f"{name}={content if content < 10 else format(content, '#x')}")
        return " ".join(shown)


class RegisterMap:
    """All registers of one block, by name, from the text of its table.

    `map.CP_STAT` and `map["CP_STAT"]` give the Register; an unknown name raises AttributeError or
    KeyError with the nearest names. Iterating gives the names. Safe to share between threads.
    """

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._names: tuple[str, ...] | None = None
        self._places: dict[str, tuple[int, int]] | None = None
        self._by_place: dict[tuple[int, int], str] | None = None
        self.name = name

    def _line(self, name: str) -> str | None:
        """Find the line of `name` by bisecting the sorted text."""
        text = self._text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            start = text.rfind("\n", low, middle) + 1 or low
            end = text.find("\n", start)
            if end < 0:
                end = len(text)
            line = text[start:end]
            here = line.partition(" ")[0]
            if here == name:
                return line
            if here < name:
                low = end + 1
            else:
                high = start
        return None

    def get(self, name: str) -> Register | None:
        """Find a register by name, or None."""
        parsed = self.__dict__.get(name)
        if isinstance(parsed, Register):
            return parsed
        line = None if not name or name.startswith("#") else self._line(name)
        if line is None:
            return None
        try:
            register = Register.parse(line)
        except DAMAGE as error:
            refuse(self.name, name, error)
        self.__dict__[name] = register
        return register

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self, n=3, cutoff=0.7)
        hint = f"; near: {', '.join(near)}" if near else ""
        return f"{self.name} has no register {name}{hint}"

    def __getattr__(self, name: str) -> Register:
        if name.startswith("_"):
            raise AttributeError(name)
        register = self.get(name)
        if register is None:
            raise AttributeError(self._unknown(name))
        return register

    def __getitem__(self, name: str) -> Register:
        register = self.get(name)
        if register is None:
            raise KeyError(self._unknown(name))
        return register

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def _all_names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple([line.partition(" ")[0] for line in lines_of(self._text)])
        return self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_names())

    def __len__(self) -> int:
        return len(self._all_names())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._all_names()]

    def __repr__(self) -> str:
        return f"<RegisterMap {self.name}, {len(self)} registers>"

    def places(self) -> Mapping[str, tuple[int, int]]:
        """Return the segment and offset of each register, without parsing their fields."""
        if self._places is None:
            places: dict[str, tuple[int, int]] = {}
            line = ""
            try:
                for line in lines_of(self._text):
                    name, offset, segment = line.split(" ", 3)[:3]
                    places[name] = int(segment), int(offset, 16)
            except DAMAGE as error:
                refuse(self.name, line.partition(" ")[0], error)
            self._places = places
        return self._places

    def place(self, name: str) -> tuple[int, int]:
        """Return the segment and offset of a register; KeyError with near names if there is
        none."""
        place = (self._places or self.places()).get(name)
        if place is None:
            raise KeyError(self._unknown(name))
        return place

    def find(self, offset: int, segment: int) -> Register | None:
        """Find the register at an offset and segment; if several share it, the first by name."""
        if self._by_place is None:
            places = [*self.places().items()]
            self._by_place = {place: name for name, place in reversed(places)}
        return self.get(self._by_place.get((segment, offset), ""))


class BoundRegister:
    """One register of a block on a bus; each method documents its number of bus accesses."""

    __slots__ = ("bus", "index", "register")

    def __init__(self, register: Register, index: int, bus: Bus) -> None:
        self.register = register
        self.index = index
        self.bus = bus

    def read(self) -> RegisterValue:
        """Read the register: exactly one bus read."""
        return RegisterValue(self.register, self.bus.read32(self.index))

    def current(self) -> RegisterValue:
        """Return the register's content: one bus read, or none (see Bus.current32)."""
        return RegisterValue(self.register, self.bus.current32(self.index))

    def write(self, value: int = 0, /, **fields: int) -> None:
        """Write `value` with `fields` inserted: one bus write; none if a field is invalid."""
        self.bus.write32(self.index, int(self.register.insert(value, fields)))

    def update(self, **fields: int) -> RegisterValue:
        """Change `fields` only: one bus read (see Bus.current32) and one write. Return what was
        written."""
        self.register.insert(0, fields)  # reject bad fields before the bus is touched
        value = self.current().replace(**fields)
        self.bus.write32(self.index, int(value))
        return value

    def __repr__(self) -> str:
        return f"<{self.register.name} at dword {self.index:#x}>"


class RegisterBlock:
    """A register map placed at a chip's addresses: `block.NAME` is a BoundRegister.

    `bases` holds the dword address of each segment, as the chip's discovery table lists them for
    this block.
    """

    def __init__(self, map: RegisterMap, bases: Sequence[int], bus: Bus) -> None:
        self.map = map
        self.bases = tuple(bases)
        self.bus = bus

    def _bind(self, register: Register) -> BoundRegister:
        if register.segment >= len(self.bases):
            raise BadArgument(
                f"{self.map.name}.{register.name} is in segment {register.segment}, the "
                f"block has {len(self.bases)} base addresses",
                register=register.name,
                segment=register.segment,
            )
        bound = BoundRegister(register, self.bases[register.segment] + register.offset, self.bus)
        self.__dict__[register.name] = bound
        return bound

    def __getattr__(self, name: str) -> BoundRegister:
        if name.startswith("_") or name == "map":
            raise AttributeError(name)
        return self._bind(getattr(self.map, name))

    def __getitem__(self, name: str) -> BoundRegister:
        bound = self.__dict__.get(name)
        return bound if isinstance(bound, BoundRegister) else self._bind(self.map[name])

    def at(self, name: str) -> BoundRegister:
        """Find a register by a computed name; KeyError with near names if there is none."""
        return self[name]

    def find(self, index: int) -> BoundRegister | None:
        """Find the register at an absolute dword index, or None."""
        for segment, base in enumerate(self.bases):
            register = self.map.find(index - base, segment)
            if register is not None:
                return self[register.name]
        return None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.map]

    def __repr__(self) -> str:
        bases = ", ".join(f"{base:#x}" for base in self.bases)
        return f"<RegisterBlock {self.map.name} at [{bases}]>"
