"""Compiled objects on disk, by content: kernels, and what virtual shader cores translate them to.

Processes of a user may share a folder. An entry is a file named by the hash of all the object
depends on; it starts with the hash of that name and of its own bytes, so an entry under another's
name is found out. It is written beside and moved into place, so a reader sees all of it or nothing;
one that does not match its hash is deleted. A folder beyond its limit loses the entries longest
unused. A cache that cannot be written is not an error: objects are then compiled again; nor is one
that others can write, which is not used (hcq.ownfolder).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from pathlib import Path

from hcq import ownfolder
from hcq.errors import BadArgument

log = logging.getLogger(__name__)

MAGIC = b"ugpu-object-2\n"
HEAD = len(MAGIC) + hashlib.sha256().digest_size
LIMIT = 256 << 20  # bytes the folder may hold; beyond it the oldest entries go
CHECK_EVERY = 61  # writes between looks at the folder's size; prime, to be uniform over keys
USED_AGAIN_S = 3600.0  # how exactly the last use of an entry is known
_KEY = re.compile(r"[0-9a-z]{64}")
_OURS = re.compile(r"[0-9a-z]{64}|new-[0-9a-zA-Z_]+")  # entries, and what a killed writer left


class DiskCache:
    """A folder of objects; `folder` None keeps nothing. Keys are those of `key`.

    many: the folder has many writers of few entries each, and more entries than can be looked at
    for each writer: one in CHECK_EVERY writes of all of them looks at its size, else the first of
    this writer, too."""

    def __init__(self, folder: Path | None, limit: int = LIMIT, *, many: bool = False) -> None:
        self.folder = folder
        self.limit = limit
        self._many = many
        self._writes = 0

    @staticmethod
    def key(*parts: str) -> str:
        """The name of an entry that depends on `parts` and nothing else."""
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def get(self, key: str) -> bytes | None:
        """The object, or None where there is none that can be trusted."""
        path = self._path(key)
        if path is None:
            return None
        try:
            with ownfolder.opened(path.parent) as folder:
                return self._read(folder, key, path)
        except OSError:
            return None

    def _read(self, folder: int, key: str, path: Path) -> bytes | None:
        try:
            content = ownfolder.read(folder, key, path, self.limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("discarding a cache entry that cannot be read: %s", error)
        else:
            data = content[HEAD:]
            if content[:HEAD] == _head(key, data):
                self._mark(folder, key)
                return data
            log.warning("discarding a damaged cache entry: %s", path)
        with contextlib.suppress(OSError):
            os.unlink(key, dir_fd=folder)
        return None

    def forget(self, key: str) -> None:
        """Drop an entry that its reader cannot make sense of."""
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError), ownfolder.opened(path.parent) as folder:
                os.unlink(key, dir_fd=folder)

    def _mark(self, folder: int, key: str) -> None:
        """Remember that an entry was of use, so that `trim` takes others first."""
        with contextlib.suppress(OSError):
            used = os.stat(key, dir_fd=folder, follow_symlinks=False).st_mtime
            if time.time() - used > USED_AGAIN_S:
                os.utime(key, dir_fd=folder, follow_symlinks=False)

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; does nothing where the folder cannot be written."""
        path = self._path(key)
        if path is None:
            return
        try:
            with ownfolder.opened(path.parent, make=True) as folder:
                self._write(folder, key, _head(key, data) + data)
        except OSError as error:
            log.info("the kernel cache cannot be written: %s", error)
            return
        # Keys are hashes: one in CHECK_EVERY is a multiple of it.
        if (int(key, 36) if self._many else self._writes) % CHECK_EVERY == 0:
            self.trim()
        self._writes += 1

    def _write(self, folder: int, key: str, content: bytes) -> None:
        beside = f"new-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(beside, flags, 0o600, dir_fd=folder)
        try:
            with open(handle, "wb") as file:
                file.write(content)
            os.replace(beside, key, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise BadArgument("expected a key of DiskCache.key", key=key)
        return None if self.folder is None else self.folder / key

    def trim(self) -> None:
        """Delete the entries longest unused until the folder fits its limit. Other files stay."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError), ownfolder.opened(self.folder) as folder:
            self._trim(folder)

    def _trim(self, folder: int) -> None:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.name))
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            total -= size


def _head(key: str, data: bytes) -> bytes:
    return MAGIC + hashlib.sha256(key.encode() + data).digest()
