"""Evidence of a failure in one compressed file, with a manifest: the input of `ugpu crash`.

A bundle is a ZIP file. `manifest.json` contains what failed, when, where and with which versions,
what the file contains, and which parts are missing and why. Every other entry is one part. Parts
whose name ends with .json contain JSON, .txt text, .bin bytes; `registers.json` is read by `ugpu
reg`.

Personal data is left out: the home folder is written "~", and user names, host names and the
program's arguments are not kept. Of memory, only what the driver owns (rings, page tables,
programs) is kept. The user's buffers are not read.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import os
import platform
import secrets
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import BadArgument, UgpuError

log = logging.getLogger(__name__)

FORMAT = "ugpu crash 1"
MANIFEST = "manifest.json"
SUFFIX = ".crash.zip"
LARGEST = 5 << 20  # bytes of a file, compressed
_LARGEST_PART = 4 << 20  # bytes, before compression
_LARGEST_READ = 64 << 20  # bytes of all parts of a file that is read
MOST = 32  # files of a folder
_FIRST = 8  # the first of them stay; of the others, the newest


@dataclass
class Evidence:
    """What was collected of a failure.

    Attributes:
        parts: content by name.
        missing: reason by the name of a part that could not be collected.
    """

    parts: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, make: Callable[[], object]) -> None:
        """Add the part `name` (.json, .txt or .bin) from the result of `make`. Any exception of
        `make` becomes the reason of the part's absence, since a failing device may return
        anything."""
        try:
            part = make()
        except Exception as error:
            self.missing[name] = f"{type(error).__name__}: {error}"
            return
        if isinstance(part, bytes | bytearray | memoryview):
            content = bytes(part)
        elif isinstance(part, str):
            content = part.encode("utf-8", "replace")
        else:
            content = json.dumps(part, default=str).encode()  # with an indent it takes ten times
        if len(content) > _LARGEST_PART:
            self.missing[name] = f"{len(content)} bytes, of which {_LARGEST_PART} are kept at most"
            return
        self.parts[name] = content


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        path: of the file.
        manifest: as `write` made it.
        parts: content by name.
    """

    path: Path
    manifest: Mapping[str, object]
    parts: Mapping[str, bytes]


def facts_of(error: UgpuError) -> dict[str, object]:
    """Return an error as a manifest contains it."""
    shown = {name: _plain(value) for name, value in error.facts.items()}
    return {"class": type(error).__name__, "message": error.message, "facts": shown}


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the versions of this project, Python and the kernel. No host name."""
    from importlib import metadata  # takes long to import

    try:
        own = metadata.version("ugpu")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return MappingProxyType(
        {
            "ugpu": own,
            "python": platform.python_version(),
            "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        }
    )


def write(
    folder: Path, device: str, error: UgpuError, evidence: Evidence, *, now: float | None = None
) -> Path:
    """Write a bundle into `folder`, which is made if it is missing; return its path.

    The file is complete or does not exist. Parts that would make it larger than LARGEST are left
    out, the largest first, and named in the manifest. Then the folder is reduced to MOST bundles:
    the first and the newest stay. Raises OSError if the system refuses.
    """
    when = time.time() if now is None else now
    parts = {name: _clean(name, data) for name, data in evidence.parts.items()}
    missing = dict(evidence.missing)
    while True:
        content = _packed(device, error, parts, missing, when)
        if len(content) <= LARGEST or not parts:
            break
        largest = max(parts, key=lambda name: len(zlib.compress(parts[name], 1)))
        missing[largest] = f"{len(parts.pop(largest))} bytes, for which the bundle has no room"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(when))
    where = "".join(letter if letter.isalnum() else "-" for letter in device).strip("-")[-40:]
    name = f"{stamp}-{where}-{type(error).__name__}-{secrets.token_hex(2)}{SUFFIX}"
    with ownfolder.opened(folder, make=True) as handle:
        _store(handle, name, content)
    _trim(folder)
    return folder / name


def _packed(
    device: str, error: UgpuError, parts: Mapping[str, bytes], missing: Mapping[str, str],
    when: float,
) -> bytes:  # fmt: skip
    manifest = {
        "format": FORMAT,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        "device": device,
        "error": facts_of(error),
        "versions": dict(versions()),
        "parts": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in parts.items()
        },
        "missing": dict(missing),
    }
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr(MANIFEST, _without_home(json.dumps(manifest, indent=1, default=str)))
        for name, data in parts.items():
            file.writestr(name, data)
    return into.getvalue()


def _clean(name: str, data: bytes) -> bytes:
    if name.endswith(".bin"):
        return data
    return _without_home(data.decode("utf-8", "replace")).encode()


def _without_home(text: str) -> str:
    home = os.path.expanduser("~")
    return text.replace(home, "~") if len(home) > 1 else text


def _store(folder: int, name: str, content: bytes) -> None:
    beside = f"new-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o600, dir_fd=folder)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.link(beside, name, src_dir_fd=folder, dst_dir_fd=folder)  # fails if it exists
    finally:
        os.unlink(beside, dir_fd=folder)


def bundles(folder: Path) -> list[Path]:
    """Return the bundles of a folder, the oldest first; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def _trim(folder: Path) -> None:
    paths = bundles(folder)
    for path in paths[_FIRST : max(_FIRST, len(paths) - (MOST - _FIRST))]:
        path.unlink(missing_ok=True)


def read(path: Path) -> Bundle:
    """Read a bundle; BadArgument if it is not a bundle, is damaged or unpacks to more than 64
    MiB."""
    try:
        with zipfile.ZipFile(path) as file:
            sizes = sum(entry.file_size for entry in file.infolist())
            if sizes > _LARGEST_READ:
                raise ValueError(f"the unpacked size is {sizes} bytes")
            content = {entry.filename: file.read(entry) for entry in file.infolist()}
        manifest = json.loads(content.pop(MANIFEST))
        if manifest["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {manifest['format']!r}")
        for name in ("when", "device", "error", "versions", "parts", "missing"):
            manifest[name]
        for name in ("class", "message", "facts"):
            manifest["error"][name]
    except OSError as error:
        raise BadArgument(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, RuntimeError, NotImplementedError, EOFError,
            zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        raise BadArgument(f"{path} is not a crash bundle: {error}") from None
    return Bundle(path, manifest, content)
