"""Compiled objects on disk, by content: kernels, and what virtual shader cores translate them to.

Processes may share a folder. An entry is a file named by the hash of all the object depends on; it
starts with the hash of its own bytes. It is written beside and moved into place, so a reader sees
all of it or nothing; one that does not match its hash is deleted. A folder beyond its limit loses
the entries longest unused. A cache that cannot be written is no error: objects are then compiled
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

MAGIC = b"ugpu-object-1\n"
LIMIT = 256 << 20  # bytes the folder may hold; beyond it the oldest entries go
CHECK_EVERY = 64  # writes between looks at the folder's size; the first write looks, too
USED_AGAIN_S = 3600.0  # how exactly the last use of an entry is known


class DiskCache:
    """A folder of objects; `folder` None keeps nothing."""

    def __init__(self, folder: Path | None, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.writes = 0

    @staticmethod
    def key(*parts: str) -> str:
        """The name of an entry that depends on `parts` and nothing else."""
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def get(self, key: str) -> bytes | None:
        """The object, or None where there is none that can be trusted."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            content = path.read_bytes()
        except OSError:
            return None
        head = len(MAGIC) + 32
        data = content[head:]
        if (
            content[: len(MAGIC)] == MAGIC
            and content[len(MAGIC) : head] == hashlib.sha256(data).digest()
        ):
            self._mark(path)
            return data
        log.warning("discarding a damaged cache entry: %s", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def forget(self, key: str) -> None:
        """Drop an entry that its reader cannot make sense of."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                (self.folder / key).unlink()

    def _mark(self, path: Path) -> None:
        """Remember that an entry was of use, so that `trim` takes others first."""
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > USED_AGAIN_S:
                os.utime(path)

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; does nothing where the folder cannot be written."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, beside = tempfile.mkstemp(prefix="new-", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(MAGIC + hashlib.sha256(data).digest() + data)
                os.replace(beside, self.folder / key)
            except OSError:
                os.unlink(beside)
                raise
        except OSError as error:
            log.info("the kernel cache cannot be written: %s", error)
            return
        if self.writes % CHECK_EVERY == 0:
            self.trim()
        self.writes += 1

    def trim(self) -> None:
        """Delete the entries longest unused until the folder fits its limit."""
        if self.folder is None:
            return
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
