"""Replacements of captured buffers and parameters in a graph's replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.command_buffer import CommandBuffer

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer

Place = tuple[int, int, int]  # a replaceable buffer: id of its owner, address, bytes


@dataclass(frozen=True)
class Binding:
    """The positions of addresses inside one replaceable buffer.

    Attributes:
        positions: symbols, per image.
        offsets: of these symbols in the buffer, in bytes, per image.
        size: bytes of the buffer that the graph uses.
        aligned: offsets whose addresses must be multiples of a number of bytes: (offset, bytes).
    """

    positions: tuple[list[int], ...]
    offsets: tuple[list[int], ...]
    size: int
    aligned: tuple[tuple[int, int], ...] = ()

    def check(self, new: Buffer) -> None:
        """Raise BadArgument if a buffer cannot be used in its place."""
        if new.size < self.size:
            raise BadArgument(
                "the new buffer is smaller than what the graph uses", need=self.size, size=new.size
            )
        for offset, align in self.aligned:
            if (int(new.address) + offset) % align:
                raise BadArgument(
                    f"the graph needs an address that is a multiple of {align} bytes, got "
                    f"{int(new.address) + offset:#x}"
                )


def find_binding(images: Sequence[CommandBuffer], old: Buffer) -> Binding:
    """Collect the symbols whose memory lies in `old`."""
    root, low, high = old.owner or old, int(old.address), int(old.address) + old.size
    positions: list[list[int]] = []
    offsets: list[list[int]] = []
    size = found = 0
    for image in images:
        inside = []
        for position, symbol in enumerate(image.symbols):
            used = symbol.buffer
            if used is None or (used.owner or used) is not root:
                continue
            start, end = int(used.address), int(used.address) + used.size
            if end <= low or start >= high:
                continue
            if start < low or end > high:
                facts = {"slice": old, "uses": used}
                raise BadArgument("the graph uses memory outside the given slice", **facts)
            inside.append((position, start - low))
            size = max(size, end - low)
        found += len(inside)
        positions.append([position for position, _ in inside])
        offsets.append([offset for _, offset in inside])
    if not found:
        raise BadArgument("the graph does not use this buffer", buffer=old)
    aligned = {
        (int(symbol.buffer.address) - low + symbol.addend, align)
        for image in images
        for symbol, align in image.aligned
        if symbol.buffer is not None
        and (symbol.buffer.owner or symbol.buffer) is root
        and low <= int(symbol.buffer.address) < high
    }
    return Binding(tuple(positions), tuple(offsets), size, tuple(sorted(aligned)))


def bits_of(value: int | np.generic, width: int, slot: int) -> int:
    """Return the unsigned number whose `width` bytes are those of `value`."""
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize == width:
        return int.from_bytes(value.tobytes(), "little")
    if isinstance(value, int) and not isinstance(value, bool):
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width:
            return value & (1 << 8 * width) - 1
        raise BadArgument(f"parameter {slot} must fit in {width} bytes", value=value)
    raise BadArgument(
        f"parameter {slot} must be an int or a NumPy scalar of {width} bytes, got {value!r}"
    )
