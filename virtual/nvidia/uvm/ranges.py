"""External ranges of a UVM address space, and the mappings in them.

A range is reserved address space. Memory of the resource manager is mapped into it piece by piece,
for one GPU or several. A new mapping replaces those that it overlaps. Source:
open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_map_external.c, uvm_va_range.c.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ugpu.hcq.errors import OutOfMemory
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.memory.formats import ATOMIC, PEER, READ, SYSTEM, VIDEO, WRITE, Pte
from ugpu.virtual.nvidia.memory.physical import PAGE, Backing
from ugpu.virtual.nvidia.memory.tables import page_size_for
from ugpu.virtual.nvidia.rm.objects import DriverState
from ugpu.virtual.nvidia.rm.resources import VaSpace
from ugpu.virtual.nvidia.status import RmError, Status, require


@dataclass(eq=False)
class _Mapping:
    """A piece of a range as mapped for one GPU."""

    base: int
    length: int
    page_size: int
    backing: Backing
    gpu: VirtualGpu

    @property
    def end(self) -> int:
        return self.base + self.length


@dataclass(eq=False)
class Range:
    """Reserved addresses. mappings: by the UUID of the GPU that they are for. context: whether it
    contains a context buffer, which calls cannot name."""

    base: int
    length: int
    mappings: dict[bytes, list[_Mapping]] = field(default_factory=dict)
    context: bool = False


class ExternalRanges:
    """All external ranges of one UVM file. Sizes and addresses are bytes.

    spaces, peers: those of the file: by UUID, and pairs of UUIDs with access to each other.
    """

    def __init__(
        self, machine: DriverState, spaces: Mapping[bytes, VaSpace], peers: Set[frozenset[bytes]]
    ) -> None:
        self._machine = machine
        self._spaces = spaces
        self._peers = peers
        self._bases: list[int] = []
        self._ranges: dict[int, Range] = {}

    def create(self, base: int, length: int) -> None:
        """Reserve addresses."""
        _check(base, length)
        index = bisect_right(self._bases, base + length - 1) - 1
        if index >= 0:
            below = self._ranges[self._bases[index]]
            if below.base + below.length > base:
                raise RmError(Status.UVM_ADDRESS_IN_USE, f"{base:#x} overlaps {below.base:#x}")
        insort(self._bases, base)
        self._ranges[base] = Range(base, length)

    def place(self, base: int, end: int, length: int, align: int) -> Range:
        """Reserve the first free range in [base, end) for a context buffer."""
        start = -(-base // align) * align
        for taken in self._bases:
            found = self._ranges[taken]
            if taken + found.length > start and taken < start + length:
                start = -(-(taken + found.length) // align) * align
        if start + length > end:
            raise RmError(
                Status.INVALID_ADDRESS,
                f"[{base:#x}, {end:#x}) has no room for a context buffer of {length} bytes",
            )
        insort(self._bases, start)
        made = self._ranges[start] = Range(start, length, context=True)
        return made

    def drop(self, found: Range) -> None:
        """Free the addresses of a range."""
        self._bases.remove(found.base)
        del self._ranges[found.base]

    def containing(self, base: int, length: int) -> Range:
        """Return the range that contains all of [base, base + length)."""
        _check(base, length)
        index = bisect_right(self._bases, base) - 1
        if index >= 0:
            found = self._ranges[self._bases[index]]
            if base + length <= found.base + found.length and not found.context:
                return found
        raise RmError(
            Status.INVALID_ADDRESS,
            f"[{base:#x}, {base + length:#x}) is not inside an external range",
        )

    def map(
        self,
        where: Range,
        uuid: bytes,
        gpu: VirtualGpu,
        backing: Backing,
        base: int,
        length: int,
        offset: int,
        *,
        read_only: bool,
        atomic: bool,
        uncached: bool,
    ) -> None:
        """Map memory for a GPU; earlier mappings there are unmapped."""
        require(offset + length <= backing.size, Status.INVALID_LIMIT, "past the end of the memory")
        owner = backing.gpu
        aperture, peer = SYSTEM, 0
        if owner is not None:
            aperture = VIDEO
            if owner != gpu.index:
                pair = frozenset((uuid, self._machine.gpus[owner].uuid))
                require(pair in self._peers, Status.INVALID_DEVICE, "no peer access")
                aperture, peer = PEER, owner
        page_size = page_size_for(backing.page_size | base | length | offset)
        if page_size is None:
            raise RmError(
                Status.INVALID_ADDRESS,
                f"address and offset must be multiples of 4 KiB, got {base:#x} and {offset:#x}",
            )
        self.unmap(where, uuid, base, length)
        permissions = READ if read_only or backing.read_only else READ | WRITE
        if atomic and permissions & WRITE:
            permissions |= ATOMIC
        pte = Pte(
            aperture,
            backing.physical + offset,
            permissions,
            not uncached,
            False,
            backing.kind,
            peer,
        )
        space = self._spaces[uuid].space
        try:
            with gpu.lock:
                space.tables.map(base, length, page_size, pte)
        except OutOfMemory as error:
            raise RmError(Status.NO_MEMORY, str(error)) from error
        space.invalidate()
        backing.users += 1
        pieces = where.mappings.setdefault(uuid, [])
        insort(
            pieces, _Mapping(base, length, page_size, backing, gpu), key=lambda piece: piece.base
        )

    def unmap(self, where: Range, uuid: bytes, base: int, length: int) -> None:
        """Unmap [base, base + length) for a GPU; mappings that extend beyond it are split."""
        end = base + length
        kept: list[_Mapping] = []
        found = where.mappings.get(uuid, [])
        touched = [piece for piece in found if piece.base < end and base < piece.end]
        if not touched:
            return
        for piece in touched:
            for edge in (base, end):
                if piece.base < edge < piece.end and edge % piece.page_size:
                    raise RmError(
                        Status.INVALID_ADDRESS,
                        f"{edge:#x} splits a page of {piece.page_size} bytes",
                    )
        space = self._spaces[uuid].space
        for piece in found:
            if piece not in touched:
                kept.append(piece)
                continue
            first, last = max(base, piece.base), min(end, piece.end)
            with piece.gpu.lock:
                space.tables.unmap(first, last - first, piece.page_size)
            for start, stop in ((piece.base, first), (last, piece.end)):
                if start < stop:
                    piece.backing.users += 1
                    rest = _Mapping(start, stop - start, piece.page_size, piece.backing, piece.gpu)
                    kept.append(rest)
        where.mappings[uuid] = sorted(kept, key=lambda piece: piece.base)
        space.invalidate()
        for piece in touched:
            self._machine.free_backing(piece.backing)

    def free(self, base: int, length: int | None) -> None:
        """Free a whole range. Branches up to 580 also pass its length."""
        found = self._ranges.get(base)
        if found is None or found.context:
            raise RmError(Status.INVALID_ADDRESS, f"no range starts at {base:#x}")
        if length is not None and length != found.length:
            raise RmError(
                Status.INVALID_ADDRESS,
                f"the length must be {found.length} (the whole range), got {length}",
            )
        for uuid in list(found.mappings):
            self.unmap(found, uuid, found.base, found.length)
        self.drop(found)

    def unmap_gpu(self, uuid: bytes) -> None:
        """Remove all mappings of a GPU whose space is removed."""
        for found in self._ranges.values():
            if uuid in found.mappings:
                self.unmap(found, uuid, found.base, found.length)
                del found.mappings[uuid]

    def unmap_peers(self, pair: frozenset[bytes]) -> None:
        """Remove mappings between two GPUs that no longer have peer access."""
        for found in self._ranges.values():
            for uuid in pair & set(found.mappings):
                for piece in list(found.mappings[uuid]):
                    owner = piece.backing.gpu
                    if owner is not None and owner != piece.gpu.index:
                        self.unmap(found, uuid, piece.base, piece.length)

    def close(self) -> None:
        """Free everything except context buffers, which are freed with their channels."""
        for base, found in list(self._ranges.items()):
            if not found.context:
                self.free(base, None)

    def __len__(self) -> int:
        return sum(not found.context for found in self._ranges.values())


def _check(base: int, length: int) -> None:
    bad = not base or not length or base % PAGE or length % PAGE or base + length >= 1 << 64
    require(not bad, Status.INVALID_ADDRESS, f"{base:#x}, {length} bytes: multiples of 4 KiB")
