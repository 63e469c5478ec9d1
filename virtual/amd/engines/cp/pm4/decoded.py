"""Packets of indirect buffers, kept by content: a replayed buffer is fetched again each time, and
decoded again if a word has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ugpu.virtual.amd.engines.cp.pm4 import packets
from ugpu.virtual.amd.engines.cp.pm4.packets import PacketFormat

BUFFERS = 16  # indirect buffers that are kept

Handler = Callable[[Sequence[int], int, int], int]


class Entry(NamedTuple):
    """A packet type that a queue executes: its payload's least and largest number of dwords, the
    reserved bits by dword, and what executes it."""

    minimum: int
    maximum: int
    masks: tuple[tuple[int, int], ...]
    handler: Handler


def entries(
    formats: Mapping[int, PacketFormat], handlers: Mapping[int, Handler]
) -> dict[int, Entry]:
    """Return the packet types of a queue by the type and opcode of a header."""
    table = {}
    for opcode, handler in handlers.items():
        entry = formats[opcode]
        masks = tuple((at, mask) for at, mask in enumerate(entry.reserved) if mask)
        key = (packets.TYPE3 << 30) | (opcode << 8)
        table[key] = Entry(entry.minimum, entry.maximum, masks, handler)
    return table


class Decoded(NamedTuple):
    """The packets at the start of a buffer that need no further check.

    Attributes:
        steps: handlers, each with the index of its payload and the payload's length; None instead
            of a handler: the payload writes SH registers, and sets no undefined bit.
        end: index of the first word that is not decoded.
    """

    steps: tuple[tuple[Handler | None, int, int], ...]
    end: int


class Buffers:
    """The buffers that one executor has run last.

    table: see `entries`. set_sh: the handler of SET_SH_REG.
    undefined_sh: for each SH register, the bits that must be written as zero.
    """

    def __init__(
        self, table: Mapping[int, Entry], set_sh: Handler, undefined_sh: Sequence[int]
    ) -> None:
        self._table = table
        self._set_sh = set_sh
        self._undefined = undefined_sh
        self._decoded: dict[tuple[int, ...], Decoded] = {}

    def of(self, words: tuple[int, ...]) -> Decoded:
        """Return the packets of a buffer."""
        decoded = self._decoded.get(words)
        if decoded is None:
            if len(self._decoded) >= BUFFERS:
                del self._decoded[next(iter(self._decoded))]
            decoded = self._decoded[words] = self._decode(words)
        return decoded

    def _decode(self, words: tuple[int, ...]) -> Decoded:
        """Return the packets before the first one with an error or with undefined bits."""
        steps: list[tuple[Handler | None, int, int]] = []
        at, end = 0, len(words)
        while at < end:
            header = words[at]
            entry = self._table.get(header & packets.KIND)
            count = ((header >> 16) & packets.MAXIMUM_COUNT) + 1
            payload, after = at + 1, at + 1 + count
            if entry is None or header & packets.RESERVED_HEADER or after > end:
                break
            if not entry.minimum <= count <= entry.maximum:
                break
            if any(words[payload + i] & mask for i, mask in entry.masks):
                break
            registers = entry.handler == self._set_sh
            if registers and not self._defined(words[payload], words[payload + 1 : after]):
                break
            steps.append((None if registers else entry.handler, payload, count))
            at = after
        return Decoded(tuple(steps), at)

    def _defined(self, offset: int, values: Sequence[int]) -> bool:
        """Return whether all registers exist, and values set none of their undefined bits."""
        masks = self._undefined[offset : offset + len(values)]
        return len(masks) == len(values) and not any(map(int.__and__, values, masks))
