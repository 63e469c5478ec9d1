"""Command buffers: object files of words plus relocations.

An image of 32-bit words: its first part is executed by the hardware queue; the rest is data it
refers to (kernel arguments). Every value that is unknown when the image is made is a relocation:
where, which symbol, and how to insert it. Submitting applies the relocations, vectorised
(`CommandBuffer.patch`), and rings the doorbell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer


class Used(Protocol):
    """What a submission uses: a buffer or a program.

    Attributes:
        closed: a submission that uses it is refused.
    """

    closed: bool


class Symbol(NamedTuple):
    """A 64-bit value known at submission: base (by kind) plus addend.

    Attributes:
        kind: "constant": the addend alone. "image": the device address of the command buffer's own
            image. "buffer": the address of `buffer`. "parameter": slot number `slot` of a graph, a
            plain number. "signal": the value that this submission's timeline point `slot` gets.
        addend: added to the base.
        slot: number of the parameter or of the timeline point.
        buffer: for the kind "buffer".
    """

    kind: str
    addend: int = 0
    slot: int = 0
    buffer: Buffer | None = None

    @staticmethod
    def constant(value: int) -> Symbol:
        return Symbol("constant", addend=value)

    @staticmethod
    def image(offset: int = 0) -> Symbol:
        return Symbol("image", addend=offset)

    @staticmethod
    def of(buffer: Buffer, offset: int = 0) -> Symbol:
        return Symbol("buffer", addend=offset, buffer=buffer)

    def plus(self, offset: int) -> Symbol:
        return Symbol(self.kind, self.addend + offset, self.slot, self.buffer)


class Reference(NamedTuple):
    """Bytes [offset, offset + width) of a kernarg block take the value of a symbol.

    Attributes:
        offset: in bytes, a multiple of the width.
        width: 1, 2, 4 or 8 bytes.
        symbol: the value.
    """

    offset: int
    width: int
    symbol: Symbol

    def relocations(self, block: int) -> list[Relocation]:
        """Return the relocations that insert it into an image whose argument block starts at word
        `block`."""
        word, symbol = block + self.offset // 4, self.symbol
        if self.width == 8:
            return [Relocation(word, symbol), Relocation(word + 1, symbol, shift=32)]
        return [Relocation(word, symbol, lsb=8 * (self.offset % 4), width=8 * self.width)]


class BufferReferences(Sequence[Reference]):
    """References to the addresses of buffers, each made on access. The argument block already holds
    these addresses.

    places: offset in the block, buffer.
    """

    __slots__ = ("places",)

    def __init__(self, places: Sequence[tuple[int, Buffer]]) -> None:
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Reference: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Reference]: ...

    def __getitem__(self, index: int | slice) -> Reference | Sequence[Reference]:
        if isinstance(index, slice):
            return BufferReferences(self.places[index])
        offset, buffer = self.places[index]
        return Reference(offset, 8, Symbol("buffer", buffer=buffer))


class Relocation(NamedTuple):
    """Insert `((symbol + addend) >> shift) << lsb`, masked to `width` bits, into a word.

    Attributes:
        word: index of the word in the image.
        symbol: the value, with its addend.
        shift: bits dropped from the low end.
        lsb: the lowest bit of the field in the word.
        width: bits of the field.
    """

    word: int
    symbol: Symbol
    shift: int = 0
    lsb: int = 0
    width: int = 32


class CommandBuffer:
    """An image of 32-bit words with relocations.

    Attributes:
        words: the whole image; the first `command_words` are commands, the rest data. patch()
            writes the final image; its cost is a few vector operations, whatever the number of
            commands.
        uses: objects that must still be open when it is submitted (hcq.work.prepared).
        kernels: names of the kernels that it launches, for reports, if the driver records them.
        launches: number of kernels it runs.
        aligned: symbols whose addresses must be multiples of a number of bytes, whatever a replay
            puts there.
    """

    uses: Sequence[Used] = ()
    kernels: tuple[str, ...] = ()
    launches: int = 0
    aligned: tuple[tuple[Symbol, int], ...] = ()

    def __init__(
        self, words: NDArray[np.uint32], command_words: int, relocations: Sequence[Relocation]
    ) -> None:
        self.words = np.ascontiguousarray(words, np.uint32)
        self.command_words = command_words
        self.relocations = tuple(relocations)
        self.symbols: list[Symbol] = []  # distinct bases, addend 0; `patch` takes a value for each
        bases: dict[tuple[str, int, int], int] = {}
        places: list[tuple[int, int, int, int]] = []
        addends: list[int] = []
        masks: list[int] = []
        size, whole = len(self.words), True
        for word, symbol, shift, lsb, width in self.relocations:
            if not 0 <= word < size:
                raise BadArgument("relocation outside the image", word=word)
            kind, addend, slot, buffer = symbol
            key = (kind, slot, id(buffer))
            index = bases.get(key)
            if index is None:
                index = bases[key] = len(bases)
                self.symbols.append(Symbol(kind, 0, slot, buffer) if addend else symbol)
            places.append((word, index, shift, lsb))
            addends.append(addend & 0xFFFF_FFFF_FFFF_FFFF)
            masks.append(((1 << width) - 1) << lsb)
            whole = whole and width == 32
        # Used by `values_of`: the known values, and the positions of the others.
        self.fixed = [0] * len(self.symbols)
        self.signals: list[int] = []
        self.images: list[int] = []
        self.parameters: list[tuple[int, int]] = []  # and the slot of each
        for position, (kind, _, slot, buffer) in enumerate(self.symbols):
            if buffer is not None:
                self.fixed[position] = int(buffer.address)
            elif kind == "signal":
                self.signals.append(position)
            elif kind == "image":
                self.images.append(position)
            elif kind == "parameter":
                self.parameters.append((position, slot))
        # The usual and fast case: every relocation fills a whole word of its own.
        alone = whole and len({word for word, *_ in places}) == len(places)
        columns = np.array(places, np.int64).reshape(-1, 4)
        self._all = Part(
            columns[:, 0],
            columns[:, 1],
            np.array(addends, np.uint64),
            columns[:, 2].view(np.uint64),
            columns[:, 3].view(np.uint64),
            np.array(masks, np.uint64).astype(np.uint32),
            alone,
        )

    def patch(self, out: NDArray[np.uint32], values: NDArray[np.uint64]) -> None:
        """Write the image into `out` (len(words) words); symbol i of `symbols` has values[i]."""
        out[:] = self.words
        self._all.insert(out, values)

    def repatch(self, out: NDArray[np.uint32], values: NDArray[np.uint64]) -> None:
        """Patch as `patch` does, but `out` already holds this image: only the relocated words are
        written."""
        self._all.insert(out, values)

    def part(
        self, positions: Sequence[int], sources: Sequence[int], offsets: Sequence[int]
    ) -> Part:
        """Return a part that inserts only some symbols, each time they change. The value of symbol
        positions[i] of `symbols` is then number sources[i] of the given values, plus offsets[i]."""
        source_of = np.full(len(self.symbols), -1, np.int64)
        offset_of = np.zeros(len(self.symbols), np.uint64)
        source_of[list(positions)] = sources
        offset_of[list(positions)] = offsets
        every = self._all
        which = np.flatnonzero(source_of[every.source] >= 0)
        index = every.source[which]
        return Part(
            every.word[which],
            source_of[index],
            every.addend[which] + offset_of[index],
            every.shift[which],
            every.lsb[which],
            every.mask[which],
            every.whole_words,
        )


class Part(NamedTuple):
    """Relocations as arrays: relocation i inserts number source[i] of the values.

    Attributes:
        word: index of the word.
        source: index of the value.
        addend: added to the value.
        shift: bits dropped from the low end.
        lsb: the lowest bit of the field.
        mask: of the field's bits in the word.
        whole_words: whether each relocation fills a whole word of its own.
    """

    word: NDArray[np.int64]
    source: NDArray[np.int64]
    addend: NDArray[np.uint64]
    shift: NDArray[np.uint64]
    lsb: NDArray[np.uint64]
    mask: NDArray[np.uint32]
    whole_words: bool

    def insert(self, out: NDArray[np.uint32], values: NDArray[np.uint64]) -> None:
        """Write the words that they are in; a few vector operations, whatever their number."""
        if not len(self.word):
            return
        value = values[self.source]
        value += self.addend
        value >>= self.shift
        if self.whole_words:
            out[self.word] = value.astype(np.uint32)
            return
        inserted = (value << self.lsb).astype(np.uint32)
        np.bitwise_and.at(out, self.word, ~self.mask)
        np.bitwise_or.at(out, self.word, inserted & self.mask)


def values_of(
    encoded: CommandBuffer, signal: int, parameters: Sequence[int] | None = None
) -> NDArray[np.uint64]:
    """Return the values of a command buffer's symbols for immediate submission; `signal` marks its
    end."""
    values = encoded.fixed.copy()
    for position in encoded.signals:
        values[position] = signal
    if encoded.parameters:
        if parameters is None:
            raise BadArgument("Parameter is only allowed in a captured graph")
        for position, slot in encoded.parameters:
            values[position] = parameters[slot]
    return np.array(values, np.uint64)
