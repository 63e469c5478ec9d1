"""Folders whose files are executed: only this user may write to them.

Code in a cache of compiled code runs with this user's rights. A folder or file that belongs to
another user, or that others (including the group) can write, is therefore neither read nor written.
Checks are made on opened folders and files, and files are opened relative to the folder, so nothing
can be replaced between check and use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "set UGPU_CACHE to a folder of your own"
_told: set[tuple[str, str]] = set()  # warnings already logged in this process


class Untrusted(OSError):
    """Another user could have written the folder or file. The message names the path and the
    remedy."""


def distrust(status: os.stat_result, path: Path, remedy: str = _REMEDY) -> str:
    """Return why the object that `status` describes must not be used, and the remedy; empty if it
    may be."""
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, expected {os.geteuid()}; {remedy}"
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        return f"{path} can be written by others (mode {mode:04o}); chmod go-w {path}"
    return ""


def open_folder(path: Path, make: bool = False) -> int:
    """Return a descriptor of the folder, which the caller closes. make: make the folder and its
    parents if missing, accessible to this user only. Untrusted (also logged as a warning, once),
    OSError."""
    if make:
        _make(path)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    reason = distrust(os.fstat(folder), path)
    if not reason:
        return folder
    os.close(folder)
    if (str(path), reason) not in _told:
        _told.add((str(path), reason))
        log.warning("not used: %s", reason)
    raise Untrusted(reason)


@contextlib.contextmanager
def opened(path: Path, make: bool = False) -> Iterator[int]:
    """Open the folder for a `with` block, which closes it. Otherwise like `open_folder`."""
    folder = open_folder(path, make)
    try:
        yield folder
    finally:
        os.close(folder)


def _make(path: Path) -> None:
    """Make missing folders, accessible to this user only, whatever the umask."""
    if not path.parent.exists():
        _make(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)


def make_private(path: Path) -> None:
    """Make a folder of this user if it is missing, and missing parents, accessible to this user
    only, whatever the umask. Untrusted if it is another user's, or others can write to it; links
    are not followed at its last component. OSError."""
    _make(path)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        reason = distrust(
            os.fstat(folder), path, "name a folder of the user that runs this program"
        )
    finally:
        os.close(folder)
    if reason:
        raise Untrusted(reason)


def open_private(path: Path, mode: int = 0o600) -> int:
    """Open a regular file of this user for reading and writing, and make it if it is missing, with
    this mode whatever the umask. Return its descriptor. An existing file loses the permissions that
    `mode` does not have. Untrusted if it is another user's; a link is not followed. OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    file = os.open(path, flags, mode)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(f"{path} is not a regular file")
        if status.st_uid != os.geteuid():
            raise Untrusted(f"{path} belongs to user {status.st_uid}, expected {os.geteuid()}")
        if stat.S_IMODE(status.st_mode) & ~mode:
            os.fchmod(file, stat.S_IMODE(status.st_mode) & mode)
    except BaseException:
        os.close(file)
        raise
    return file


def read_private(path: Path, most: int) -> bytes:
    """Return the content of a file that no other user can read or write; otherwise as `read`."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077:
            raise Untrusted(f"{path} is readable by others; chmod 600 {path}")
        return _content(file, path, most, "remove it")
    finally:
        os.close(file)


def read(folder: int, name: str, path: Path, most: int) -> bytes:
    """Return the content of the regular file `name` in an opened folder. path: for messages.
    Untrusted if it is not a regular file, not owned by this user, or longer than `most` bytes;
    FileNotFoundError, OSError. Never waits for a FIFO, never follows a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    file = os.open(name, flags, dir_fd=folder)
    try:
        return _content(file, path, most)
    finally:
        os.close(file)


def read_foreign(path: Path, most: int) -> bytes:
    """Return the content of a regular file, of any user. Untrusted if it is longer than `most`
    bytes or not a regular file; OSError. Never waits for a FIFO, never follows a link."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(f"{path} is not a regular file")
        return _limited(file, path, status.st_size, most)
    finally:
        os.close(file)


def _content(file: int, path: Path, most: int, remedy: str = _REMEDY) -> bytes:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise Untrusted(f"{path} is not a regular file")
    reason = distrust(status, path, remedy)
    if reason:
        raise Untrusted(reason)
    return _limited(file, path, status.st_size, most)


def _limited(file: int, path: Path, size: int, most: int) -> bytes:
    if size > most:
        raise Untrusted(f"{path} has {size} bytes, expected at most {most}")
    with open(file, "rb", closefd=False) as content:
        return content.read(size + 1)  # which allocates as much
