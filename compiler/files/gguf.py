"""GGUF: keys with values, and tensors, many of them quantised in blocks.

Format: magic "GGUF", version (2 or 3), number of tensors, number of keys; each key with its type
and value; each tensor with its name, dimensions (the fastest first), type and offset; padding to
`general.alignment`; the tensors' data. Big-endian files are refused.
Source: ggml-org/ggml, docs/gguf.md; type numbers and block sizes: ggml.h, ggml-quants.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, BinaryIO

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.files.blocks import BLOCKS, decoder, grouped
from ugpu.compiler.files.entry import NAMES, Content, Entry, bytes_of, plain
from ugpu.compiler.files.safetensors import bits_of
from ugpu.compiler.files.source import Source
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

MAGIC = b"GGUF"
HEAD = 512 << 20  # bytes of keys and tensors' descriptions
KEYS = 1 << 16
TEXT = 64 << 20  # bytes of one string
NAME = 1 << 10  # bytes of a name; the specification says 64 for tensors
DEPTH = 4  # nested arrays
RANK = 4  # axes of a tensor
ALIGNMENT = 32
_CHUNK = 4 << 20

_SCALARS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"),
    4: ("uint32", "I"), 5: ("int32", "i"), 6: ("float32", "f"), 7: ("bool", "B"),
    10: ("uint64", "Q"), 11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
PLAIN = {
    0: ("F32", dtypes.float32), 1: ("F16", dtypes.float16), 24: ("I8", dtypes.int8),
    25: ("I16", dtypes.int16), 26: ("I32", dtypes.int32), 27: ("I64", dtypes.int64),
    28: ("F64", dtypes.float64), 30: ("BF16", dtypes.bfloat16),
}  # fmt: skip


class _Reader:
    """The head of a file, read from the start to the end in chunks."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.limit = min(source.size, HEAD)
        self._data = b""
        self._base = 0  # the place of the data in the file
        self._at = 0  # in the data

    @property
    def position(self) -> int:
        return self._base + self._at

    def take(self, size: int, what: str) -> int:
        """Make `size` bytes available and return their place in `data`."""
        if self.position + size > self.limit:
            self.source.refuse(
                f"{what}: expected {size} bytes at byte {self.position}, the file has "
                f"{self.source.size} bytes"
            )
        if self._at + size > len(self._data):
            start = self.position
            wanted = min(max(size, _CHUNK), self.limit - start)
            self._data = self.source.read(start, wanted, what)
            self._base, self._at = start, 0
        place = self._at
        self._at += size
        return place

    def number(self, code: str, what: str) -> Any:  # int or float, by code
        size = struct.calcsize("<" + code)
        place = self.take(size, what)
        return struct.unpack_from("<" + code, self._data, place)[0]

    def text(self, what: str, limit: int = TEXT) -> str:
        size = self.number("Q", what)
        if size > limit:
            self.source.refuse(f"{what}: expected at most {limit} bytes of text, got {size}")
        place = self.take(size, what)
        try:
            return self._data[place : place + size].decode("utf-8")
        except UnicodeDecodeError as error:
            self.source.refuse(f"{what} is not UTF-8: {error.reason}")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:  # of the format's types
        if kind == _TEXT:
            return self.text(what)
        if kind == _ARRAY:
            return self._array(what, depth)
        if kind not in _SCALARS:
            self.source.refuse(f"{what}: unknown type {kind}")
        number = self.number(_SCALARS[kind][1], what)
        if kind == 7 and number > 1:
            self.source.refuse(f"{what}: a bool must be 0 or 1, got {number}")
        return bool(number) if kind == 7 else number

    def _array(self, what: str, depth: int) -> Any:
        kind, count = self.number("I", what), self.number("Q", what)
        if depth >= DEPTH:
            self.source.refuse(f"{what}: expected at most {DEPTH} nested arrays")
        if kind in _SCALARS:
            code = _SCALARS[kind][1]
            size = count * struct.calcsize("<" + code)
            place = self.take(size, what)
            numbers = np.frombuffer(self._data, "<" + code, count, place).copy()
            return numbers.astype(np.bool_) if kind == 7 else numbers
        if count * (8 if kind == _TEXT else 12) > self.limit - self.position:
            self.source.refuse(f"{what}: {count} elements do not fit the file")
        return [self.value(kind, what, depth + 1) for _ in range(count)]


def read(source: Source) -> Content:
    """Return a file's keys (as metadata) and its tensors. BadFile if it is invalid."""
    head = _Reader(source)
    place = source.read(0, 4, "magic")
    head.take(4, "magic")
    version = head.number("I", "version")
    if place != MAGIC or version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        endian = " (a big-endian file)" if swapped in (2, 3) else ""
        source.refuse(f"expected GGUF of version 2 or 3, got version {version}{endian}")
    tensors = head.number("Q", "number of tensors")
    keys = head.number("Q", "number of keys")
    if tensors > NAMES or keys > KEYS:
        source.refuse(f"expected at most {NAMES} tensors and {KEYS} keys, got {tensors}, {keys}")
    metadata: dict[str, Any] = {}  # values of the format's types
    for _ in range(keys):
        name = head.text("name of a key", NAME)
        if name in metadata:
            source.refuse(f"key {name!r} occurs twice")
        metadata[name] = head.value(head.number("I", f"key {name!r}"), f"key {name!r}")
    align = metadata.get("general.alignment", ALIGNMENT)
    if type(align) is not int or not 0 < align <= 1 << 20 or align & (align - 1):
        source.refuse(f"general.alignment must be a power of two, got {align!r:.80}")
    described = [_description(head) for _ in range(tensors)]
    base = -(-head.position // align) * align
    entries: dict[str, Entry] = {}
    for name, dims, kind, offset in described:
        if name in entries:
            source.refuse(f"tensor {name!r} occurs twice")
        if offset % align:
            source.refuse(f"tensor {name!r}: offset {offset} is not a multiple of {align}")
        entries[name] = _entry(source, name, tuple(reversed(dims)), kind, base + offset)
    _check_apart(source, entries)
    return Content("GGUF", entries, metadata)


def _description(head: _Reader) -> tuple[str, list[int], int, int]:
    name = head.text("name of a tensor", NAME)
    what = f"tensor {name!r}"
    rank = head.number("I", what)
    if rank > RANK:
        head.source.refuse(f"{what}: expected at most {RANK} dimensions, got {rank}")
    dims = [head.number("Q", what) for _ in range(rank)]
    return name, dims, head.number("I", what), head.number("Q", what)


def _entry(source: Source, name: str, shape: tuple[int, ...], kind: int, start: int) -> Entry:
    def checked(itemsize: int, shape: tuple[int, ...]) -> int:
        size = bytes_of(shape, itemsize)
        if size is None or start + size > source.size:
            source.refuse(
                f"tensor {name!r}: shape {list(shape)} at byte {start} does not fit the file, "
                f"which has {source.size} bytes"
            )
        return size

    if kind in PLAIN:
        word, dtype = PLAIN[kind]
        checked(dtype.itemsize, shape)
        return plain(name, shape, word, start, dtype)
    block = BLOCKS.get(kind)
    if block is None:
        source.refuse(f"tensor {name!r}: unknown type {kind}")
    if not shape or shape[-1] % block.elements:
        source.refuse(
            f"tensor {name!r}: a row of {block.name} must be a multiple of {block.elements} "
            f"elements, got shape {list(shape)}"
        )
    if bytes_of(shape, 1) is None:
        source.refuse(f"tensor {name!r}: shape {list(shape)} is too large")
    count = prod(shape) // block.elements
    size = checked(block.bytes, (count,))
    return Entry(
        name, shape, block.name, start, size, dtypes.uint8, (count, block.bytes),
        decoder(block, shape), groups=partial(grouped, block),
    )  # fmt: skip


def _check_apart(source: Source, entries: Mapping[str, Entry]) -> None:
    """Refuse tensors that share bytes."""
    end, before = 0, ""
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.size)):
        if entry.size and entry.start < end:
            source.refuse(f"tensors {before!r} and {entry.name!r} overlap")
        if entry.size:
            end, before = entry.start + entry.size, entry.name


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors, unquantised, and keys. Values of keys: bool, int, float, str, and lists and
    arrays of one of these. BadArgument for others, and for types that the format does not have."""
    kinds = {dtype.name: kind for kind, (_, dtype) in PLAIN.items()}
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(key, value)]
    offset = 0
    for name, tensor in tensors.items():
        kind = kinds.get(tensor.dtype.name)
        if kind is None or tensor.ndim > RANK:
            raise BadArgument(
                f"save: GGUF has no tensors of {tensor.dtype.name}{list(tensor.shape)} ({name!r}); "
                f"expected at most {RANK} axes of {', '.join(kinds)}"
            )
        dims = tuple(reversed(tensor.shape))
        parts += [_text(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
        offset += _padded(tensor.numel() * tensor.dtype.itemsize)
    head = b"".join(parts)
    file.write(head + bytes(_padded(len(head)) - len(head)))
    for tensor in tensors.values():
        data = bits_of(tensor)
        file.write(data)
        file.write(bytes(_padded(len(data)) - len(data)))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


_KINDS = {name: (kind, code) for kind, (name, code) in _SCALARS.items()}


def _value(key: str, value: Any) -> bytes:  # checked here
    if isinstance(value, str):
        return struct.pack("<I", _TEXT) + _text(value)
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        head = struct.pack("<IIQ", _ARRAY, _TEXT, len(value))
        return head + b"".join(map(_text, value))
    array = np.asarray(value)
    if type(value) is int:
        array = array.astype(np.uint32 if 0 <= value < 1 << 32 else np.int64)
    if type(value) is float:
        array = array.astype(np.float32)
    if array.dtype.name not in _KINDS or array.ndim > 1:
        raise BadArgument(f"save: key {key!r} cannot hold {value!r:.80}")
    kind, _ = _KINDS[array.dtype.name]
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.ndim:
        return struct.pack("<IIQ", _ARRAY, kind, array.size) + data
    return struct.pack("<I", kind) + data
