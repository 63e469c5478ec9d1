"""Ranges of an address space: which are taken, which are free."""

from __future__ import annotations

from bisect import bisect_left

from hcq.errors import BadArgument, OutOfMemory


class RangeAllocator:
    """Hands out aligned ranges of [base, base + size), lowest address first.

    Sizes and addresses are bytes (or any one unit); every range is a multiple of `granule`, a power
    of two. Freed neighbours join. Not thread-safe: the owner's lock protects it.
    """

    def __init__(self, base: int, size: int, granule: int = 1, *, name: str = "range") -> None:
        if granule <= 0 or granule & (granule - 1):
            raise BadArgument("a granule is a power of two", granule=granule)
        if base < 0 or size < 0 or base % granule or size % granule:
            raise BadArgument("not a multiple of the granule", base=base, size=size)
        self.base = base
        self.size = size
        self.granule = granule
        self.name = name
        self.used = 0
        # Free ranges by ascending address; two neighbours never touch.
        self._starts = [base] if size else []
        self._ends = [base + size] if size else []
        self._taken: dict[int, int] = {}

    def allocate(self, size: int, align: int = 1) -> int:
        """Take `size` (rounded up to the granule) at a multiple of `align`, a power of two.

        Returns the address; OutOfMemory when no free range fits.
        """
        if size <= 0:
            raise BadArgument("a range has a positive size", size=size)
        if align <= 0 or align & (align - 1):
            raise BadArgument("an alignment is a power of two", align=align)
        need = -(-size // self.granule) * self.granule
        align = max(align, self.granule)
        for index, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            address = -(-start // align) * align
            if address + need <= end:
                self._take(index, address, need)
                return address
        raise OutOfMemory(
            f"{self.name}: no free range of {need} bytes",
            align=align,
            free=self.free_size,
            largest=self.largest,
        )

    def reserve(self, address: int, size: int) -> None:
        """Take exactly [address, address + size), rounded outwards; BadArgument unless all free."""
        start = address // self.granule * self.granule
        end = -(-(address + size) // self.granule) * self.granule
        index = bisect_left(self._starts, start + 1) - 1
        if size <= 0 or index < 0 or self._ends[index] < end:
            raise BadArgument(f"{self.name}: not free", address=address, size=size)
        self._take(index, start, end - start)

    def free(self, address: int) -> None:
        """Give back the range that starts at `address`; BadArgument if none does."""
        size = self._taken.pop(address, None)
        if size is None:
            raise BadArgument(f"{self.name}: nothing is allocated here", address=address)
        self.used -= size
        end = address + size
        index = bisect_left(self._starts, address)
        joins_next = index < len(self._starts) and self._starts[index] == end
        joins_previous = index > 0 and self._ends[index - 1] == address
        if joins_previous and joins_next:
            self._ends[index - 1] = self._ends.pop(index)
            self._starts.pop(index)
        elif joins_previous:
            self._ends[index - 1] = end
        elif joins_next:
            self._starts[index] = address
        else:
            self._starts.insert(index, address)
            self._ends.insert(index, end)

    def size_of(self, address: int) -> int:
        """Size of the range that starts at `address`; BadArgument if none does."""
        if address not in self._taken:
            raise BadArgument(f"{self.name}: nothing is allocated here", address=address)
        return self._taken[address]

    @property
    def free_size(self) -> int:
        return self.size - self.used

    @property
    def largest(self) -> int:
        """Size of the largest free range."""
        return max(
            (end - start for start, end in zip(self._starts, self._ends, strict=True)), default=0
        )

    def _take(self, index: int, address: int, size: int) -> None:
        start, end = self._starts[index], self._ends[index]
        pieces = [(start, address), (address + size, end)]
        kept = [piece for piece in pieces if piece[0] < piece[1]]
        self._starts[index : index + 1] = [piece[0] for piece in kept]
        self._ends[index : index + 1] = [piece[1] for piece in kept]
        self._taken[address] = size
        self.used += size

    def __repr__(self) -> str:
        return f"<RangeAllocator {self.name} {self.used:#x} of {self.size:#x} used>"
