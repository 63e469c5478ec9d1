"""Compiled objects, stored under a key of all their inputs, below all other caches.

For test suites. A test gives the code under test an empty cache, so that every step runs, although
its kernels are the same as in the previous run. So only the compiler's output may be kept between
runs. Off unless UGPU_OBJECTS names a folder, which processes and checkouts may share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.state.config import config

LIMIT = 2 << 30  # bytes; the least recently used objects are deleted


def kept(make: Callable[[], bytes], by: Path, *inputs: object) -> bytes:
    """Return `make()`, or what it returned before, in this process or another, for the same
    `inputs` (compared as text) and the same content of `by`, the source file that defines how it is
    made. Errors are not kept."""
    folder = config().objects_folder
    if folder is None:
        return make()
    cache = _cache(folder)
    key = DiskCache.key(_content(by), *map(str, inputs))
    content = cache.get(key)
    if content is None:
        content = make()
        cache.put(key, content)
    return content


@functools.cache
def _cache(folder: Path) -> DiskCache:
    return DiskCache(folder, LIMIT, many=True)


@functools.cache
def _content(source: Path) -> str:
    return source.read_text(encoding="utf-8")
