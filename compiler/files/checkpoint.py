"""PyTorch checkpoints: the zip format of torch.save, and the format before PyTorch 1.6.

Zip: `NAME/data.pkl`, the pickled object, and `NAME/data/KEY` for each storage, stored and not
compressed. Before: five pickles (magic, protocol, system, object, keys of storages), then for each
key its number of elements and the elements.
Source: pytorch/pytorch, torch/serialization.py and caffe2/serialize/inline_container.h.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.files.entry import NAMES, Content, Entry, bytes_of
from ugpu.compiler.files.members import Member, content
from ugpu.compiler.files.pickles import Name, Storage, View, unpickle
from ugpu.compiler.files.source import Source
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported

PICKLE = 256 << 20  # bytes
DEPTH = 100  # nested containers
LEGACY = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # the magic number, pickled
PROTOCOL = 1001

_NAMES = {
    "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Double": "float64",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_WIDTH = {"complex64": 8, "complex128": 16}


def _itemsize(kind: str) -> int | None:
    dtype = _own(kind)
    return dtype.itemsize if dtype else _WIDTH.get(kind, 1 if kind.startswith("float8") else None)


def _own(kind: str) -> DType | None:
    return next((dtype for dtype in dtypes.ALL if dtype.name == kind), None)


def _kind(storage: Storage, view: View | None = None) -> str:
    """Return the name of an element type."""
    if view is not None and view.dtype is not None:
        return view.dtype.removeprefix("torch.")
    word = storage.kind.removeprefix("torch.").removesuffix("Storage")
    return "uint8" if storage.kind == "torch.storage.UntypedStorage" else _NAMES.get(word, word)


def is_legacy(head: bytes) -> bool:
    """Return whether a file begins as a checkpoint did before PyTorch 1.6."""
    return head[:1] == b"\x80" and head[2 : 2 + len(LEGACY)] == LEGACY


def read_zip(source: Source, members: Mapping[str, Member]) -> Content:
    """Return the object of a checkpoint in the zip format. BadFile if it is invalid."""
    pickled = [name for name in members if name.endswith("/data.pkl")]
    if len(pickled) != 1:
        source.refuse(f"expected one member data.pkl, got {len(pickled)}")
    folder = pickled[0].removesuffix("data.pkl")
    order = members.get(f"{folder}byteorder")
    if order is not None and content(source, order, 16) != b"little":
        raise NotSupported(f"{source.path.name}: a checkpoint in big-endian order")
    member = members[pickled[0]]
    if member.size > PICKLE:
        source.refuse(f"data.pkl must have at most {PICKLE} bytes, got {member.size}")
    tree = unpickle(io.BytesIO(content(source, member)), source.refuse)

    def place(storage: Storage) -> tuple[int, int]:
        data = members.get(f"{folder}data/{storage.key}")
        if data is None or data.packed is not None:
            source.refuse(f"storage {storage.key!r} is missing or compressed")
        return data.start, data.size

    return _content(source, tree, place)


def read_legacy(source: Source) -> Content:
    """Return the object of a checkpoint in the format before PyTorch 1.6."""
    storages: dict[str, str] = {}
    with source.stream() as stream:
        unpickle(stream, source.refuse)
        if unpickle(stream, source.refuse) != PROTOCOL:
            source.refuse(f"expected protocol {PROTOCOL} of torch.save")
        system = unpickle(stream, source.refuse)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise NotSupported(f"{source.path.name}: a checkpoint in big-endian order")
        tree = unpickle(stream, source.refuse)
        keys = unpickle(stream, source.refuse)
        position = stream.tell()
    _walk(
        source,
        tree,
        "",
        lambda name, view: storages.update({view.storage.key: _kind(view.storage)}),
    )
    if not isinstance(keys, list) or len(keys) > NAMES:
        source.refuse("expected a list of storage keys")
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        count = int.from_bytes(source.read(position, 8, f"storage {key!r}"), "little")
        width = _itemsize(storages.get(key, ""))
        if width is None or count > source.size:
            source.refuse(f"storage {key!r} of {count} elements of {storages.get(key)}")
        places[key] = (position + 8, count * width)
        position += 8 + count * width

    def place(storage: Storage) -> tuple[int, int]:
        if storage.key not in places:
            source.refuse(f"storage {storage.key!r} is missing")
        return places[storage.key]

    return _content(source, tree, place)


Place = Callable[[Storage], tuple[int, int]]


def _content(source: Source, tree: Any, place: Place) -> Content:
    entries: dict[str, Entry] = {}

    def entry(name: str, view: View) -> Entry:
        path = name or source.path.stem
        unique, number = path, 1
        while unique in entries:
            number += 1
            unique = f"{path} ({number})"
        entries[unique] = _entry(source, unique, view, place)
        return entries[unique]

    return Content("PyTorch", entries, tree=_walk(source, tree, "", entry))


def _walk(source: Source, item: Any, name: str, entry: Callable[[str, View], Any]) -> Any:
    """Return an object with its tensors replaced. Each container is visited once; a container that
    contains itself, and one that is nested too deeply, is refused."""
    finished: dict[int, Any] = {}
    open_: set[int] = set()

    def walk(item: Any, name: str) -> Any:
        if isinstance(item, Name | Storage):
            return item.text if isinstance(item, Name) else None
        if not isinstance(item, dict | list | tuple | View):
            return item
        if id(item) in finished:
            return finished[id(item)]
        if isinstance(item, View):
            finished[id(item)] = entry(name, item)
            return finished[id(item)]
        if id(item) in open_ or len(open_) >= DEPTH:
            source.refuse(f"expected at most {DEPTH} nested containers, none within itself")
        open_.add(id(item))
        dot = f"{name}." if name else ""
        result: Any
        if isinstance(item, dict):
            result = {key: walk(value, f"{dot}{key}") for key, value in item.items()}
        else:
            result = [walk(value, f"{dot}{n}") for n, value in enumerate(item)]
            result = tuple(result) if isinstance(item, tuple) else result
        open_.discard(id(item))
        finished[id(item)] = result
        return result

    return walk(item, name)


@dataclass(frozen=True)
class _Layout:
    """How a tensor's elements lie in its part of a storage: axes that repeat have stride 0."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def dense(self) -> tuple[int, ...]:
        """Return the shape without repetition."""
        pairs = zip(self.shape, self.strides, strict=True)
        return tuple(1 if stride == 0 else size for size, stride in pairs)

    def span(self) -> int:
        """Return the number of elements from the first to the last one used."""
        pairs = zip(self.dense(), self.strides, strict=True)
        return 0 if 0 in self.shape else 1 + sum((size - 1) * stride for size, stride in pairs)

    def decoded(self, raw: Tensor) -> Tensor:
        """Return the tensor whose elements are in `raw`, of one axis."""
        if 0 in self.shape:
            return raw.reshape(self.shape)
        dense = self.dense()
        axes = [n for n in range(len(dense)) if dense[n] > 1]
        axes.sort(key=lambda n: -self.strides[n])
        step, packed = 1, True
        for axis in reversed(axes):
            packed = packed and self.strides[axis] == step
            step *= dense[axis]
        if packed:
            rest = [n for n in range(len(dense)) if n not in axes]
            order = [*axes, *rest]
            part = raw.reshape([dense[n] for n in order])
            part = part.permute(*np.argsort(order).tolist()) if order else part
        else:
            index = np.zeros((), np.int64)
            for size, stride in zip(dense, self.strides, strict=True):
                index = index[..., None] + np.arange(size, dtype=np.int64) * stride
            part = raw[index]
        return part.expand(self.shape) if self.shape != dense else part


def _entry(source: Source, name: str, view: View, place: Place) -> Entry:
    kind = _kind(view.storage, view)
    width = _itemsize(kind)
    layout = _Layout(view.shape, view.strides)
    if width is None or bytes_of(view.shape, width) is None:
        source.refuse(f"tensor {name!r}: {kind}{list(view.shape)} is not a tensor")
    start, size = place(view.storage)
    span, first = layout.span(), view.offset * width
    if first + span * width > size or prod(layout.dense()) > max(1, size):
        source.refuse(
            f"tensor {name!r}: elements {view.offset} to {view.offset + span} of {kind} are "
            f"outside its storage of {size} bytes"
        )
    start, own = start + first, _own(kind)
    if start + span * width > source.size:
        source.refuse(f"tensor {name!r} does not fit the file, which has {source.size} bytes")
    if own is not None:
        return Entry(name, view.shape, kind, start, span * width, own, (span,), layout.decoded)

    def refuse(raw: Tensor) -> Tensor:
        raise NotSupported(f"tensor {name!r}: tensors of {kind} are not supported")

    return Entry(name, view.shape, kind, start, span * width, dtypes.uint8, (span * width,), refuse)
