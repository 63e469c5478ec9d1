"""Crash bundles by name: their folder, and the bundle that a word on the command line means."""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.hcq.state.config import config

_LEAST = 4  # shortest accepted beginning of a name, in characters


def folder() -> Path:
    """Return the folder of bundles; UsageError if bundles are not written."""
    path = config().crash_folder
    if path is None:
        raise UsageError("no bundles are written: UGPU_CRASHES is 0, or there is no home folder")
    return path


def find(name: str) -> Path:
    """Return a bundle by its path, its number in `ugpu crash ls` (1 is the newest), or the
    beginning of its name."""
    path = Path(name)
    if path.is_file():
        return path
    newest_first = bundle.bundles(folder())[::-1]
    if name.isdecimal() and 0 < int(name) <= len(newest_first):
        return newest_first[int(name) - 1]
    matching = [path_of for path_of in newest_first if path_of.name.startswith(name)]
    if len(matching) != 1:
        raise BadArgument(
            f"{name!r} names {len(matching)} of {len(newest_first)} bundles in {folder()}"
        )
    return matching[0]


def file_of(source: str) -> Path | None:
    """Return the file that a source names, by its path or as in `find`; None for a device."""
    path = Path(source)
    if path.is_file():
        return path
    if ":" in source or config().crash_folder is None:
        return None
    if not source.isdecimal() and len(source) < _LEAST:
        return None
    try:
        return find(source)
    except BadArgument:
        return None
