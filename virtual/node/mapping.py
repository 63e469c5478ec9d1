"""Mappings of device files in this process."""

from __future__ import annotations

import contextlib
import struct
from abc import ABC, abstractmethod

from ugpu.hcq.errors import BadArgument

_WORD = struct.Struct("<I")


class Mapping(ABC):
    """A mapped part of a file; implements `hcq.transport.node.NodeMapping`. closed: whether it was
    unmapped."""

    def __init__(self, size: int, address: int = 0, view: memoryview | None = None) -> None:
        self.size = size
        self.address = address
        self.view = view
        self.closed = False

    def read32(self, offset: int) -> int:
        """Read a word."""
        self._check(offset)
        assert self.view is not None
        return int(_WORD.unpack_from(self.view, offset)[0])

    def write32(self, offset: int, value: int) -> None:
        """Write a word."""
        self._check(offset)
        assert self.view is not None
        _WORD.pack_into(self.view, offset, value)

    def _check(self, offset: int) -> None:
        if self.closed:
            raise BadArgument("the mapping is closed")
        if offset % 4 or not 0 <= offset <= self.size - 4:
            raise BadArgument(
                "a word must be aligned and inside the mapping", offset=offset, size=self.size
            )

    def close(self) -> None:
        """Unmap; idempotent."""
        if not self.closed:
            self.closed = True
            if self.view is not None:
                with contextlib.suppress(BufferError):  # an array lies in it: it ends with that
                    self.view.release()
                self.view = None
            self._unmapped()

    @abstractmethod
    def _unmapped(self) -> None:
        """Drop what the mapping kept alive."""
