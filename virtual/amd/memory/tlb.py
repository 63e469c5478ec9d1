"""Translation caches of a hub: entries stay, right or wrong, until they are invalidated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader.table import clear, new_table

READ, WRITE, EXECUTE = 1, 2, 4  # permission bits of an entry


class Entry(NamedTuple):
    """A naturally aligned block of 2^shift bytes, translated by one page table entry.

    physical: start address of the block, at least page-aligned; negative where a fragment claims a
    range that begins before the start of memory.
    """

    virtual: int
    shift: int
    physical: int
    system: bool
    permissions: int


class EntryCache:
    """Entries of one VMID, of any block size; holds at most `capacity`, dropping the oldest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: dict[tuple[int, int], Entry] = {}
        self._shifts: list[int] = []

    def find(self, address: int) -> Entry | None:
        """Look up an address, trying larger blocks first."""
        for shift in self._shifts:
            entry = self._entries.get((shift, address >> shift))
            if entry is not None:
                return entry
        return None

    def add(self, entry: Entry) -> None:
        """Add an entry, dropping the oldest if the cache is full."""
        if entry.shift not in self._shifts:
            self._shifts.append(entry.shift)
            self._shifts.sort(reverse=True)
        if len(self._entries) >= self._capacity:
            del self._entries[next(iter(self._entries))]
        self._entries[entry.shift, entry.virtual >> entry.shift] = entry

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self._shifts.clear()


class Caches:
    """All caches of a hub: L1 per client, L2 and directories per VMID, and the shader cores'.

    native_epoch: how often entries of the shader cores were dropped; what was translated for them
    since the last change is still valid.
    """

    L1_CAPACITY = 64
    L2_CAPACITY = 8192

    def __init__(self) -> None:
        self._l1: dict[int, dict[int, EntryCache]] = {}  # VMID -> client -> cache
        self._l2: dict[int, EntryCache] = {}
        self._directories: dict[int, dict[tuple[int, int], int]] = {}
        self._native: dict[int, list[NDArray[np.uint64]]] = {}
        self.native_epoch = 0

    def l1(self, vmid: int, client: int) -> EntryCache:
        """Return one client's own cache."""
        clients = self._l1.setdefault(vmid, {})
        cache = clients.get(client)
        if cache is None:
            cache = clients[client] = EntryCache(self.L1_CAPACITY)
        return cache

    def l2(self, vmid: int) -> EntryCache:
        """Return the cache that all clients share."""
        cache = self._l2.get(vmid)
        if cache is None:
            cache = self._l2[vmid] = EntryCache(self.L2_CAPACITY)
        return cache

    def directories(self, vmid: int) -> dict[tuple[int, int], int]:
        """Return the directory entries by (level, page number >> log2 of pages per entry)."""
        return self._directories.setdefault(vmid, {})

    def new_native(self, vmid: int) -> NDArray[np.uint64]:
        """Create a shader core's table; see virtual.amd.shader. It counts as an L1."""
        table = new_table()
        self._native.setdefault(vmid, []).append(table)
        return table

    def invalidate(self, vmid: int, *, l1: bool, l2: bool, levels: frozenset[int]) -> None:
        """Drop a VMID's entries from the L1s, from L2 and from the given directory levels."""
        if l1:
            self._l1.pop(vmid, None)
            self.native_epoch += 1
            clear(self._native.get(vmid, ()))
        if l2:
            self._l2.pop(vmid, None)
        if levels:
            kept = self._directories.get(vmid, {})
            for key in [key for key in kept if key[0] in levels]:
                del kept[key]

    def clear(self, *, l1: bool = True, l2: bool = True) -> None:
        """Drop the entries of all VMIDs from the L1s, and from L2 and the directories."""
        for vmid in range(16):
            self.invalidate(vmid, l1=l1, l2=l2, levels=frozenset((1, 2, 3)) if l2 else frozenset())

    def revoke_native(self) -> None:
        """Drop the shader cores' entries, because host memory behind them is going away."""
        self.native_epoch += 1
        for tables in self._native.values():
            clear(tables)
