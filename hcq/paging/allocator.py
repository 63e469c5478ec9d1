"""Allocation of address ranges: which ranges are taken, and which are free."""

from __future__ import annotations

from bisect import bisect_left

from ugpu.hcq.errors import BadArgument, OutOfMemory


class RangeAllocator:
    """Allocates aligned ranges of [base, base + size), lowest address first.

    Sizes and addresses are bytes (or any one unit); every range is a multiple of `granule`, a power
    of two. Freed neighbours join. Not thread-safe: the owner's lock protects it.
    """

    def __init__(self, base: int, size: int, granule: int = 1, *, name: str = "range") -> None:
        if granule <= 0 or granule & (granule - 1):
            raise BadArgument("granule must be a power of two", granule=granule)
        if base < 0 or size < 0 or base % granule or size % granule:
            raise BadArgument("not a multiple of the granule", base=base, size=size)
        self.base = base
        self.size = size
        self.granule = granule
        self.name = name
        # Free ranges (start, end) by ascending address; two neighbours never touch. They change by
        # one assignment, so that an exception at any point (Ctrl-C) leaves them consistent.
        self._free = [(base, base + size)] if size else []
        self._taken: dict[int, tuple[int, object]] = {}  # size and owner by address

    def allocate(self, size: int, align: int = 1, owner: object = None, *, least: int = 0) -> int:
        """Allocate `size` (rounded up to the granule) at a multiple of `align`, a power of two.

        Returns the address, at least `least`; OutOfMemory if no free range fits. owner: see `free`.
        """
        if size <= 0:
            raise BadArgument("size must be positive", size=size)
        if align <= 0 or align & (align - 1):
            raise BadArgument("alignment must be a power of two", align=align)
        need = -(-size // self.granule) * self.granule
        align = max(align, self.granule)
        for index, (start, end) in enumerate(self._free):
            address = -(-max(start, least) // align) * align
            if address + need <= end:
                try:
                    self._take(index, address, need, owner)
                    return address
                except BaseException:
                    self._give_back(address)
                    raise
        raise OutOfMemory(
            f"{self.name}: no free range of {need} bytes",
            align=align,
            free=self.free_size,
            largest=self.largest,
        )

    def reserve(self, address: int, size: int) -> None:
        """Take exactly [address, address + size), rounded outwards; BadArgument unless all of it is
        free."""
        start = address // self.granule * self.granule
        end = -(-(address + size) // self.granule) * self.granule
        index = bisect_left(self._free, (start + 1, 0)) - 1
        if size <= 0 or index < 0 or self._free[index][1] < end:
            raise BadArgument(
                f"{self.name}: the range is already allocated", address=address, size=size
            )
        self._take(index, start, end - start, None)

    def free(self, address: int, owner: object = None) -> None:
        """Free the range that starts at `address`; BadArgument if none does.

        owner: the object that allocated it. With an owner, freeing twice has no effect, even if
        another owner has taken the range meanwhile: a release that an exception interrupted can be
        repeated.
        """
        if owner is not None and not self.owns(address, owner):
            return
        if address not in self._taken:
            raise BadArgument(f"{self.name}: no allocation starts at this address", address=address)
        if not self._is_free(address):
            self._join(address, address + self._taken[address][0])
        self._taken.pop(address)

    def free_all(self, owner: object) -> None:
        """Free all ranges that `owner` has allocated; can be repeated."""
        for address in [start for start, (_, who) in self._taken.items() if who is owner]:
            self.free(address, owner)

    def owns(self, address: int, owner: object) -> bool:
        """Return whether `owner` has allocated the range that starts at `address`."""
        return address in self._taken and self._taken[address][1] is owner

    def _is_free(self, address: int) -> bool:
        before = bisect_left(self._free, (address + 1, 0)) - 1
        return before >= 0 and self._free[before][1] > address

    def _join(self, address: int, end: int) -> None:
        start = address
        first = last = bisect_left(self._free, (address, 0))
        if first and self._free[first - 1][1] == start:
            first -= 1
            start = self._free[first][0]
        if last < len(self._free) and self._free[last][0] == end:
            end = self._free[last][1]
            last += 1
        self._free[first:last] = [(start, end)]

    def size_of(self, address: int) -> int:
        """Return the size of the range that starts at `address`; BadArgument if none does."""
        if address not in self._taken:
            raise BadArgument(f"{self.name}: no allocation starts at this address", address=address)
        return self._taken[address][0]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the address and size of each range that is taken."""
        return sorted((address, size) for address, (size, _) in self._taken.items())

    @property
    def used(self) -> int:
        return self.size - self.free_size

    @property
    def free_size(self) -> int:
        return sum(end - start for start, end in self._free)

    @property
    def largest(self) -> int:
        """Size of the largest free range."""
        return max((end - start for start, end in self._free), default=0)

    def _take(self, index: int, address: int, size: int, owner: object) -> None:
        start, end = self._free[index]
        pieces = [(start, address), (address + size, end)]
        self._taken[address] = size, owner
        self._free[index : index + 1] = [piece for piece in pieces if piece[0] < piece[1]]

    def _give_back(self, address: int) -> None:
        """Undo a `_take` of `address`, whether or not it was completed."""
        if address in self._taken:
            self.free(address)

    def __repr__(self) -> str:
        return f"<RangeAllocator {self.name} {self.used:#x} of {self.size:#x} used>"
