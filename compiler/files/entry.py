"""Tensors of a file as its header describes them, and the file as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from numpy.typing import NDArray

from ugpu.compiler.dtype import DType
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.tensor import Tensor

NAMES = 1 << 20  # tensors of one file
RANK = 32  # axes of one tensor
ELEMENTS = 1 << 48  # of one tensor


@dataclass(frozen=True)
class Scaled:
    """Groups of elements that share a scale: scale * (codes - zero) + least. codes: integers of 8
    bits, [n, groups, elements of a group]; scale, least: float32 [n, groups, 1]. bits: of a code;
    codes of fewer than 8 bits are unsigned."""

    scale: Tensor
    codes: Tensor
    least: Tensor | None = None
    zero: int = 0
    bits: int = 8

    def floats(self) -> Tensor:
        """Return the elements as float32, [n, groups, elements of a group], lazily."""
        codes = self.codes.cast("int8") - self.zero if self.zero else self.codes
        scaled = self.scale * codes.cast("float32")
        return scaled if self.least is None else scaled + self.least


@dataclass(frozen=True)
class Entry:
    """One tensor of a file.

    shape: the tensor's. kind: its element type in the words of the file's format. start, size: its
    bytes. stored, stored_shape: the array that these bytes are on the device. decode: makes the
    tensor from that array, lazily and on the device. host: where the bytes are packed or in another
    order: makes an array from them on the host instead. groups: makes the quantised groups of
    elements from that array, if the type has them.
    """

    name: str
    shape: Shape
    kind: str
    start: int
    size: int
    stored: DType
    stored_shape: Shape
    decode: Callable[[Tensor], Tensor] | None = None
    host: Callable[[bytes], NDArray[Any]] | None = None
    groups: Callable[[Tensor], Scaled | None] | None = None


def plain(name: str, shape: Shape, kind: str, start: int, stored: DType) -> Entry:
    """Return an entry whose bytes are the tensor's elements in row-major order."""
    return Entry(name, shape, kind, start, prod(shape) * stored.itemsize, stored, shape)


@dataclass(frozen=True)
class Content:
    """What a file's header describes. format: the format's name. entries: by name, in the file's
    order. metadata: what else it contains, in the format's own words. tree: the object that a
    checkpoint holds, with entries for its tensors; else None."""

    format: str
    entries: Mapping[str, Entry]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tree: Any = None  # nested dicts, lists and tuples


def bytes_of(shape: Shape, itemsize: int) -> int | None:
    """Return the size of an array in bytes, or None if its shape exceeds the limits."""
    if len(shape) > RANK or any(not 0 <= size <= ELEMENTS for size in shape):
        return None
    count = prod(shape)
    return count * itemsize if count <= ELEMENTS else None
