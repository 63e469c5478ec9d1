"""safetensors: a JSON header and the arrays.

Format: 8 bytes, the header's size; the header, JSON: for each name `dtype`, `shape` and
`data_offsets` counted from the header's end; the arrays, row-major, little-endian, without gaps.
Source: huggingface/safetensors, README.md and safetensors/src/tensor.rs (0.8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.files.entry import NAMES, Content, Entry, bytes_of, plain
from ugpu.compiler.files.source import Source
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported

HEADER = 100_000_000  # bytes: the limit of the format's own reader
_NAMED = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
TYPES: Mapping[str, DType] = {
    name: dtype
    for name, own in _NAMED.items()
    for dtype in (next((each for each in dtypes.ALL if each.name == own), None),)
    if dtype is not None
}
# element types of the format that tensors do not have, in bits
_OTHER = {"F8_E8M0": 8, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def is_safetensors(head: bytes) -> bool:
    """Return whether a file's first bytes are those of this format."""
    size = int.from_bytes(head[:8], "little")
    return len(head) > 8 and 2 <= size <= HEADER and head[8:].lstrip(b" ")[:1] == b"{"


def read(source: Source) -> Content:
    """Return the tensors that a file's header describes. BadFile if it is invalid."""
    size = int.from_bytes(source.read(0, 8, "size of the header"), "little")
    if size > HEADER:
        source.refuse(f"the header must have at most {HEADER} bytes, got {size}")
    header = _header(source, source.read(8, size, "header"))
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        source.refuse("__metadata__ must be an object of strings")
    if len(header) > NAMES:
        source.refuse(f"expected at most {NAMES} tensors, got {len(header)}")
    entries = sorted(
        (_entry(source, name, fields, 8 + size) for name, fields in header.items()),
        key=lambda entry: (entry.start, entry.size),
    )
    end = 8 + size
    for entry in entries:
        if entry.start != end:
            source.refuse(
                f"tensor {entry.name!r} must begin where the one before it ends, at "
                f"{end - 8 - size}, got {entry.start - 8 - size}"
            )
        end = entry.start + entry.size
    if end != source.size:
        source.refuse(f"the tensors end at byte {end}, the file has {source.size} bytes")
    return Content("safetensors", {entry.name: entry for entry in entries}, metadata)


def _header(source: Source, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        source.refuse(f"the header is not valid JSON: {error}")
    if not isinstance(header, dict):
        source.refuse("the header must be a JSON object")
    return header


def _whole(source: Source, name: str, fields: Mapping[str, Any], key: str) -> list[int]:
    numbers = fields.get(key)
    if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
        source.refuse(f"tensor {name!r}: {key} must be integers of at least 0, got {numbers!r:.80}")
    return numbers


def _entry(source: Source, name: str, fields: object, base: int) -> Entry:
    if not isinstance(fields, dict):
        source.refuse(f"tensor {name!r} must be an object, got {fields!r:.80}")
    kind = fields.get("dtype")
    shape, offsets = (_whole(source, name, fields, key) for key in ("shape", "data_offsets"))
    if len(offsets) != 2:
        source.refuse(f"tensor {name!r}: data_offsets must be two numbers, got {offsets}")
    stored = TYPES.get(kind) if isinstance(kind, str) else None
    bits = stored.bits if stored else _OTHER.get(str(kind))
    if bits is None:
        source.refuse(f"tensor {name!r}: unknown dtype {kind!r:.80}")
    size, own = offsets[1] - offsets[0], tuple(shape)
    wanted = bytes_of(own, bits)
    if wanted is None or wanted != 8 * size:
        source.refuse(f"tensor {name!r}: {kind}{shape} does not fit {size} bytes")
    if stored is not None:
        return plain(name, own, str(kind), base + offsets[0], stored)
    start = base + offsets[0]
    return Entry(name, own, str(kind), start, size, dtypes.uint8, (size,), _refusal(name, kind))


def _refusal(name: str, kind: Any) -> Any:  # the kind was checked
    def refuse(raw: Tensor) -> Tensor:
        raise NotSupported(f"tensor {name!r}: tensors of {kind} are not supported")

    return refuse


def write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors as the format's own writer orders them: wide elements first, then by name."""
    names = {dtype.name: kind for kind, dtype in TYPES.items()}
    if "__metadata__" in tensors:
        raise BadArgument("save: a tensor must not be named __metadata__")
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.dtype.itemsize
        header[name] = {
            "dtype": names[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(bits_of(tensors[name]))


def bits_of(tensor: Tensor) -> memoryview:
    """Return a tensor's elements as bytes, little-endian, in row-major order."""
    if not dtypes.has_numpy(tensor.dtype):
        tensor = tensor.bitcast(f"uint{tensor.dtype.bits}")
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data
