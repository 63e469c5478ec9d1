"""Command streams of Adreno's command processor: packets of type 4 and 7, with relocations.

Type 4 writes consecutive registers, type 7 is an operation. Odd parity guards bits of both headers
(Mesa 25.0.7 src/freedreno/common/freedreno_pm4.h). Names of registers, fields and opcodes are those
of qcom.regs; a generation's table determines which of them it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.work.command_buffer import Reference, Relocation, Symbol
from ugpu.qcom.regs import constants, load

_TYPE4, _TYPE7 = 4 << 28, 7 << 28
MOST_REGISTERS = 0x7F  # of a type 4 packet
MOST_WORDS = 0x3FFF  # of a type 7 packet
DATA_ALIGN = 16  # words: data that shaders and descriptors fetch is aligned to 64 bytes


def odd_parity(value: int) -> int:
    """Return the bit that makes the number of ones in `value` plus itself odd."""
    return ~value.bit_count() & 1


def type4(register: int, count: int) -> int:
    """Return the header of a write to `count` registers from `register` on."""
    return _TYPE4 | count | odd_parity(count) << 7 | register << 8 | odd_parity(register) << 27


def type7(opcode: int, count: int) -> int:
    """Return the header of an operation with `count` words."""
    return _TYPE7 | count | odd_parity(count) << 15 | opcode << 16 | odd_parity(opcode) << 23


@dataclass(frozen=True)
class Tables:
    """The names of one generation. number: 6 or 7."""

    number: int
    registers: RegisterMap
    packets: RegisterMap
    codes: Constants

    @staticmethod
    def of(generation: int) -> Tables:
        stem = f"a{generation}xx"
        return Tables(generation, load(stem), load(f"{stem}_packets"), constants(stem))

    def packet_word(self, name: str, **fields: int) -> int:
        """Return a word of a packet from its fields, as in CP_LOAD_STATE6_0."""
        return self.packets[name].encode(**fields)


@dataclass(frozen=True)
class Half:
    """One half of an address that is known at submission."""

    symbol: Symbol
    shift: int


def halves(symbol: Symbol) -> tuple[Half, Half]:
    """Return an address as packets take it, the low word first."""
    return Half(symbol, 0), Half(symbol, 32)


Word = int | Half


class Stream:
    """Words of commands, followed by the data that they refer to.

    Addresses in the data are relative until `finish`: `data` returns a block number, and `place` is
    a symbol for that block's address.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.words: list[int] = []
        self.relocations: list[Relocation] = []
        self.aligned: list[tuple[Symbol, int]] = []  # see CommandBuffer
        self._blocks: list[tuple[list[int], list[Relocation]]] = []
        self._places: list[tuple[int, int, int, int]] = []  # word, block, offset, shift

    def __len__(self) -> int:
        return len(self.words)

    def _put(self, words: Sequence[Word]) -> None:
        for word in words:
            if isinstance(word, Half):
                if word.symbol.kind == "block":
                    place = (len(self.words), word.symbol.slot, word.symbol.addend, word.shift)
                    self._places.append(place)
                else:
                    at = len(self.words)
                    self.relocations.append(Relocation(at, word.symbol, shift=word.shift))
                self.words.append(0)
            else:
                self.words.append(word)

    def write(self, name: str, *words: Word, **fields: int) -> None:
        """Write registers from `name` on: one with `fields`, or one for each word."""
        register = self.tables.registers[name]
        values: Sequence[Word] = words or (register.encode(**fields),)
        self.words.append(type4(register.offset, len(values)))
        self._put(values)

    def write_address(self, name: str, symbol: Symbol) -> None:
        """Write a pair of registers, NAME_LO and NAME_HI."""
        self.write(f"{name}_LO", *halves(symbol))

    def packet(self, name: str, *words: Word) -> None:
        """Append an operation and its words."""
        self.words.append(type7(self.tables.codes[name], len(words)))
        self._put(words)

    def insert(self, words: Sequence[int], references: Sequence[Reference]) -> None:
        """Append words, some bytes of which are not yet known."""
        start = len(self.words)
        self.words.extend(words)
        for reference in references:
            self.relocations.extend(reference.relocations(start))

    def data(
        self,
        words: Sequence[int],
        symbols: Sequence[tuple[int, Symbol]] = (),
        relocations: Sequence[Relocation] = (),
    ) -> int:
        """Add a block of data and return its number. symbols: 64-bit values at their words;
        relocations count words from the block's first."""
        relocations = list(relocations)
        for at, symbol in symbols:
            relocations.append(Relocation(at, symbol))
            relocations.append(Relocation(at + 1, symbol, shift=32))
        self._blocks.append((list(words), relocations))
        return len(self._blocks) - 1

    @staticmethod
    def place(block: int, offset: int = 0) -> Symbol:
        """Return a symbol for the address of a block, plus `offset` bytes; valid only in this
        stream."""
        return Symbol("block", addend=offset, slot=block)

    def finish(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint32]], list[Relocation],
                              list[int]]:  # fmt: skip
        """Return the image's words, its relocations, and the word at which each block starts."""
        words, relocations, starts = list(self.words), list(self.relocations), []
        for block, own in self._blocks:
            words.extend([0] * (-len(words) % DATA_ALIGN))
            starts.append(len(words))
            for relocation in own:
                relocations.append(relocation._replace(word=starts[-1] + relocation.word))
            words.extend(block)
        for at, block_number, offset, shift in self._places:
            symbol = Symbol.image(4 * starts[block_number] + offset)
            relocations.append(Relocation(at, symbol, shift=shift))
        return np.array(words, np.uint32), relocations, starts
