"""NumPy's files: .npy (one array) and .npz (a zip of them).

Format: "\\x93NUMPY", version, size of the header, a Python dict literal with `descr`,
`fortran_order` and `shape`, the elements. Source: numpy/lib/_format_impl.py (NEP 1). Arrays of
objects, which are pickled, are refused.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.files.entry import Content, Entry, bytes_of
from ugpu.compiler.files.members import Member, content
from ugpu.compiler.files.source import Source
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

MAGIC = b"\x93NUMPY"
HEADER = 10_000  # bytes, NumPy's own limit


def read(source: Source) -> Content:
    """Return the array of a .npy file. BadFile if it is invalid."""
    entry = array_entry(source, Member(source.path.stem, 0, source.size), source.path.stem)
    if entry.start + entry.size != source.size:
        source.refuse(
            f"the array ends at byte {entry.start + entry.size}, the file has {source.size} bytes"
        )
    return Content("NumPy", {entry.name: entry}, tree=entry)


def read_zip(source: Source, members: Mapping[str, Member]) -> Content:
    """Return the arrays of a .npz file by name. BadFile if it is invalid."""
    entries = {}
    for name, member in members.items():
        if not name.endswith(".npy"):
            source.refuse(f"expected a zip of .npy arrays, got member {name!r}")
        entries[name[:-4]] = array_entry(source, member, name[:-4])
    return Content("NumPy", entries)


def array_entry(source: Source, member: Member, name: str) -> Entry:
    """Return the entry of a .npy array that is a member of an archive, or a whole file."""
    what = f"array {name!r}"
    head = content(source, member, 12 + HEADER)
    if len(head) < 10 or head[:6] != MAGIC or head[6] not in (1, 2, 3):
        source.refuse(f"{what} does not begin as a .npy file")
    wide = 4 if head[6] > 1 else 2
    size = int.from_bytes(head[8 : 8 + wide], "little")
    if size > HEADER or len(head) < 8 + wide + size:
        source.refuse(f"{what}: the header must have at most {HEADER} bytes, got {size}")
    kind, shape, fortran = _header(source, what, head[8 + wide : 8 + wide + size])
    start = 8 + wide + size
    count = bytes_of(shape, kind.itemsize)
    if count is None or start + count > member.size:
        source.refuse(f"{what}: {kind}{list(shape)} does not fit {member.size - start} bytes")
    order = shape[::-1] if fortran else shape
    native = kind.newbyteorder("=")
    own = dtypes.as_dtype(native)
    if member.packed is not None:
        return Entry(
            name, shape, kind.str, member.start, member.packed, own, shape,
            host=_unpacked(source, member, kind, shape, start, fortran),
        )  # fmt: skip
    turned = _turned if fortran and len(shape) > 1 else None
    if kind != native:
        return Entry(
            name, shape, kind.str, member.start + start, count, own, shape,
            host=lambda data: _array(data, kind, shape, fortran),
        )  # fmt: skip
    return Entry(
        name, shape, kind.str, member.start + start, count, own, order,
        turned,
    )  # fmt: skip


def _header(source: Source, what: str, text: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    try:
        fields = ast.literal_eval(text.decode("latin1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        source.refuse(f"{what}: the header is not a Python dict literal")
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        source.refuse(f"{what}: the header must have descr, fortran_order and shape")
    descr, shape, fortran = fields["descr"], fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(size) is int for size in shape):
        source.refuse(f"{what}: shape must be a tuple of ints, got {shape!r:.80}")
    try:
        kind = np.dtype(descr) if isinstance(descr, str) else None
    except (TypeError, ValueError):
        kind = None
    numbers = kind is not None and kind.kind in "biuf" and kind.itemsize <= 8
    if kind is None or not numbers or not isinstance(fortran, bool):
        source.refuse(f"{what}: arrays of {descr!r:.80} are not supported")
    return kind, shape, fortran


def _turned(raw: Tensor) -> Tensor:
    return raw.permute(*reversed(range(raw.ndim)))


def _array(data: bytes, kind: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> NDArray[Any]:
    array = np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(array, kind.newbyteorder("="))


def _unpacked(
    source: Source,
    member: Member,
    kind: np.dtype[Any],
    shape: tuple[int, ...],
    start: int,
    fortran: bool,
) -> Callable[[bytes], NDArray[Any]]:
    def unpacked(packed: bytes) -> NDArray[Any]:
        data = content(source, member)[start:]
        size = bytes_of(shape, kind.itemsize)
        return _array(data[:size], kind, shape, fortran)

    return unpacked


def write(file: BinaryIO, tensor: Tensor) -> None:
    """Write one tensor as .npy. BadArgument for types that NumPy does not have."""
    np.lib.format.write_array(file, _numpy(tensor), allow_pickle=False)


def write_zip(file: BinaryIO, tensors: dict[str, Tensor]) -> None:
    """Write tensors as .npz, not compressed."""
    arrays: dict[str, Any] = {name: _numpy(tensor) for name, tensor in tensors.items()}
    np.savez(file, **arrays)


def _numpy(tensor: Tensor) -> NDArray[Any]:
    # Other packages enter names in np.sctypeDict, but files have NumPy's own types only.
    if dtypes.to_numpy(tensor.dtype).name != tensor.dtype.name:
        raise BadArgument(
            f"save: NumPy's files have no {tensor.dtype.name}; convert with .float() first, or "
            "save as .safetensors"
        )
    return tensor.numpy()
