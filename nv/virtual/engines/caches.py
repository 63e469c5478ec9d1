"""What the shader cores' instruction and constant caches may still hold.

Nothing stale is ever read here, as memory is coherent. But hardware keeps what it fetched until it
is told otherwise, so a launch that finds other code or constants where it found some before, with
no invalidation in between, is a violation: on a board it may run with what was there.

Source: open-gpu-doc classes/compute/clcbc0.h, INVALIDATE_SHADER_CACHES; cl*qmd.h, INVALIDATE_* and
CONSTANT_BUFFER_INVALIDATE.
"""

from __future__ import annotations

from collections.abc import Callable

_MOST = 4096  # addresses that are remembered; the oldest go first


class CacheWatch:
    """One kind of cache of one GPU. `report` is told of each violation."""

    def __init__(self, what: str, report: Callable[[str], None]) -> None:
        self._what = what
        self._report = report
        self._epoch = 0
        self._seen: dict[tuple[int, int], tuple[int, bytes | str]] = {}

    def invalidate(self) -> None:
        """Everything was invalidated."""
        self._epoch += 1

    def fetch(self, space: int, address: int, content: bytes | str, user: str) -> None:
        """A launch uses `content` at an address of an address space, by its serial number."""
        key = (space, address)
        before = self._seen.get(key)
        if before is not None and before[0] == self._epoch and before[1] != content:
            self._report(
                f"{user}: {self._what} at {address:#x} changed since a launch fetched it, and"
                " nothing invalidated the cache"
            )
        if before is None and len(self._seen) >= _MOST:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = (self._epoch, content)

    def forget(self, space: int, address: int) -> None:
        """One bank was invalidated."""
        self._seen.pop((space, address), None)
