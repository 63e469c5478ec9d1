"""The values of a cache that were used last, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by key; beyond that, those are dropped that were not used for longest.
    One thread at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: dict[K, V] = {}  # in the order of use

    def get(self, key: K) -> V | None:
        """Return a value, which counts as its use; None if it is not kept."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self.most:
            del self._values[next(iter(self._values))]

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)
