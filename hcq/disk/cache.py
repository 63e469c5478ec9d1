"""Compiled objects on disk, by content: kernels, and their translations for virtual shader cores.

Processes of a user may share a folder. An entry is a file named by the hash of everything that the
object depends on. It starts with the hash of that name and of its own bytes, so an entry under
another's name is detected. It is written to a new file that is then renamed, so a reader sees all
of it or nothing. An entry that does not match its hash is deleted. When a folder exceeds its limit,
the least recently used entries are deleted. A cache that cannot be written is not an error: objects
are then compiled again. Nor is a cache that others can write, which is not used
(hcq.disk.own_folder). A further folder, of another user, may be read for what this one lacks: only
for objects that run with that user's rights anyway, such as kernels of a device that ugpud owns.
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

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import BadArgument

log = logging.getLogger(__name__)

MAGIC = b"ugpu-object-2\n"
HEAD = len(MAGIC) + hashlib.sha256().digest_size
LIMIT = 256 << 20  # bytes the folder may hold; beyond it the oldest entries are deleted
MOST = 1 << 14  # entries the folder may hold, so that looking at all of them takes under 0.1 s
CHECK_EVERY = 61  # writes between checks of the folder's size; prime, to be uniform over keys
USED_AGAIN_S = 3600.0  # resolution of the last-use time of an entry
_KEY = re.compile(r"[0-9a-z]{64}")
_OURS = re.compile(r"[0-9a-z]{64}|new-[0-9a-zA-Z_]+")  # entries, and a killed writer's files


class DiskCache:
    """A folder of objects; with `folder` None nothing is kept. Keys are made by `key`.

    Attributes:
        further: a folder that is only read, of any user.
        many: the folder has many writers of few entries each, and too many entries for every writer
            to check its size. One in CHECK_EVERY writes of all writers then checks the size;
            otherwise the first write of this writer does so, too.
    """

    def __init__(
        self,
        folder: Path | None,
        limit: int = LIMIT,
        *,
        many: bool = False,
        further: Path | None = None,
    ) -> None:
        self.folder = folder
        self.further = further
        self.limit = limit
        self._many = many
        self._writes = 0

    @staticmethod
    def key(*parts: str) -> str:
        """Return the name of an entry that depends on `parts` and nothing else."""
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the object, or None if there is none that can be trusted."""
        path = self._path(key)
        data = None
        if path is not None:
            with contextlib.suppress(OSError), ownfolder.opened(path.parent) as folder:
                data = self._read(folder, key, path)
        return data if data is not None or self.further is None else self._further(key)

    def _further(self, key: str) -> bytes | None:
        assert self.further is not None
        try:
            content = ownfolder.read_foreign(self.further / key, self.limit)
        except OSError:
            return None
        data = content[HEAD:]
        return data if content[:HEAD] == _head(key, data) else None

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
        """Delete an entry that its reader cannot parse."""
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError), ownfolder.opened(path.parent) as folder:
                os.unlink(key, dir_fd=folder)

    def _mark(self, folder: int, key: str) -> None:
        """Record that an entry was used, so that `trim` deletes others first."""
        with contextlib.suppress(OSError):
            used = os.stat(key, dir_fd=folder, follow_symlinks=False).st_mtime
            if time.time() - used > USED_AGAIN_S:
                os.utime(key, dir_fd=folder, follow_symlinks=False)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; does nothing if the folder cannot be written."""
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
        """Delete the least recently used entries until the folder fits its limit, and has at most
        MOST of them. Other files stay."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError), ownfolder.opened(self.folder) as folder:
            self._trim(folder)

    def _trim(self, folder: int) -> None:
        files = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        files.append((status.st_mtime, status.st_size, entry.name))
        total, left = sum(size for _, size, _ in files), len(files)
        for _, size, name in sorted(files):
            if total <= self.limit and left <= MOST:
                return
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            total, left = total - size, left - 1


def _head(key: str, data: bytes) -> bytes:
    return MAGIC + hashlib.sha256(key.encode() + data).digest()
