"""The chip's register space: dwords that act as latches unless a block installs a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from operator import itemgetter

from ugpu.hcq.registers.fields import Register, RegisterMap
from ugpu.virtual.amd.objections import Level, Objections

ALL_ONES = 0xFFFF_FFFF
Reader = Callable[[], int]
Writer = Callable[[int], None]
_Blocks = tuple[tuple[str, RegisterMap, tuple[int, ...]], ...]


class _Places:
    """Where the registers of some blocks are: the same for all chips with the same tables."""

    def __init__(self, blocks: _Blocks) -> None:
        self.blocks = {name: (table, bases) for name, table, bases in blocks}
        self._indices: dict[tuple[str, str], int] = {}
        self._names: dict[int, tuple[str, str]] = {}  # of several names of a place, one in use
        self._prefixed: dict[tuple[str, str], dict[int, int]] = {}

    @staticmethod
    @cache
    def of(blocks: _Blocks) -> _Places:
        """Return the places of these blocks, found so far by all chips."""
        return _Places(blocks)

    def index(self, block: str, name: str) -> int:
        """Return the absolute dword index of a register; KeyError for an unknown name."""
        found = self._indices.get((block, name))
        if found is None:
            table, bases = self.blocks[block]
            segment, offset = table.place(name)
            found = bases[segment] + offset
            self._indices[block, name] = found
            self._names.setdefault(found, (block, name))
        return found

    def zeros(self, block: str, prefix: str) -> Mapping[int, int]:
        """Return a zero for the index of each register whose name begins with `prefix`."""
        zeros = self._prefixed.get((block, prefix))
        if zeros is None:
            table, bases = self.blocks[block]
            zeros = {}
            for name, (segment, offset) in table.places().items():
                if name.startswith(prefix):
                    index = bases[segment] + offset
                    zeros[index] = 0
                    self._names.setdefault(index, (block, name))
            self._prefixed[block, prefix] = zeros
        return zeros

    def owner(self, index: int) -> tuple[str, str] | None:
        """Return the names of the block and the register at an index, or None."""
        return self._names.get(index) or self._first.get(index)

    @cached_property
    def _first(self) -> dict[int, tuple[str, str]]:
        """The first names of each place, by block, segment and name."""
        first: dict[int, tuple[str, str]] = {}
        for block, (table, bases) in self.blocks.items():
            for name, (segment, offset) in sorted(table.places().items(), key=itemgetter(1)):
                if segment < len(bases):
                    first.setdefault(bases[segment] + offset, (block, name))
        return first


class RegisterSpace:
    """Absolute dword index -> register, over the tables of all blocks.

    A write latches the value and then calls the block's handler, which may latch another value with
    `poke`. A read returns the handler's value if there is a handler, else the latch. The caller
    holds the chip's lock.
    Objections: a write to a block that is not up is lost (fault). An index that no header names
    reads zero (violation: Linux's driver reads some). Ones written to undefined bits are kept
    (note: the vendor's own constants contain them). A block without power reads as all ones, and
    writes to it are lost (violation).
    """

    def __init__(
        self,
        blocks: Mapping[str, tuple[RegisterMap, Sequence[int]]],
        objections: Objections,
    ) -> None:
        self._places = _Places.of(
            tuple((name, table, tuple(bases)) for name, (table, bases) in blocks.items())
        )
        self._objections = objections
        self._values: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}
        self._writers: dict[int, Writer] = {}
        self._undefined: dict[int, int] = {}
        self._read_only: set[int] = set()
        self.closed: set[str] = set()  # blocks that are not up: writes are lost
        self.unpowered: set[str] = set()  # blocks without power: writes are lost, reads give ones

    # ---- naming -------------------------------------------------------------------------------

    def index(self, block: str, name: str) -> int:
        """Return the absolute dword index of a register; KeyError for an unknown name."""
        return self._places.index(block, name)

    def has(self, block: str, name: str) -> bool:
        """Return whether a block has a register of this name."""
        return name in self._places.blocks[block][0]

    def register(self, block: str, name: str) -> Register:
        """Return the register's description."""
        return self._places.blocks[block][0][name]

    def owner(self, index: int) -> tuple[str, str] | None:
        """Return the names of the block and the register at an index, or None."""
        return self._places.owner(index)

    # ---- behaviour ----------------------------------------------------------------------------

    def on_read(self, block: str, name: str, reader: Reader) -> None:
        """Let `reader` answer reads of a register."""
        self._readers[self._places.index(block, name)] = reader

    def on_write(self, block: str, name: str, writer: Writer) -> None:
        """Call `writer` with each value written, after it was latched."""
        self._writers[self._places.index(block, name)] = writer

    def on_write_at(self, index: int, writer: Writer | None) -> None:
        """Set or remove the write handler of an index that no table names."""
        if writer is None:
            self._writers.pop(index, None)
            self._values.pop(index, None)
        else:
            self._writers[index] = writer
            self._values[index] = 0
            self._undefined[index] = 0

    def on_read_at(self, index: int, reader: Reader) -> None:
        """Let `reader` answer reads of an index that no table names; writes to it are dropped."""
        self._readers[index] = reader
        self._read_only.add(index)
        self._undefined[index] = 0

    def read_only(self, block: str, name: str) -> None:
        """Drop the driver's writes to a register."""
        self._read_only.add(self.index(block, name))

    def peek(self, index: int) -> int:
        """Read the latch without calling the read handler."""
        return self._values.get(index, 0)

    def poke(self, index: int, value: int) -> None:
        """Set the latch without calling the write handler."""
        self._values[index] = value & ALL_ONES

    def clear_prefixed(self, block: str, prefix: str) -> None:
        """Set all latches of a block whose names begin with `prefix` to zero."""
        self._values.update(self._places.zeros(block, prefix))

    def clear(self, block: str) -> None:
        """Set all latches of a block to zero."""
        for index in list(self._values):
            owner = self._places.owner(index)
            if owner is not None and owner[0] == block:
                self._values[index] = 0

    # ---- access by the driver -----------------------------------------------------------------

    def read(self, index: int) -> int:
        """Read one register over the bus."""
        if self.unpowered and self._is_dead(index, "read"):
            return ALL_ONES
        reader = self._readers.get(index)
        if reader is not None:
            return reader() & ALL_ONES
        value = self._values.get(index)
        return self._touch(index, "read") if value is None else value

    def write(self, index: int, value: int) -> None:
        """Write one register over the bus."""
        if self.unpowered and self._is_dead(index, f"written with {value:#x}"):
            return
        undefined = self._undefined.get(index)
        if undefined is None:
            self._touch(index, "written")
            undefined = self._undefined[index]
        if value & undefined:
            self._note(index, value & undefined)
        if self.closed or self._read_only:
            if index in self._read_only:
                return
            owner = self._places.owner(index)
            if owner is not None and owner[0] in self.closed:
                text = f"{owner[1]} written with {value:#x} before {owner[0]} is up"
                self._objections.record(Level.FAULT, text)
                return
        self._values[index] = value
        writer = self._writers.get(index)
        if writer is not None:
            writer(value)

    def _is_dead(self, index: int, how: str) -> bool:
        """Return whether an access goes to a block without power, and record it if so."""
        owner = self.owner(index)
        if owner is None or owner[0] not in self.unpowered:
            return False
        text = f"{owner[1]} {how} while {owner[0]} has no power (GFXOFF)"
        # Linux 6.12 does this when its driver is unloaded: see virtual.amd.firmware.gfxoff
        self._objections.record(Level.VIOLATION, text)
        return True

    def _touch(self, index: int, how: str) -> int:
        """Look up the owner and the defined bits of a register at its first access."""
        owner = self._places.owner(index)
        if owner is None:
            text = f"register {index:#x} {how}: no block has one there"
            self._objections.record(Level.VIOLATION, text)
            self._undefined[index] = 0
            return 0
        block, name = owner
        defined = self._places.blocks[block][0][name].defined
        self._undefined[index] = ALL_ONES & ~defined if defined else 0
        return self._values.setdefault(index, 0)

    def _note(self, index: int, bits: int) -> None:
        owner = self.owner(index)
        name = owner[1] if owner is not None else f"{index:#x}"
        text = f"{name}: undefined bits {bits:#x} written as ones"
        self._objections.record(Level.NOTE, text)
