"""Command images under construction: words, relocations, and the data behind the commands."""

from __future__ import annotations

import numpy as np

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command_buffer import CommandBuffer, Reference, Relocation, Symbol

DATA_ALIGN = 64  # bytes; kernel arguments and dispatch packets start at cache lines


class Assembler:
    """Collects one image. Data blocks follow the commands, each aligned to DATA_ALIGN."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.relocations: list[Relocation] = []
        self._data = bytearray()
        self._data_relocations: list[Relocation] = []  # words count from the start of the data
        self._data_uses: list[tuple[int, int, int]] = []  # command word, offset in data, shift

    def emit(self, *words: int) -> None:
        self.words.extend(words)

    def low(self, symbol: Symbol) -> None:
        """Append a word that gets the symbol's low 32 bits."""
        self._half(symbol, 0)

    def high(self, symbol: Symbol) -> None:
        self._half(symbol, 32)

    def pair(self, symbol: Symbol) -> None:
        """Append a symbol's low word, then its high word."""
        self._half(symbol, 0)
        self._half(symbol, 32)

    def _half(self, symbol: Symbol, shift: int) -> None:
        if symbol.kind == "constant":
            self.words.append(symbol.addend >> shift & 0xFFFF_FFFF)
            return
        self.relocations.append(Relocation(len(self.words), symbol, shift=shift))
        self.words.append(0)

    def add_data(self, block: bytes) -> int:
        """Add a data block; returns its offset, for `data_address` and `data_symbol`."""
        self._data += bytes(-len(self._data) % DATA_ALIGN)
        offset = len(self._data)
        self._data += block + bytes(-len(block) % 4)
        return offset

    def data_symbol(self, offset: int, symbol: Symbol, width: int) -> None:
        """Set bytes [offset, offset+width) of the data to the value of `symbol`."""
        if width not in (1, 2, 4, 8) or offset % min(width, 4):
            raise BadArgument(
                "a patched argument must have 1, 2, 4 or 8 bytes and be aligned to its size",
                offset=offset,
                width=width,
            )
        self._data_relocations += Reference(offset, width, symbol).relocations(0)

    def data_address(self, offset: int) -> None:
        """Append the device address of a data block as a pair."""
        for shift in (0, 32):
            self._data_uses.append((len(self.words), offset, shift))
            self.words.append(0)

    def data_points_to(self, offset: int, target: int) -> None:
        """Set eight bytes of data at `offset` to the device address of the data block `target`."""
        self._data_relocations += Reference(offset, 8, Symbol("data", addend=target)).relocations(0)

    def finish(self, *, align_words: int, filler: int) -> CommandBuffer:
        """Close the image: commands padded with `filler` to a multiple of `align_words`."""
        while len(self.words) % align_words:
            self.words.append(filler)
        command_words = len(self.words)
        if not self._data:
            words = np.array(self.words, np.uint32)
            return CommandBuffer(words, command_words, self.relocations)
        base = -(-command_words * 4 // DATA_ALIGN) * DATA_ALIGN
        words = np.zeros(base // 4 + len(self._data) // 4, np.uint32)
        words[:command_words] = self.words
        words[base // 4 :] = np.frombuffer(self._data, np.uint32)
        relocations = list(self.relocations)
        for word, offset, shift in self._data_uses:
            relocations.append(Relocation(word, Symbol.image(base + offset), shift=shift))
        for part in self._data_relocations:
            symbol = part.symbol
            if symbol.kind == "data":
                symbol = Symbol.image(base + symbol.addend)
            relocations.append(part._replace(word=base // 4 + part.word, symbol=symbol))
        return CommandBuffer(words, command_words, relocations)
