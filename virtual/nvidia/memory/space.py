"""An address space as the engines use it: table walks and cached translations.

A translation stays in use until the space is invalidated, even if the tables change meanwhile. The
kernel driver invalidates after each change of a mapping.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault, Stall
from ugpu.virtual.nvidia.memory.formats import (
    KIND_GENERIC,
    KIND_PITCH,
    PEER,
    READ,
    SIZE_2M,
    SIZE_4K,
    SIZE_64K,
    VIDEO,
    WRITE,
    Format,
    Pte,
)
from ugpu.virtual.nvidia.memory.physical import VideoMemory
from ugpu.virtual.nvidia.memory.tables import PageTables
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.table import DummyPages, clear, fill, new_table

_serials = itertools.count()
SystemMemory = Callable[[int, int], tuple[int, int] | None]
_HUGE_SHIFT = 29  # from Ampere on, an entry of PDE1 may be a page of 512 MiB
_DIRECTORY_BYTES, _BIG_BYTES = 4096, 256
_SMALLER = {1 << _HUGE_SHIFT: SIZE_2M, SIZE_2M: SIZE_64K, SIZE_64K: SIZE_4K}


class Translation(NamedTuple):
    """A naturally aligned block: [virtual, virtual + size) is at `host` in this process."""

    virtual: int
    size: int
    host: int
    permissions: int


class FaultError(Exception):
    """An engine's access faulted. The engine's front end turns it into a channel error."""

    def __init__(self, fault: MmuFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class AddressSpace:
    """One set of page tables and all caches of its translations. Any thread may call.

    serial: unique number of the space. peers: other GPUs' memories by peer number. system: the host
    address of [bus address, + size), and how many bytes of it are contiguous; None if the memory
    cannot be accessed. `lock` is the GPU's.
    """

    def __init__(
        self,
        memory: VideoMemory,
        form: Format,
        lock: threading.RLock,
        peers: Callable[[int], VideoMemory | None],
        system: SystemMemory | None = None,
    ) -> None:
        self.serial = next(_serials)
        self.lock = lock
        self.form = form
        self.tables = PageTables(memory, form)
        self.walks = 0
        self.invalidations = 0
        self.frozen = False  # a planted fault: invalidations are lost
        self.replayable = False  # faults of the GPCs in it may be replayed
        self._memory = memory
        self._peers = peers
        self._system = system
        self._directory: int | None = None
        self._cache: dict[tuple[int, int], Translation] = {}
        self._native: list[NDArray[np.uint64]] = []

    @property
    def root(self) -> int:
        """Address of the top directory: the client's if it has set one, else the kernel driver's
        own."""
        return self.tables.root if self._directory is None else self._directory

    @property
    def has_directory(self) -> bool:
        """Whether a client has set a directory of its own."""
        return self._directory is not None

    def set_directory(self, address: int | None) -> None:
        """Translate by the tables below a directory in video memory, which the client writes; None
        for the kernel driver's own tables again."""
        with self.lock:
            self._directory = address
            self.invalidate()

    def invalidate(self) -> None:
        """Drop all translations, as MMU_INVALIDATE does."""
        with self.lock:
            if self.frozen:
                return
            self.invalidations += 1
            self._cache = {}
            clear(self._native)

    def close(self) -> None:
        """Drop all translations, and free the tables."""
        with self.lock:
            self.frozen = False
            self.invalidate()
            self.tables.close()

    def translate(
        self, address: int, access: FaultAccess, client: Client
    ) -> Translation | MmuFault:
        """Translate an address from the caches or by a table walk."""
        cache = self._cache
        found = (
            cache.get((21, address >> 21))
            or cache.get((16, address >> 16))
            or cache.get((12, address >> 12))
            or cache.get((_HUGE_SHIFT, address >> _HUGE_SHIFT))
        )
        if found is None:
            with self.lock:
                walked = self._walk(address, access, client)
                if isinstance(walked, MmuFault):
                    return walked
                found = walked
                shift = found.size.bit_length() - 1
                self._cache[shift, address >> shift] = found
        if access.writes and not found.permissions & WRITE:
            return MmuFault(FaultType.RO_VIOLATION, access, address, client)
        return found

    def _walk(self, address: int, access: FaultAccess, client: Client) -> Translation | MmuFault:
        self.walks += 1
        form, words = self.form, self._memory.words
        if address >> form.address_bits:
            return MmuFault(FaultType.VA_LIMIT_VIOLATION, access, address, client)
        table, inside = self.root, self._memory.size
        outside = MmuFault(FaultType.REGION_VIOLATION, access, address, client)
        if table + _DIRECTORY_BYTES > inside:
            return outside
        for shift, bits, _ in form.levels[:-1]:
            index = address >> shift & (1 << bits) - 1
            entry = int(words[table // 8 + index])
            if shift == _HUGE_SHIFT and form.is_leaf(entry):
                return self._leaf(form.parse(entry), 1 << shift, address, access, client)
            target = form.directory_target(entry)
            if target is None:
                return MmuFault(FaultType.PDE, access, address, client)
            if target + _DIRECTORY_BYTES > inside:
                return outside
            table = target
        word = table // 8 + (address >> 21 & 0xFF) * 2
        first = int(words[word])
        if form.is_leaf(first):
            return self._leaf(form.parse(first), SIZE_2M, address, access, client)
        big = form.big_target(first)
        if big is not None:
            if big + _BIG_BYTES > inside:
                return outside
            pte = form.parse(int(words[big // 8 + (address >> 16 & 0x1F)]))
            if pte is not None:
                return self._leaf(pte, 1 << 16, address, access, client)
        small = form.directory_target(int(words[word + 1]))
        if small is None:
            kind = FaultType.PDE if big is None else FaultType.PTE
            return MmuFault(kind, access, address, client)
        if small + _DIRECTORY_BYTES > inside:
            return outside
        pte = form.parse(int(words[small // 8 + (address >> 12 & 0x1FF)]))
        return self._leaf(pte, 1 << 12, address, access, client)

    def _leaf(
        self, pte: Pte | None, size: int, address: int, access: FaultAccess, client: Client
    ) -> Translation | MmuFault:
        if pte is None:
            return MmuFault(FaultType.PTE, access, address, client)
        if pte.privileged:
            return MmuFault(FaultType.PRIV_VIOLATION, access, address, client)
        if pte.kind not in (KIND_PITCH, KIND_GENERIC):
            return MmuFault(FaultType.UNSUPPORTED_KIND, access, address, client)
        host = pte.address  # a bus address is the page's address in this process
        if pte.aperture in (VIDEO, PEER):
            memory = self._memory if pte.aperture == VIDEO else self._peers(pte.peer)
            if memory is None:
                return MmuFault(FaultType.UNSUPPORTED_APERTURE, access, address, client)
            if pte.address + size > memory.size:
                return MmuFault(FaultType.REGION_VIOLATION, access, address, client)
            host = memory.base + pte.address
        elif self._system is not None:
            return self._system_leaf(pte, size, address, access, client)
        return Translation(address & -size, size, host, pte.permissions)

    def _system_leaf(
        self, pte: Pte, size: int, address: int, access: FaultAccess, client: Client
    ) -> Translation | MmuFault:
        """Translate a page of the bus: the largest part of it around `address` that is contiguous
        in this process."""
        assert self._system is not None
        part = size
        while part >= SIZE_4K:
            found = self._system(pte.address + (address & (size - 1) & -part), part)
            if found is not None and found[1] >= part:
                return Translation(address & -part, part, found[0], pte.permissions)
            part = _SMALLER.get(part, 0)
        return MmuFault(FaultType.UNSUPPORTED_APERTURE, access, address, client)

    def runs(
        self, address: int, size: int, access: FaultAccess, client: Client
    ) -> list[tuple[int, int]]:
        """Return the host pieces (address, length) of a range. Raises FaultError at the first
        address that is not mapped."""
        pieces: list[tuple[int, int]] = []
        end = address + size
        while address < end:
            found = self.translate(address, access, client)
            if isinstance(found, MmuFault):
                raise FaultError(found)
            offset = address - found.virtual
            length = min(found.size - offset, end - address)
            host = found.host + offset
            if pieces and sum(pieces[-1]) == host:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + length)
            else:
                pieces.append((host, length))
            address += length
        return pieces

    def read(self, address: int, size: int, client: Client) -> bytes:
        """Read as an engine does. Raises FaultError."""
        found = self.translate(address, FaultAccess.READ, client)
        if isinstance(found, Translation):
            offset = address - found.virtual
            if offset + size <= found.size:
                return ctypes.string_at(found.host + offset, size)
        runs = self.runs(address, size, FaultAccess.READ, client)
        return b"".join(ctypes.string_at(host, length) for host, length in runs)

    def write(self, address: int, data: bytes, client: Client) -> None:
        """Write as an engine does. Raises FaultError; then nothing has been written."""
        done = 0
        for host, length in self.runs(address, len(data), FaultAccess.WRITE, client):
            ctypes.memmove(host, data[done : done + length], length)
            done += length

    def read_word(self, address: int, size: int, client: Client) -> int:
        """Read a little-endian number."""
        return int.from_bytes(self.read(address, size, client), "little")

    def new_native(self) -> NDArray[np.uint64]:
        """Create a shader core's translation table, which invalidations clear."""
        table = new_table()
        with self.lock:
            self._native.append(table)
        return table

    def drop_native(self, tables: list[NDArray[np.uint64]]) -> None:
        """Drop the tables of threads that have ended."""
        with self.lock:
            kept = {id(table) for table in tables}
            self._native = [table for table in self._native if id(table) not in kept]


# What the MMU reports of an access of lanes. UVM gives weak atomics the rights of writes, and
# strong ones also that of atomics (uvm_hal_types.h, uvm_fault_access_type_to_prot). UNSURE: that
# strong ones are those of the system's scope; a fault of each on a board would tell.
KINDS = {
    Access.READ: FaultAccess.READ, Access.WRITE: FaultAccess.WRITE,
    Access.ATOMIC: FaultAccess.ATOMIC_STRONG, Access.ATOMIC_LOCAL: FaultAccess.ATOMIC_WEAK,
}  # fmt: skip


class GridMemory:
    """One address space as the lanes of grids use it; implements
    `virtual.shader.memory.LaneMemory`.

    The first fault of a grid is stored in `fault` and `stop` is called. The lanes then read zeros
    until they stop. stall: called with each fault before, waits while it may be replayed.
    """

    def __init__(
        self,
        space: AddressSpace,
        stop: Callable[[], None],
        stall: Callable[[MmuFault], Stall] = lambda fault: Stall.FINAL,
    ) -> None:
        self.fault: MmuFault | None = None
        self._space = space
        self._stop = stop
        self._stall = stall
        self._dummy = DummyPages()
        self._tables: list[NDArray[np.uint64]] = []

    def new_tlb(self) -> NDArray[np.uint64]:
        table = self._space.new_native()
        self._tables.append(table)
        return table

    def begin(self) -> None:
        """Start a grid: clear the fault of the previous one."""
        self.fault = None

    def close(self) -> None:
        """Drop the tables; nothing is running any more."""
        self._space.drop_native(self._tables)

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger without raising a fault; None if a byte is not mapped."""
        try:
            with self._space.lock:
                return self._space.read(address, size, Client.SM)
        except FaultError:
            return None

    def refill(self, tlb: NDArray[np.uint64], address: int, access: Access) -> int:
        wanted = KINDS[access]
        stall = Stall.RETRY
        while stall is Stall.RETRY:
            with self._space.lock:
                found = self._space.translate(address, wanted, Client.SM)
                if not isinstance(found, MmuFault):
                    readable, writable = (bool(found.permissions & x) for x in (READ, WRITE))
                    fill(tlb, address, found.virtual, found.virtual + found.size, found.host,
                         readable=readable, writable=writable)  # fmt: skip
                    return found.host + address - found.virtual
            stall = self._stall(found)
            if stall is Stall.FINAL:
                self._end(found)
        return self._dummy_address(address, access)

    def _end(self, fault: MmuFault) -> None:
        """Keep a grid's first fault, and stop the grid."""
        with self._space.lock:
            if self.fault is None:
                self.fault = fault
                self._stop()

    def _dummy_address(self, address: int, access: Access) -> int:
        """Return where an access goes that has faulted."""
        page = self._dummy.sink if KINDS[access].writes else self._dummy.zeros
        return page + (address & 0xFFF)
