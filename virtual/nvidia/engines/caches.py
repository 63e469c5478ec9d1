"""Possible content of the shader cores' caches: code, constants and global data.

Memory is coherent here, so stale data is never read. Hardware, however, keeps fetched data until it
is invalidated. If a launch finds other code or constants where an earlier launch found some, with
no invalidation in between, that is a violation: a board may run with the old content.

Source: open-gpu-doc classes/compute/clcbc0.h, INVALIDATE_SHADER_CACHES; cl*qmd.h, INVALIDATE_* and
CONSTANT_BUFFER_INVALIDATE.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

MOST = 4096


class CacheWatch:
    """One kind of cache of one GPU. `report` is called for each violation. most: number of
    addresses that are recorded; the oldest are dropped first. Spaces are any hashable objects."""

    def __init__(self, what: str, report: Callable[[str], None], most: int = MOST) -> None:
        self._what = what
        self._report = report
        self._most = most
        self._epoch = 0
        self._seen: dict[tuple[Hashable, int], tuple[int, bytes | str | int]] = {}

    def invalidate(self) -> None:
        """Record that everything was invalidated."""
        self._epoch += 1

    def fetch(self, space: Hashable, address: int, content: bytes | str | int, user: str) -> None:
        """Record that a launch uses `content`, or its digest, at an address of a space."""
        key = (space, address)
        before = self._seen.get(key)
        if before is not None and before[0] == self._epoch and before[1] != content:
            self._report(
                f"{user}: {self._what} at {address:#x} changed since a launch fetched it, and"
                " nothing invalidated the cache"
            )
        if before is None and len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (self._epoch, content)

    def forget(self, space: Hashable, address: int) -> None:
        """Record that one bank was invalidated."""
        self._seen.pop((space, address), None)
