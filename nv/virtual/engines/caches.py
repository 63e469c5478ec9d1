"""Possible content of the shader cores' caches: code, constants and global data.

Nothing stale is ever read here, as memory is coherent. But hardware keeps what it fetched until it
is told otherwise, so a launch that finds other code or constants where it found some before, with
no invalidation in between, is a violation: on a board it may run with what was there.

Source: open-gpu-doc classes/compute/clcbc0.h, INVALIDATE_SHADER_CACHES; cl*qmd.h, INVALIDATE_* and
CONSTANT_BUFFER_INVALIDATE.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

MOST = 4096


class CacheWatch:
    """One kind of cache of one GPU. `report` is told of each violation. most: addresses that are
    remembered; the oldest go first. Spaces are any distinguishable objects."""

    def __init__(self, what: str, report: Callable[[str], None], most: int = MOST) -> None:
        self._what = what
        self._report = report
        self._most = most
        self._epoch = 0
        self._seen: dict[tuple[Hashable, int], tuple[int, bytes | str | int]] = {}

    def invalidate(self) -> None:
        """Everything was invalidated."""
        self._epoch += 1

    def fetch(self, space: Hashable, address: int, content: bytes | str | int, user: str) -> None:
        """A launch uses `content` (or what stands for it) at an address of a space."""
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
        """One bank was invalidated."""
        self._seen.pop((space, address), None)
