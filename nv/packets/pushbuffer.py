"""Pushbuffers: methods as words, with relocations and the data they refer to.

Methods and their fields come from nv.abi by class. The encoding of a header: open-gpu-doc
clc56f.h NVC56F_DMA_*.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ugpu.hcq.work.command_buffer import CommandBuffer, Relocation, Symbol
from ugpu.nv import abi

_INCREASING = 1  # NVC56F_DMA_SEC_OP_INC_METHOD
_IMMEDIATE = 4  # NVC56F_DMA_SEC_OP_IMMD_DATA_METHOD
HOST, COMPUTE, COPY = 0, 1, 4  # subchannels: any for the host, as the driver's channels fix it
_DATA_ALIGN = 256  # of all data after the commands: descriptors and constant banks require it
_LOW = 0xFFFF_FFFF


@cache
def method(class_id: int, name: str) -> int:
    """The byte offset of a class's method."""
    return abi.methods(class_id).method(name).offset


@cache
def word(class_id: int, name: str, **fields: int | str) -> int:
    """A method's word of named fields."""
    return abi.methods(class_id).method(name).encode(**fields)


@cache
def header(subchannel: int, offset: int, count: int) -> int:
    """The header of `count` words for consecutive methods from `offset` on."""
    return _INCREASING << 29 | count << 16 | subchannel << 13 | offset >> 2


class Commands(CommandBuffer):
    """A command buffer that records which kernels it launches, to name them in a failure."""

    kernels: tuple[str, ...] = ()


class Pushbuffer:
    """An image under construction: commands, then data blocks, each at a multiple of 256 bytes."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[Relocation] = []
        self._blocks: list[tuple[bytes | bytearray, list[Relocation]]] = []
        self._block_at: list[int] = []  # offsets among the data
        self._data_size = 0
        # Command words that hold the address of a data block: (word, block, offset, shift).
        self._pointers: list[tuple[int, int, int, int]] = []
        # Words of blocks that hold the address of another block: (block, word, target, shift, add)
        self._links: list[tuple[int, int, int, int, int]] = []

    @property
    def blocks(self) -> list[bytes]:
        """The data behind the commands, before relocations."""
        return [bytes(data) for data, _ in self._blocks]

    def emit(self, subchannel: int, offset: int, *values: int) -> None:
        """Append values for consecutive methods."""
        self.words.append(header(subchannel, offset, len(values)))
        self.words += values

    def high_low(self, symbol: Symbol) -> None:
        """Append two words: the upper half of a value, then the lower."""
        self._word(symbol, 32)
        self._word(symbol, 0)

    def low_high(self, symbol: Symbol) -> None:
        """Append two words: the lower half of a value, then the upper."""
        self._word(symbol, 0)
        self._word(symbol, 32)

    def _word(self, symbol: Symbol, shift: int) -> None:
        if symbol.kind == "constant":
            self.words.append(symbol.addend >> shift & _LOW)
            return
        self.relocations.append(Relocation(len(self.words), symbol, shift=shift))
        self.words.append(0)

    def add_block(self, data: bytes | bytearray, relocations: list[Relocation]) -> int:
        """Add data after the commands; return the block's number. Relocations count its words."""
        self._blocks.append((data, relocations))
        self._block_at.append(self._data_size)
        self._data_size += -(-len(data) // _DATA_ALIGN) * _DATA_ALIGN
        return len(self._blocks) - 1

    def data(self, block: int) -> bytearray:
        """Return a block's data, to be changed in place."""
        data = self._blocks[block][0]
        assert isinstance(data, bytearray)
        return data

    def point(self, block: int, offset: int, shift: int) -> None:
        """Append a command word: the address of a place in a block, shifted right."""
        self._pointers.append((len(self.words), block, offset, shift))
        self.words.append(0)

    def link(self, block: int, at: int, target: int, shift: int, add: int = 0) -> None:
        """Set word `at` of a block to the lower half of (target's address + add) >> shift."""
        self._links.append((block, at, target, shift, add))

    def finish(self) -> Commands:
        """Return the image: commands, padding to a multiple of 256 bytes if data follows, data."""
        command_words = len(self.words)
        start = -(-command_words * 4 // _DATA_ALIGN) * _DATA_ALIGN if self._blocks else 0
        image = np.zeros((start + self._data_size) // 4 or command_words, np.uint32)
        image[:command_words] = self.words
        relocations = self.relocations
        for number, (data, own) in enumerate(self._blocks):
            first = (start + self._block_at[number]) // 4
            image[first : first + len(data) // 4] = np.frombuffer(data, np.uint32)
            relocations += [
                Relocation(first + r.word, r.symbol, r.shift, r.lsb, r.width) for r in own
            ]
        for at, block, offset, shift in self._pointers:
            place = start + self._block_at[block] + offset
            relocations.append(Relocation(at, Symbol.image(place), shift=shift))
        for block, at, target, shift, add in self._links:
            place = start + self._block_at[target] + add
            first = (start + self._block_at[block]) // 4
            relocations.append(Relocation(first + at, Symbol.image(place), shift=shift))
        return Commands(image, command_words, relocations)
