"""The card's registers: who owns which offset of BAR0.

A read of a register that is not defined answers as the bus of a board does, and is counted; so is
such a write.
"""

from __future__ import annotations

import bisect
import functools
from collections import Counter
from collections.abc import Callable

UNDEFINED = 0xBADF_5040  # UNSURE: which code; 0xbadf.... is a bus error on all boards
LOCKED = 0xBADF_4100  # the privilege level mask does not allow the access
_ONES = 0xFFFF_FFFF
Read = Callable[[int], int | None]
Write = Callable[[int, int], object]


def _kept(store: dict[int, int], offset: int, start: int) -> int:
    return store.get(offset, start)


class RegisterSpace:
    """Registers by offset. unknown: accesses of registers that are not defined, counted by text.
    stuck: what registers read, by offset, whatever was written: a planted fault."""

    def __init__(self) -> None:
        self.unknown: Counter[str] = Counter()
        self.stuck: dict[int, int] = {}
        self._reads: dict[int, Callable[[], int]] = {}
        self._writes: dict[int, Callable[[int], object]] = {}
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Read, Write]] = []

    def word(
        self,
        offset: int,
        read: Callable[[], int] | int,
        write: Callable[[int], object] | None = None,
    ) -> None:
        """Define a register. read: its value, or a function; write: None if it is read-only."""
        self._reads[offset] = read if callable(read) else functools.partial(int, read)
        self._writes[offset] = write or (lambda value: None)

    def plain(self, store: dict[int, int], *offsets: int, start: int = 0) -> None:
        """Define registers that keep what was written, in `store`. start: their first value."""
        for offset in offsets:
            self._reads[offset] = functools.partial(_kept, store, offset, start)
            self._writes[offset] = functools.partial(store.__setitem__, offset)

    def range(self, start: int, size: int, read: Read, write: Write) -> None:
        """Define a block. read: called with an offset from its start, None where no register is;
        write: called with offset and value, False where none is."""
        at = bisect.bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._ranges.insert(at, (start, start + size, read, write))

    def read(self, offset: int) -> int:
        """Read a register."""
        if offset in self.stuck:
            return self.stuck[offset]
        known = self._reads.get(offset)
        if known is not None:
            return known() & _ONES
        found = self._find(offset)
        value = found[2](offset - found[0]) if found is not None else None
        if value is None:
            self.unknown[f"read {offset:#x}"] += 1
            return UNDEFINED
        return value & _ONES

    def write(self, offset: int, value: int) -> None:
        """Write a register."""
        known = self._writes.get(offset)
        if known is not None:
            known(value)
            return
        found = self._find(offset)
        if found is None or found[3](offset - found[0], value) is False:
            self.unknown[f"write {offset:#x}"] += 1

    def _find(self, offset: int) -> tuple[int, int, Read, Write] | None:
        at = bisect.bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._ranges[at][1]:
            return None
        return self._ranges[at]
