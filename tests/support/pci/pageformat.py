"""A page format for tests, and memory that tables live in: both decode for themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.paging.page_table import Level

VALID, TABLE, ADDRESS = 1, 2, 0x0000_FFFF_FFFF_F000


@dataclass
class ThreeLevels:
    """2 MB and 1 GB leaves above 4 KB pages; bit 0 valid, bit 1 table, bits 48.. the fragment."""

    levels: tuple[Level, ...] = (Level(30, 4), Level(21, 9), Level(12, 9))
    leaf_levels: tuple[int, ...] = (0, 1, 2)
    max_fragment: int = 9

    def leaf(
        self, level: int, physical: NDArray[np.uint64], flags: int, fragment: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        entries = physical | np.uint64(VALID | flags) | (fragment << np.uint64(48))
        return np.asarray(entries, np.uint64)

    def table(self, level: int, physical: int) -> int:
        return physical | VALID | TABLE

    def physical(self, level: int, entry: int) -> int:
        return entry & ADDRESS


@dataclass
class WideDirectory(ThreeLevels):
    """The same with two words for an entry of the middle level, the second one for pointers."""

    levels: tuple[Level, ...] = (Level(30, 4), Level(21, 9, words=2, table_word=1), Level(12, 9))


@dataclass
class PlainMemory:
    """Tables at addresses of our choosing; checks every access. writes counts calls of `write`,
    written entries. Where memory is not zeroed, each entry of a new table leads nowhere."""

    limit: int = 1 << 30
    tables: dict[int, NDArray[np.uint64]] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)
    next_address: int = 0x10_0000
    writes: int = 0
    written: int = 0
    zeroed: bool = True

    def allocate(self, size: int) -> int:
        if len(self.tables) >= self.limit:
            raise OutOfMemory("no more tables")
        address = self.next_address
        self.next_address += max(4096, size)
        content = 0 if self.zeroed else ADDRESS | TABLE | VALID
        self.tables[address] = np.full(size // 8, content, np.uint64)
        return address

    def free(self, physical: int) -> None:
        del self.tables[physical]
        self.freed.append(physical)

    def write(self, physical: int, entries: NDArray[np.uint64]) -> None:
        self.writes += 1
        self.written += len(entries)
        base = physical & ~0xFFF
        start = (physical - base) // 8
        table = self.tables[base]
        assert start + len(entries) <= len(table), "a write beyond its table"
        table[start : start + len(entries)] = entries

    def walk(self, root: int, page_format: ThreeLevels, va: int) -> tuple[int, int] | None:
        """Translate as the hardware would: (physical, entry) or None."""
        base = root
        for level in page_format.levels:
            index = (va >> level.shift & (1 << level.bits) - 1) * level.words
            words = self.tables[base][index : index + level.words].tolist()
            pointer = words[level.table_word]
            if pointer & VALID and pointer & TABLE:
                assert sum(map(bool, words)) == 1, "a word beside a pointer is not 0"
                base = pointer & ADDRESS
                continue
            entry, *others = words
            assert not any(others), "a word beside a leaf is not 0"
            if not entry & VALID:
                return None
            return (entry & ADDRESS) + (va & (1 << level.shift) - 1), entry
        raise AssertionError("a table below the last level")
