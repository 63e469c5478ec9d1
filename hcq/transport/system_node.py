"""SystemNode: a stock kernel driver's files on this machine."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from pathlib import Path

from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state import life
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.node import NodeMapping, ViewMapping
from ugpu.hcq.transport.system import System

_WORD = struct.Struct("<I")


class SystemMapping(ViewMapping):
    """Mapped memory of a device file. See NodeMapping; after `close` the memory stays mapped as
    long as other code holds views of it, and is unmapped with the last of them."""

    def __init__(self, mapping: mmap.mmap, size: int) -> None:
        super().__init__(memoryview(mapping)[:size])
        self._map: mmap.mmap | None = mapping

    def close(self) -> None:
        mapping, self._map = self._map, None
        # BufferError: a part of the view is still referenced, and the memory is freed with it.
        with contextlib.suppress(BufferError):
            super().close()
            if mapping is not None:
                mapping.close()
        self.view = None


class SystemNode:
    """Device files opened, controlled and mapped by this process. See Node.

    Closing a file that memory was mapped from leaves the mapping as it is, as on any UNIX.
    """

    def __init__(self, name: str, system: System | None = None) -> None:
        self.name = name
        self.clock = Clock()
        self.system = system or System()
        self._open: set[int] = set()
        self._mappings: list[SystemMapping] = []
        self._lock = threading.Lock()
        self._closed = False
        life.inherits(self)

    def open(self, path: str) -> int:
        with self._lock:
            self._check_open()
            handle = self.system.open(self.system.path(path.lstrip("/")))
            self._open.add(handle)
            return handle

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        self._check(handle)
        result = self.system.ioctl(handle, request, argument)
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        self._check(handle)
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        mapping = SystemMapping(self.system.map(handle, whole, offset), size)
        with self._lock:
            self._mappings = [old for old in self._mappings if old.view is not None]
            self._mappings.append(mapping)
        return mapping

    def release(self, handle: int) -> None:
        with self._lock:
            self._check(handle)
            self._open.discard(handle)
        self.system.close(handle)

    def read_text(self, path: str) -> str:
        self._check_open()
        return Path(self.system.path(path.lstrip("/"))).read_text(
            encoding="utf-8", errors="replace"
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            mappings, self._mappings = self._mappings, []
            handles, self._open = self._open, set()
        for mapping in mappings:
            mapping.close()
        for handle in handles:
            self.system.close(handle)

    def another(self) -> SystemNode:
        """See hcq.transport.node.Reopenable."""
        self._check_open()
        return SystemNode(self.name, self.system)

    def abandon(self) -> None:
        """Drop the copies of files and mappings in a forked child. The kernel driver does not
        notice, as the parent has them too."""
        self._lock = threading.Lock()
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} is closed")

    def _check(self, handle: int) -> None:
        self._check_open()
        if handle not in self._open:
            raise BadArgument(f"{self.name}: the handle is not open", handle=handle)

    def __repr__(self) -> str:
        return f"<SystemNode {self.name}, {len(self._open)} files>"
