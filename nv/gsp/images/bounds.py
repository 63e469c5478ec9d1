"""Bytes of an image, cut and read with every bound checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ugpu.hcq.errors import FirmwareInvalid


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
