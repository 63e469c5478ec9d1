"""Load and save files of tensors, in the format that a file's content or name shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from ugpu.compiler.dtype import uint8
from ugpu.compiler.files import checkpoint, gguf, numpy_files, safetensors
from ugpu.compiler.files.entry import Content, Entry, Scaled, plain
from ugpu.compiler.files.members import tar_members, zip_members
from ugpu.compiler.files.placing import place, place_raw
from ugpu.compiler.files.source import Source
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile
from ugpu.hcq.near import meant

HEAD = 512  # bytes that show a file's format
INDEX = ".index.json"  # of a model in several safetensors files
_READ = "safetensors, GGUF, .npy, .npz, a PyTorch checkpoint or tar"
_WRITTEN = (".safetensors", ".gguf", ".npy", ".npz")


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a file, by name, read when they are asked for.

        with ugpu.TensorFile("model.safetensors", device=gpu) as file:
            print(file.format, file.metadata, file.entries["embed.weight"].shape)
            weight = file["embed.weight"]

    Opening reads the header alone and checks it. `file[name]` reads one tensor, each time;
    `load` reads all with few large reads. entries: shape and element type of each tensor.
    metadata: what else the file states, such as the keys of a GGUF file. Tensors of quantised
    types are float32: their blocks are in device memory, and are dequantised by the kernels that
    read them. Raises BadFile for invalid files, OSError if the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, device: Device | str | None = None) -> None:
        self.device = device_of(device)
        self._source = Source(path)
        try:
            self._content = _content(self._source)
            for entry in self._content.entries.values():
                if entry.start + entry.size > self._source.size:
                    self._source.refuse(
                        f"tensor {entry.name!r} ends at byte {entry.start + entry.size}, the file "
                        f"has {self._source.size} bytes"
                    )
        except BaseException:
            self._source.close()
            raise

    @property
    def format(self) -> str:
        """The format's name."""
        return self._content.format

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Shapes, types and places of the tensors, by name."""
        return self._content.entries

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file states besides, in the words of its format."""
        return self._content.metadata

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries.get(name)
        if entry is None:
            hint = meant(str(name), self.entries)
            raise KeyError(f"{self._source.path.name} has no tensor {name!r}; {hint}".rstrip("; "))
        return place(self._source, [entry], self.device)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def load(self) -> Any:  # the structure of the file
        """Return all tensors: by name, or for .npy the one tensor, or for a PyTorch checkpoint the
        object that it holds (nested dicts, lists and tuples)."""
        entries = list(self.entries.values())
        tensors = place(self._source, entries, self.device)
        named = {entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)}
        if self._content.tree is None:
            return named
        return _filled(self._content.tree, named)

    def load_groups(self) -> dict[str, Tensor | Scaled]:
        """Return all tensors by name, those of quantised types as the groups of elements that share
        a scale, lazily, where the type has such groups."""
        entries = list(self.entries.values())
        values: dict[str, Tensor | Scaled] = {}
        for entry, raw in zip(entries, place_raw(self._source, entries, self.device), strict=True):
            groups = None if entry.groups is None else entry.groups(raw)
            if groups is None:
                values[entry.name] = raw if entry.decode is None else entry.decode(raw)
            else:
                values[entry.name] = groups
        return values

    def close(self) -> None:
        """Close the file; idempotent. Tensors that were read stay valid."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TensorFile {self._source.path.name}, {self.format}, {len(self)} tensors>"


def load(path: str | os.PathLike[str], *, device: Device | str | None = None) -> Any:
    """Load a file of tensors onto a device: safetensors, GGUF, NumPy, PyTorch or tar.

    Returns the tensors by name; for .npy one tensor; for a PyTorch checkpoint the object that it
    holds. For `model.safetensors.index.json`, the tensors of all its files. Nothing in the file is
    executed. Raises BadFile for an invalid file, NotSupported for element
    types that tensors do not have, OutOfMemory, OSError.
    """
    if str(path).endswith(INDEX):
        return _load_parts(Path(path), device)
    with TensorFile(path, device=device) as file:
        return file.load()


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor] | Tensor,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors to a file, whose name decides the format: .safetensors, .gguf, .npy or .npz.

    tensors: by name; for .npy one tensor. metadata: strings for safetensors, keys for GGUF. The
    file appears when it is complete: an error leaves an old one as it was. Raises BadArgument if
    the format cannot hold the tensors.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in _WRITTEN:
        raise BadArgument(f"save: expected a file name with {', '.join(_WRITTEN)}, got {target}")
    if isinstance(tensors, Tensor) != (kind == ".npy"):
        wanted = "one Tensor" if kind == ".npy" else "tensors by name"
        raise BadArgument(f"save: {kind} holds {wanted}, got {type(tensors).__name__}")
    if isinstance(tensors, Mapping):
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise BadArgument(f"save: expected names and Tensors, got {name!r}: {tensor!r:.80}")
    if metadata and kind in (".npy", ".npz"):
        raise BadArgument(f"save: {kind} holds no metadata")
    _write(target, _writer(kind, tensors, metadata or {}))


def _writer(
    kind: str,
    tensors: Any,
    metadata: Mapping[str, Any],  # checked by save
) -> Callable[[BinaryIO], None]:
    if kind == ".safetensors":
        if not all(isinstance(value, str) for value in metadata.values()):
            raise BadArgument("save: metadata of safetensors must be strings")
        return lambda file: safetensors.write(file, tensors, metadata)
    if kind == ".gguf":
        return lambda file: gguf.write(file, tensors, metadata)
    if kind == ".npz":
        return lambda file: numpy_files.write_zip(file, dict(tensors))
    return lambda file: numpy_files.write(file, tensors)


def _write(target: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside the target, then rename."""
    with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            write(cast(BinaryIO, file.file))
            file.flush()
            os.chmod(file.name, 0o666 & ~_mask())
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _content(source: Source) -> Content:
    """Return what a file holds, by the format that its first bytes show."""
    head = source.read(0, min(HEAD, source.size), "format")
    if head[:4] in (b"PK\3\4", b"PK\5\6"):
        members = zip_members(source)
        if any(name.endswith("/data.pkl") for name in members):
            return checkpoint.read_zip(source, members)
        return numpy_files.read_zip(source, members)
    formats = (
        (head[:4] == gguf.MAGIC, gguf.read),
        (head[:6] == numpy_files.MAGIC, numpy_files.read),
        (checkpoint.is_legacy(head), checkpoint.read_legacy),
        (head[257:262] == b"ustar", _tar),
        (safetensors.is_safetensors(head), safetensors.read),
    )
    read = next((read for fits, read in formats if fits), None)
    if read is None:
        source.refuse(f"expected {_READ}; the file begins with {head[:16]!r}")
    return read(source)


def _tar(source: Source) -> Content:
    """Return the files of a tar archive: arrays of .npy members, the bytes of the others."""
    entries = {
        name: numpy_files.array_entry(source, member, name)
        if name.endswith(".npy")
        else plain(name, (member.size,), "file", member.start, uint8)
        for name, member in tar_members(source).items()
    }
    return Content("tar", entries)


def _load_parts(path: Path, device: Device | str | None) -> dict[str, Tensor]:
    """Load the tensors of a model in several files. BadFile if a file lacks one of them."""
    with Source(path) as source:
        if source.size > safetensors.HEADER:
            source.refuse(f"expected at most {safetensors.HEADER} bytes, got {source.size}")
        try:
            index = json.loads(source.read(0, source.size, "index"))
        except (ValueError, RecursionError) as error:
            source.refuse(f"not valid JSON: {error}")
        files = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(files, dict) or not all(
            isinstance(name, str) and name == Path(name).name for name in files.values()
        ):
            source.refuse("weight_map must map names to files of the same folder")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        tensors |= load(path.parent / name, device=device)
    missing = [name for name in files if name not in tensors]
    if missing:
        raise BadFile(f"{path.name}: its files lack {len(missing)} tensors: {missing[:5]}",
                      file=str(path))  # fmt: skip
    return {name: tensors[name] for name in files}


def _filled(
    tree: Any, tensors: Mapping[str, Tensor], finished: dict[int, Any] | None = None
) -> Any:  # the structure of a checkpoint
    """Return a structure with the tensors of its entries; shared parts stay shared."""
    done: dict[int, Any] = {} if finished is None else finished
    if isinstance(tree, Entry):
        return tensors[tree.name]
    if not isinstance(tree, dict | list | tuple):
        return tree
    if id(tree) not in done:
        if isinstance(tree, dict):
            done[id(tree)] = {key: _filled(value, tensors, done) for key, value in tree.items()}
        else:
            done[id(tree)] = type(tree)(_filled(value, tensors, done) for value in tree)
    return done[id(tree)]
