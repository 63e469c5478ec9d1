"""Page tables of any format: whole runs of entries written at once, from a shadow on the host.

The format defines how many levels there are, which levels may have leaves and how entries look. The
memory defines where tables live and how entries are written. Nothing is read back over the bus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument

Pages = NDArray[np.uint64]


@dataclass(frozen=True)
class Level:
    """One level of a page table.

    Attributes:
        shift: an entry covers 1 << shift bytes.
        bits: a table has 1 << bits entries.
        words: 64-bit words of an entry, a leaf in the first one; words that an entry does not use
            are 0.
        table_word: index of the word that points to a table.
    """

    shift: int
    bits: int
    words: int = 1
    table_word: int = 0


class PageFormat(Protocol):
    """Format of page-table entries. Arrays in, arrays out: `leaf` encodes whole runs.

    Attributes:
        levels: the root first.
        leaf_levels: levels that may have leaves; the last level is one of them.
        max_fragment: largest fragment, log2 of pages of the last level; 0 if there are none.
    """

    levels: tuple[Level, ...]
    leaf_levels: tuple[int, ...]
    max_fragment: int

    def leaf(self, level: int, physical: Pages, flags: int, fragment: Pages) -> Pages:
        """Return entries for pages at `physical` (bytes); fragment: log2 of pages of the last
        level."""
        ...

    def table(self, level: int, physical: int) -> int:
        """Return the entry of level `level` that points to a table of level + 1 at `physical`."""
        ...

    def physical(self, level: int, entry: int) -> int:
        """Return the physical address that the leaf `entry` maps to."""
        ...


class TableMemory(Protocol):
    """Memory for tables. Physical addresses are whatever the format's entries hold.

    Attributes:
        zeroed: whether `allocate` returns zeroed memory. If not, a table is written only as far as
            addresses were ever mapped, and the device must not translate addresses from
            `PageTable.reach` on. This is for memory where writing an entry is expensive, and whole
            tables would be most of what is written.
    """

    zeroed: bool

    def allocate(self, size: int) -> int:
        """Allocate memory for a table, naturally aligned. OutOfMemory when exhausted."""
        ...

    def free(self, physical: int) -> None: ...
    def write(self, physical: int, entries: Pages) -> None: ...


@dataclass(frozen=True)
class Translation:
    """Result of translating an address.

    Attributes:
        physical: belongs to the address itself.
        size: bytes that the leaf covers.
        level: of the leaf.
        entry: the leaf, as stored.
    """

    physical: int
    size: int
    level: int
    entry: int


class _Table:
    """One table: its shadow, and its child tables by index. base: the address that its first entry
    covers. used: number of nonzero entries. valid: number of entries, from the first on, that
    memory has."""

    def __init__(self, level: int, base: int, physical: int, entries: int, valid: int) -> None:
        self.level = level
        self.base = base
        self.physical = physical
        self.valid = valid
        self.shadow = np.zeros(entries, np.uint64)
        self.children: dict[int, _Table] = {}
        self.used = 0
        self.linked: tuple[int, int] | None = None  # entries to write at the end of `map`

    def count(self) -> None:
        """Count the entries in use from scratch: an incremental count would be wrong if an
        exception occurred between an entry and its count."""
        self.used = int(np.count_nonzero(self.shadow))


class PageTable:
    """One address space. `root` is the physical address of its root table; `reach` is the end of
    the addresses that the device may translate.

    Not thread-safe. After `map` and `unmap` the caller invalidates the device's cached
    translations, before it uses the addresses or maps anything else: tables that `unmap` emptied
    are freed immediately.
    """

    def __init__(self, page_format: PageFormat, memory: TableMemory) -> None:
        self.format = page_format
        self.memory = memory
        self.page_shift = page_format.levels[-1].shift
        self.size = 1 << (page_format.levels[0].shift + page_format.levels[0].bits)
        self.tables = 0
        self.reach = self.size if memory.zeroed else 0
        self._linked: list[_Table] = []  # tables with new pointers that `map` has yet to write
        self._short: list[_Table] = []  # tables that memory contains only in part
        self._root = self._new_table(0, 0)
        self.root = self._root.physical

    def map(
        self, va: int, segments: Sequence[tuple[int, int]] | NDArray[np.uint64], flags: int
    ) -> None:
        """Map [va, va + total) to `segments`, (physical, size) each, as an [n, 2] array or tuples.

        All values are bytes, multiples of the smallest page. Large pages and fragments are used
        wherever both addresses are aligned. BadArgument if any part is mapped already; any other
        exception leaves nothing mapped.
        """
        runs = np.asarray(segments, np.uint64).reshape(-1, 2)
        sizes = runs[:, 1]
        page_mask = np.uint64((1 << self.page_shift) - 1)
        if va & int(page_mask) or (runs & page_mask).any() or not sizes.all():
            raise BadArgument("not a multiple of the page size", va=va, page=1 << self.page_shift)
        total = int(sizes.sum())
        self._check_range(va, total)
        for table, low, high, _ in self._spans(va, total):
            if self._occupied(table, low, high):
                raise BadArgument("the range is already mapped", va=va, size=total)
        try:
            self._map_runs(va, runs, flags)
            self._extend(va + total)
            self._flush_links()
        except BaseException:
            self.clear(va, total)
            raise

    def unmap(self, va: int, size: int) -> None:
        """Unmap [va, va + size); BadArgument unless all of it is mapped, by leaves within it."""
        page_mask = (1 << self.page_shift) - 1
        if va & page_mask or size & page_mask or size <= 0:
            raise BadArgument("not a multiple of the page size", va=va, size=size)
        self._check_range(va, size)
        for table, low, high, start in self._spans(va, size):
            shift = self.format.levels[table.level].shift
            inside = va <= start and start + ((high - low) << shift) <= va + size
            if not inside or not (table.shadow[low:high] != 0).all():
                raise BadArgument(
                    "the range is not mapped, or only partly mapped", va=start, size=size
                )
        self.clear(va, size)

    def clear(self, va: int, size: int) -> None:
        """Unmap every mapped part of [va, va + size), by leaves within it, including what an
        exception left behind."""
        for table, low, high, _ in list(self._spans(va, size)):
            if table.shadow[low:high].any():
                table.shadow[low:high] = 0
                self._store(table, low, high)
            table.count()
        self._prune(self._root, va, size, 0)
        self._flush_links()

    def lookup(self, va: int) -> Translation | None:
        """Walk the shadow as the device would walk the tables; None if the address is not
        mapped."""
        if not 0 <= va < self.size:
            return None
        table = self._root
        while True:
            level = self.format.levels[table.level]
            index = (va >> level.shift) & ((1 << level.bits) - 1)
            entry = int(table.shadow[index])
            if index in table.children:
                table = table.children[index]
                continue
            if entry == 0:
                return None
            offset = va & ((1 << level.shift) - 1)
            physical = self.format.physical(table.level, entry) + offset
            return Translation(physical, 1 << level.shift, table.level, entry)

    def path(self, va: int) -> list[int]:
        """Return the physical addresses of the tables that a walk for `va` goes through, the root
        first; tables below the last one do not exist."""
        table, found = self._root, [self._root.physical]
        while True:
            level = self.format.levels[table.level]
            below = table.children.get((va >> level.shift) & ((1 << level.bits) - 1))
            if below is None:
                return found
            table = below
            found.append(table.physical)

    def rewrite(self, only: Collection[int] | None = None) -> None:
        """Write tables again from the shadow, child tables before parents: all of them, since the
        device has lost its memory, or those at the physical addresses `only` that are still in
        use."""
        found: list[_Table] = []
        pending = [self._root]
        while pending:
            table = pending.pop()
            found.append(table)
            pending.extend(table.children.values())
        for table in reversed(found):
            if only is None or table.physical in only:
                self._store(table, 0, table.valid)

    def close(self) -> None:
        """Free all tables, including the root."""
        self._free(self._root)

    def __repr__(self) -> str:
        return f"<PageTable root {self.root:#x}, {self.tables} tables>"

    # ---- internals ---------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        return len(self.format.levels) - 1

    def _check_range(self, va: int, size: int) -> None:
        if va < 0 or va + size > self.size:
            raise BadArgument("outside the address space", va=va, size=size, limit=self.size)

    def _map_runs(self, va: int, runs: NDArray[np.uint64], flags: int) -> None:
        """Join neighbouring runs; map each long run by itself, and stretches of short runs
        together."""
        joined = runs[1:, 0] != runs[:-1, 0] + runs[:-1, 1]
        first = np.flatnonzero(np.concatenate([[True], joined])) if len(runs) else np.zeros(0, int)
        if not len(first):
            return
        sizes = np.add.reduceat(runs[:, 1], first)
        physical = runs[first, 0]
        starts = np.uint64(va) + np.cumsum(sizes) - sizes
        upper = [self.format.levels[level].shift for level in self.format.leaf_levels]
        worthwhile = 1 << sorted(upper)[1] if len(upper) > 1 else self.size
        long = sizes >= worthwhile
        edges = np.flatnonzero(np.diff(long.astype(np.int8), prepend=-1, append=-1) != 0)
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if not long[begin]:
                self._map_pages(starts[begin:end], physical[begin:end], sizes[begin:end], flags)
                continue
            for number in range(begin, end):
                self._map_long(
                    int(starts[number]), int(physical[number]), int(sizes[number]), flags
                )

    def _map_long(self, va: int, physical: int, size: int, flags: int) -> None:
        """Map one contiguous run with the largest leaves that fit, growing and shrinking."""
        shifts = sorted(
            (self.format.levels[level].shift, level) for level in self.format.leaf_levels
        )
        end = va + size
        while va < end:
            usable = [
                (shift, level)
                for shift, level in shifts
                if not (va ^ physical) & ((1 << shift) - 1)
            ]
            shift, level = max(
                (pair for pair in usable if self._fits(va, end, pair[0])), default=shifts[0]
            )
            stop = end >> shift << shift
            for larger, _ in usable:  # up to where a larger leaf can take over
                boundary = -(-va >> larger) << larger
                if larger > shift and self._fits(boundary, end, larger):
                    stop = min(stop, boundary)
            count = (stop - va) >> shift
            step = np.arange(count, dtype=np.uint64) << np.uint64(shift)
            one = np.array([va], np.uint64), np.array([physical], np.uint64)
            fragment = self._fragments(*one, np.array([stop - va], np.uint64), shift)
            self._write(level, va, np.uint64(physical) + step, flags, fragment)
            va, physical = va + (count << shift), physical + (count << shift)

    @staticmethod
    def _fits(va: int, end: int, shift: int) -> bool:
        return not va & ((1 << shift) - 1) and va + (1 << shift) <= end

    def _map_pages(self, va: Pages, physical: Pages, sizes: Pages, flags: int) -> None:
        """Map runs that follow each other in virtual addresses with pages of the last level."""
        shift = np.uint64(self.page_shift)
        counts = (sizes >> shift).astype(np.int64)
        first = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first, counts)
        pages = np.repeat(physical, counts) + (within.astype(np.uint64) << shift)
        fragment = self._fragments(va, physical, sizes, self.page_shift)
        self._write(self._last, int(va[0]), pages, flags, fragment)

    def _fragments(self, va: Pages, physical: Pages, sizes: Pages, shift: int) -> Pages:
        """Return for each leaf of these runs the log2 of the naturally aligned block of pages it
        belongs to.

        A block lies within its run, and begins at a multiple of its size on both sides.
        """
        width = np.uint64(shift)
        first, last = va >> width, (va + sizes) >> width
        differ = first ^ (physical >> width)
        base = min(shift - self.page_shift, self.format.max_fragment)
        fragments = np.full(int((last - first).sum()), base, np.uint64)
        origin = first[0]
        for order in range(1, self.format.max_fragment - base + 1):
            order_mask = np.uint64((1 << order) - 1)
            low = (first + order_mask) & ~order_mask
            high = last & ~order_mask
            blocks = (differ & order_mask == 0) & (low < high)
            if not blocks.any():
                break
            value = base + order
            if len(first) == 1:
                fragments[int(low[0] - origin) : int(high[0] - origin)] = value
                continue
            edge = np.zeros(len(fragments) + 1, np.int32)
            edge[(low[blocks] - origin).astype(np.int64)] += 1
            edge[(high[blocks] - origin).astype(np.int64)] -= 1
            fragments[np.cumsum(edge[:-1]) > 0] = value
        return fragments

    def _write(self, level: int, va: int, physical: Pages, flags: int, fragment: Pages) -> None:
        """Write a run of leaves of one level, table by table."""
        entries = self.format.leaf(level, physical, flags, fragment)
        shape = self.format.levels[level]
        done = 0
        while done < len(entries):
            at = va + (done << shape.shift)
            table = self._descend(at, level)
            low = (at >> shape.shift) & ((1 << shape.bits) - 1)
            count = min(len(entries) - done, (1 << shape.bits) - low)
            part = entries[done : done + count]
            table.shadow[low : low + count] = part
            table.count()
            self._store(table, low, low + count)
            done += count

    def _store(self, table: _Table, low: int, high: int) -> None:
        """Write entries to memory, except for those that `_extend` has yet to write."""
        high = min(high, table.valid)
        if low < high:
            self._put(table, low, high)

    def _put(self, table: _Table, low: int, high: int) -> None:
        """Write entries to memory."""
        level, entries = self.format.levels[table.level], table.shadow[low:high]
        if level.words > 1:
            wide = np.zeros((high - low, level.words), np.uint64)
            wide[:, 0] = entries
            for index in [index for index in table.children if low <= index < high]:
                wide[index - low] = 0
                wide[index - low, level.table_word] = table.shadow[index]
            entries = wide.reshape(-1)
        self.memory.write(table.physical + 8 * level.words * low, entries)

    def _extend(self, end: int) -> None:
        """Write tables as far as addresses below `end` need them, child tables before parents."""
        end = max(end, self.reach)
        for table in sorted(self._short, key=lambda table: -table.level):
            span = 1 << self.format.levels[table.level].shift
            needed = min(len(table.shadow), max(0, -((table.base - end) // span)))
            if table.valid < needed:
                self._put(table, table.valid, needed)
                table.valid = needed
        self._short = [table for table in self._short if table.valid < len(table.shadow)]
        self.reach = end

    def _descend(self, va: int, level: int) -> _Table:
        """Return the table of `level` that covers `va`; make it if it is missing."""
        table = self._root
        while table.level < level:
            shape = self.format.levels[table.level]
            index = (va >> shape.shift) & ((1 << shape.bits) - 1)
            child = table.children.get(index)
            if child is None:
                child = table.children[index] = self._new_table(
                    table.level + 1, table.base + (index << shape.shift)
                )
                table.shadow[index] = self.format.table(table.level, child.physical)
                table.count()
                if table.linked is None:
                    self._linked.append(table)
                low, high = table.linked or (index, index + 1)
                table.linked = min(low, index), max(high, index + 1)
            table = child
        return table

    def _flush_links(self) -> None:
        """Write new pointers to tables, child tables before parents: a table is complete before it
        can be reached."""
        for table in sorted(self._linked, key=lambda table: -table.level):
            if table.linked is not None:
                self._store(table, *table.linked)
                table.linked = None
        self._linked.clear()

    def _spans(self, va: int, size: int) -> Iterator[tuple[_Table, int, int, int]]:
        """Yield the entries that cover [va, va + size) as (table, low, high, va of low), down to
        the levels where tables end. Entries that point to a table are not yielded; their tables are
        visited."""
        end = va + size
        stack = [(self._root, 0)]
        while stack:
            table, origin = stack.pop()
            shape = self.format.levels[table.level]
            low = max(0, va - origin) >> shape.shift
            high = min(1 << shape.bits, -(-(end - origin) >> shape.shift))
            below = sorted(index for index in table.children if low <= index < high)
            for index in reversed(below):
                stack.append((table.children[index], origin + (index << shape.shift)))
            for start, stop in zip([low, *(i + 1 for i in below)], [*below, high], strict=True):
                if start < stop:
                    yield table, start, stop, origin + (start << shape.shift)

    @staticmethod
    def _occupied(table: _Table, low: int, high: int) -> bool:
        return bool(table.used) and bool(table.shadow[low:high].any())

    def _prune(self, table: _Table, va: int, size: int, origin: int) -> None:
        shape = self.format.levels[table.level]
        low = max(0, va - origin) >> shape.shift
        high = -(-(va + size - origin) >> shape.shift)
        for index in [index for index in table.children if low <= index < high]:
            child = table.children[index]
            self._prune(child, va, size, origin + (index << shape.shift))
            if child.used:
                continue
            del table.children[index]
            table.shadow[index] = 0
            table.count()
            self._store(table, index, index + 1)
            self._free(child)

    def _new_table(self, level: int, base: int) -> _Table:
        shape = self.format.levels[level]
        entries = 1 << shape.bits
        physical = 0
        try:
            physical = self.memory.allocate(8 * shape.words * entries)
            table = _Table(level, base, physical, entries, entries if self.memory.zeroed else 0)
            if not self.memory.zeroed:
                self._short.append(table)
            self.tables += 1
            return table
        except BaseException:
            if physical:
                self.memory.free(physical)
            raise

    def _free(self, table: _Table) -> None:
        for child in table.children.values():
            self._free(child)
        table.children.clear()
        table.linked = None
        self._short = [other for other in self._short if other is not table]
        self.memory.free(table.physical)
        self.tables -= 1
