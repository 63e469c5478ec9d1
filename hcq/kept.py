"""Compiled objects, stored under a key of all their inputs, below all other caches.

For test suites. A test gives what it tests an empty cache, so that it sees each step happen, and
its kernels are those of the run before: the compiler's answer may then be remembered, and nothing
else. Off unless UGPU_OBJECTS names a folder, which processes and checkouts may share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from hcq.config import config
from hcq.diskcache import DiskCache

LIMIT = 2 << 30  # bytes; what has not been used for longest goes


def kept(make: Callable[[], bytes], by: Path, *inputs: object) -> bytes:
    """Return `make()`, or what it returned before: in this process or another, for the same
    `inputs` (compared as text) and the same content of `by`, the source file that says how it is
    made. Errors are not kept."""
    folder = config().objects_folder
    if folder is None:
        return make()
    cache = _cache(folder)
    key = DiskCache.key(_content(by), *map(str, inputs))
    found = cache.get(key)
    if found is None:
        found = make()
        cache.put(key, found)
    return found


@functools.cache
def _cache(folder: Path) -> DiskCache:
    return DiskCache(folder, LIMIT, many=True)


@functools.cache
def _content(source: Path) -> str:
    return source.read_text(encoding="utf-8")
