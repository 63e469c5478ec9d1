"""Page tables of one address space, built in the card's memory as the kernel driver builds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.virtual.nvidia.memory.formats import SIZE_2M, SIZE_4K, SIZE_64K, Format, Pte
from ugpu.virtual.nvidia.memory.physical import VideoMemory

_SMALL_BYTES, _BIG_BYTES, _DIRECTORY_BYTES = 4096, 256, 4096


@dataclass(eq=False)
class _Table:
    """The kernel driver's record of a table: its address, and its children by entry.

    level: index into the format's levels, or their number for a table of leaves. Children of PDE0
    are keyed by (index, page size).
    """

    address: int
    size: int
    level: int
    children: dict[tuple[int, int], _Table] = field(default_factory=dict)


class PageTables:
    """One tree of tables. Addresses and sizes are bytes, multiples of the page size. The owner
    locks."""

    def __init__(self, memory: VideoMemory, form: Format) -> None:
        self.form = form
        self._memory = memory
        self._root = self._new(_DIRECTORY_BYTES, 0)

    @property
    def root(self) -> int:
        """Address of the top directory in video memory, as in the instance block."""
        return self._root.address

    def map(self, virtual: int, size: int, page_size: int, first: Pte) -> None:
        """Write the leaves of [virtual, virtual + size); memory from `first` on is contiguous.

        Raises hcq.errors.OutOfMemory if a table cannot be allocated; earlier leaves stay written.
        """
        done = 0
        while done < size:
            at = virtual + done
            room = min(size - done, SIZE_2M - at % SIZE_2M)
            here = first._replace(address=first.address + done)
            if page_size == SIZE_2M:
                word, _ = self._pde0(at)
                self._memory.words[word] = self.form.leaf(here)
            else:
                table = self._leaves(at, page_size)
                index = at % SIZE_2M // page_size
                count = room // page_size
                start = table.address // 8 + index
                entries = self.form.advance(self.form.leaf(here), page_size, count)
                self._memory.words[start : start + count] = entries
            done += room

    def unmap(self, virtual: int, size: int, page_size: int) -> None:
        """Clear the leaves of [virtual, virtual + size) and free empty tables."""
        done = 0
        while done < size:
            at = virtual + done
            room = min(size - done, SIZE_2M - at % SIZE_2M)
            if page_size == SIZE_2M:
                word, _ = self._pde0(at)
                self._memory.words[word] = 0
            else:
                table = self._leaves(at, page_size)
                start = table.address // 8 + at % SIZE_2M // page_size
                self._memory.words[start : start + room // page_size] = 0
            self._prune(at, page_size)
            done += room

    def close(self) -> None:
        """Free all tables."""
        self._drop(self._root)

    def _new(self, size: int, level: int) -> _Table:
        return _Table(self._memory.allocate_table(size), size, level)

    def _drop(self, table: _Table) -> None:
        for child in table.children.values():
            self._drop(child)
        self._memory.free_table(table.address)

    def _path(self, virtual: int) -> list[_Table]:
        """Return the directories from the root to PDE0; missing ones are created."""
        table = self._root
        path = [table]
        for level in range(len(self.form.levels) - 1):
            shift, bits, _ = self.form.levels[level]
            index = virtual >> shift & (1 << bits) - 1
            child = table.children.get((index, 0))
            if child is None:
                child = table.children[index, 0] = self._new(_DIRECTORY_BYTES, level + 1)
                self._memory.words[table.address // 8 + index] = self.form.directory(child.address)
            table = child
            path.append(table)
        return path

    def _pde0(self, virtual: int) -> tuple[int, _Table]:
        """Return the index of the word in video memory where PDE0's entry for an address starts,
        and PDE0."""
        table = self._path(virtual)[-1]
        return table.address // 8 + (virtual >> 21 & 0xFF) * 2, table

    def _leaves(self, virtual: int, page_size: int) -> _Table:
        word, directory = self._pde0(virtual)
        key = (virtual >> 21 & 0xFF, page_size)
        table = directory.children.get(key)
        if table is None:
            size = _SMALL_BYTES if page_size == SIZE_4K else _BIG_BYTES
            table = directory.children[key] = self._new(size, len(self.form.levels))
            if page_size == SIZE_4K:
                self._memory.words[word + 1] = self.form.directory(table.address)
            else:
                self._memory.words[word] = self.form.big_half(table.address)
        return table

    def _prune(self, virtual: int, page_size: int) -> None:
        """Free tables that became empty on the path to `virtual`."""
        words = self._memory.words
        path = self._path(virtual)
        directory = path[-1]
        index = virtual >> 21 & 0xFF
        key = (index, page_size)
        table = directory.children.get(key)
        if table is not None:
            start = table.address // 8
            if words[start : start + table.size // 8].any():
                return
            words[directory.address // 8 + index * 2 + (page_size == SIZE_4K)] = 0
            self._drop(directory.children.pop(key))
        for level in range(len(path) - 1, 0, -1):
            table, parent = path[level], path[level - 1]
            start = table.address // 8
            if table.children or words[start : start + table.size // 8].any():
                return
            shift, bits, _ = self.form.levels[level - 1]
            index = virtual >> shift & (1 << bits) - 1
            words[parent.address // 8 + index] = 0
            self._drop(parent.children.pop((index, 0)))


def page_size_for(alignments: int) -> int | None:
    """Return the largest page size that divides all of `alignments` (OR-ed together)."""
    for size in (SIZE_2M, SIZE_64K, SIZE_4K):
        if alignments % size == 0:
            return size
    return None
