"""A regular file that is read by position, within its size."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn, Self

from ugpu.hcq.errors import BadFile, Closed

VECTORS = 1000  # of one read; Linux's limit, IOV_MAX, is 1024


class Source:
    """An open file. `size` is its size in bytes when it was opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file for reading. OSError if the system refuses; BadFile if it is not a regular
        file."""
        self.path = Path(path)
        # not blocking: the open of a FIFO would wait for a writer
        self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.closed = False
        status = os.fstat(self._handle)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            self.refuse("expected a regular file")

    def refuse(self, problem: str) -> NoReturn:
        """Raise BadFile with the file's path."""
        raise BadFile(f"{self.path.name}: {problem}", file=str(self.path))

    def read(self, start: int, size: int, what: str) -> bytes:
        """Return `size` bytes from `start` on. BadFile if the file does not have them; `what` names
        them in the message."""
        self._check(start, size, what)
        parts = []
        while size:
            part = os.pread(self._handle, min(size, 1 << 30), start)
            if not part:
                self.refuse(f"{what}: the file became shorter while it was read")
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def fill(self, start: int, views: Sequence[memoryview], what: str) -> None:
        """Fill the views, one after the other, with the bytes from `start` on."""
        self._check(start, sum(map(len, views)), what)
        waiting = [view for view in views if len(view)]
        waiting.reverse()
        while waiting:
            count = os.preadv(self._handle, waiting[: -VECTORS - 1 : -1], start)
            if not count:
                self.refuse(f"{what}: the file became shorter while it was read")
            start += count
            while count:
                view = waiting.pop()
                if len(view) > count:
                    waiting.append(view[count:])
                count -= min(count, len(view))

    def stream(self) -> BinaryIO:
        """Return the file as a stream of its own, for readers of archives. The caller closes it."""
        self._check(0, 0, "stream")
        stream = os.fdopen(os.dup(self._handle), "rb")
        stream.seek(0)
        return stream

    def _check(self, start: int, size: int, what: str) -> None:
        if self.closed:
            raise Closed("file used after close", file=str(self.path))
        if start < 0 or size < 0 or start + size > self.size:
            self.refuse(
                f"{what}: expected {size} bytes at byte {start}, the file has {self.size} bytes"
            )

    def close(self) -> None:
        """Close the file; idempotent."""
        if not self.closed:
            self.closed = True
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()
