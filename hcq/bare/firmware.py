"""Firmware files: where they are looked for, unpacked within limits, cut, and named in errors.

What is in a file is the vendor's: its parsers read it through Image, which checks every bound.
"""

from __future__ import annotations

import importlib
import logging
import lzma
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import FirmwareInvalid, FirmwareNotFound, MissingDependency
from ugpu.hcq.state.config import config

log = logging.getLogger(__name__)

# Our choice: a window of linux-firmware's archives has 2 MiB (its Makefile, --lzma2=dict=2MiB).
_UNPACKER_BYTES = 256 << 20


@dataclass(frozen=True)
class FirmwarePackage:
    """A vendor's firmware. folder: its name below /lib/firmware. packages: of distributions that
    have it. most_bytes: more than any of its files, packed or not, has."""

    folder: str
    packages: tuple[str, ...]
    most_bytes: int

    @property
    def remedy(self) -> str:
        """What to do when a file is missing or wrong."""
        return f"update the firmware images: install the current {' or '.join(self.packages)}"


class Image:
    """Bytes with a name for errors. Every read outside raises FirmwareInvalid."""

    __slots__ = ("data", "name")

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self.name = name
        self.data = memoryview(data)

    def __len__(self) -> int:
        return len(self.data)

    def invalid(self, what: str, **facts: object) -> FirmwareInvalid:
        """Return the error for a fault of this image."""
        return FirmwareInvalid(f"{self.name}: {what}", image=self.name, **facts)

    def check(self, valid: object, what: str, **facts: object) -> None:
        """Raise the error for a fault of this image unless it is `valid`."""
        if not valid:
            raise self.invalid(what, **facts)

    def cut(self, offset: int, size: int, what: str) -> memoryview:
        """Return `size` bytes at `offset`, which are the image's `what`."""
        whole, text = len(self.data), f"{what} extends past the end"
        inside = 0 <= offset <= offset + size <= whole
        self.check(inside, text, offset=offset, length=size, size=whole)
        return self.data[offset : offset + size]

    def unpack(self, form: str, offset: int, what: str) -> tuple[int, ...]:
        """Read little-endian numbers, by a format of `struct` without a byte order."""
        layout = struct.Struct(f"<{form}")
        values: tuple[int, ...] = layout.unpack(self.cut(offset, layout.size, what))
        return values

    def table(
        self, at: int, what: str, form: str, *, first: int, most: int, head: int = 0, skip: int = 1
    ) -> Iterator[tuple[int, ...]]:
        """Return the entries of a table, as `form` (see `unpack`) unpacks them where they are read.

        It begins with the byte `first`; `skip` bytes from there stand the size of its head, at
        least `head`, the size of an entry, and the number of entries, at most `most`.
        """
        (begin,), sizes = self.unpack("B", at, what), self.unpack("3B", at + skip, what)
        header, width, count = sizes
        valid = begin == first and header >= head and width >= struct.calcsize(f"<{form}")
        found = {"first": begin, "header": header, "entry": width, "count": count}
        self.check(valid and count <= most, f"{what} is invalid", **found)
        return (self.unpack(form, at + header + number * width, what) for number in range(count))

    def word(self, offset: int, what: str) -> int:
        """Read 32 bits."""
        return self.unpack("I", offset, what)[0]


class FirmwareSource:
    """Where images come from: a mapping (an attachment's own set), else folders in order.

    In each folder images may lie directly or, as in /lib/firmware, in the vendor's folder, plain or
    packed (.xz, .zst).
    """

    def __init__(
        self,
        package: FirmwarePackage,
        images: Mapping[str, bytes] | None = None,
        folders: Sequence[Path] = (),
        on_image: Callable[[str, bytes], object] | None = None,
    ) -> None:
        """on_image: called with name and bytes of each image that is read."""
        self.package = package
        self.images = images
        self.folders = tuple(folders)
        self._on_image = on_image

    @classmethod
    def chosen(
        cls,
        package: FirmwarePackage,
        folder: str | Path | None,
        images: Mapping[str, bytes] | None,
        on_image: Callable[[str, bytes], object] | None,
    ) -> FirmwareSource:
        """Return the source for an open: `folder` alone if it is given, else the attachment's
        images or the configured folders."""
        folders = (Path(folder),) if folder is not None else config().firmware_folders
        return cls(package, images if folder is None else None, folders, on_image)

    def read(self, name: str) -> bytes:
        """Read image `name` ("psp_13_0_0_sos.bin"); FirmwareNotFound lists the places searched,
        FirmwareInvalid names a file that is too large or cannot be unpacked."""
        data = self._read(name)
        if self._on_image is not None:
            self._on_image(name, data)
        return data

    def _read(self, name: str) -> bytes:
        package = self.package
        if self.images is not None:
            for key in (name, f"{package.folder}/{name}"):
                if key in self.images:
                    return bytes(self.images[key])
            raise FirmwareNotFound(
                f"expected image {name} in the given set, found none",
                name=name,
                searched="set",
                remedy=package.remedy,
            )
        places = [place for top in self.folders for place in (top / package.folder, top)]
        for folder in places:
            for suffix, unpack in (("", _plain), (".xz", _unpack_xz), (".zst", _unpack_zstd)):
                path = folder / (name + suffix)
                if path.is_file():
                    log.debug("firmware %s from %s", name, path)
                    return self._unpacked(path, unpack)
        raise FirmwareNotFound(
            f"firmware {name} is not installed (package {' or '.join(package.packages)})",
            name=name,
            searched=[str(folder) for folder in places],
            remedy=package.remedy,
        )

    def _unpacked(self, path: Path, unpack: Callable[[bytes, int], bytes]) -> bytes:
        most = self.package.most_bytes
        with path.open("rb") as file:
            data = file.read(most + 1)
        try:
            content = unpack(data, most) if len(data) <= most else data
        except FirmwareInvalid as error:
            error.add_facts(file=str(path), remedy=self.package.remedy)
            raise
        if len(content) > most:
            raise FirmwareInvalid(
                f"{path}: the firmware file is too large: expected at most {most} bytes",
                file=str(path),
                remedy=self.package.remedy,
            )
        return content


def _plain(data: bytes, most: int) -> bytes:
    return data


def _unpack_xz(data: bytes, most: int) -> bytes:
    """Return the content of one .xz stream, at most one byte more than `most`."""
    unpacker = lzma.LZMADecompressor(memlimit=_UNPACKER_BYTES)
    try:
        content = unpacker.decompress(data, most + 1)
    except lzma.LZMAError as error:
        raise FirmwareInvalid("the .xz file cannot be decompressed", reason=str(error)) from error
    if len(content) <= most and not unpacker.eof:
        raise FirmwareInvalid("the .xz file cannot be decompressed", reason="it ends early")
    return content


def _unpack_zstd(data: bytes, most: int) -> bytes:
    """Return the content of one .zst frame of at most `most` bytes."""
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingDependency(
            "the firmware is compressed with zstd, and no decompressor is installed",
            install="pip install 'ugpu[firmware]'",
        ) from error
    try:
        stated = zstandard.frame_content_size(data)  # -1: not stated
        if stated > most:
            raise FirmwareInvalid("the .zst file is too large", stated=stated, limit=most)
        unpacker = zstandard.ZstdDecompressor(max_window_size=_UNPACKER_BYTES)
        return bytes(unpacker.decompress(data, max_output_size=most))
    except zstandard.ZstdError as error:
        raise FirmwareInvalid("the .zst file cannot be decompressed", reason=str(error)) from error
