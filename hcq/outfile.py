"""Files that a program writes at a path that its user names.

An existing file is replaced only by one of its own kind: a path typed by mistake costs neither a
script nor another report. A new or empty file, and what is not a regular file (/dev/stdout), is
written to.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import BadArgument

_HEAD = 4096  # bytes; the begin of a file shows its kind


@dataclass(frozen=True)
class Kind:
    """A kind of file that may be overwritten.

    Attributes:
        what: with its article.
        begins: a regular expression for the begin of every such file.
    """

    what: str
    begins: bytes


def check_file(path: Path, kind: Kind) -> None:
    """Raise BadArgument if there is a file at `path` that is not of this kind."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadArgument(f"cannot write {kind.what} to {path}: {error.strerror}") from None
    if re.match(kind.begins, head, re.DOTALL) is None:
        raise BadArgument(f"{path} exists and is not {kind.what}: it is not overwritten")


def check_folder(path: Path, what: str, holds: Collection[str]) -> None:
    """Raise BadArgument if there is a folder at `path` that has content, none of which is named in
    `holds`, or a file."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadArgument(f"cannot write {what} to {path}: {error.strerror}") from None
    if names and not names & set(holds):
        raise BadArgument(f"folder {path} has other content than {what}: nothing is written to it")


def check_content(path: Path, content: bytes) -> None:
    """Raise BadArgument if there is a file at `path` with another content."""
    try:
        same = path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadArgument(f"cannot write {path}: {error.strerror}") from None
    if not same:
        raise BadArgument(f"{path} exists with another content: it is not overwritten")
