"""Memory that a client lets the device access: bus address ranges that do not overlap."""

from __future__ import annotations

import bisect
import contextlib
from dataclasses import dataclass

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.vfio_user.files import PAGE, SharedFiles
from ugpu.virtual.serve.model import DeviceModel

_TOP = 1 << 64


@dataclass(frozen=True)
class _Range:
    address: int
    size: int
    key: tuple[int, int, bool] | None  # of its file; None if no memory was shared


class ClientMemory:
    """The DMA maps of one client, which are passed to its model."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._files = SharedFiles()
        self._starts: list[int] = []  # sorted
        self._ranges: dict[int, _Range] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def overlaps(self, address: int, size: int) -> bool:
        """Return whether a mapped range overlaps this one."""
        at = bisect.bisect_left(self._starts, address)
        if at < len(self._starts) and self._starts[at] < address + size:
            return True
        before = self._ranges[self._starts[at - 1]] if at else None
        return before is not None and before.address + before.size > address

    def map(
        self, address: int, size: int, descriptor: int | None, offset: int, *, writable: bool
    ) -> None:
        """Map a range that overlaps no other; the caller keeps the descriptor."""
        if (address | size) % PAGE or not size or address + size > _TOP:
            raise BadArgument("bus memory must be whole pages", address=address, size=size)
        host, key = None, None
        if descriptor is not None:
            host, key = self._files.map(descriptor, offset, size, writable=writable)
        try:
            self._model.map_dma(address, size, host)
        except BaseException:
            if key is not None:
                self._files.release(key)
            raise
        self._ranges[address] = _Range(address, size, key)
        bisect.insort(self._starts, address)

    def unmap(self, address: int, size: int) -> None:
        """Unmap all ranges inside this one; BadArgument if it would cut one in two."""
        first = bisect.bisect_left(self._starts, address)
        last = bisect.bisect_left(self._starts, address + size)
        for count, edge in ((first, address), (last, address + size)):
            before = self._ranges[self._starts[count - 1]] if count else None
            if before is not None and before.address + before.size > edge:
                raise BadArgument("an unmap must cover whole ranges", address=address)
        self._drop(first, last)

    def clear(self) -> None:
        """Unmap everything."""
        self._drop(0, len(self._starts))

    def _drop(self, first: int, last: int) -> None:
        """Unmap these ranges; an error is raised after all are unmapped."""
        taken = [self._ranges.pop(start) for start in self._starts[first:last]]
        del self._starts[first:last]
        with contextlib.ExitStack() as left:
            for one in reversed(taken):
                if one.key is not None:
                    left.callback(self._files.release, one.key)
                # ORDER: the model drops the memory before its pages are unmapped.
                left.callback(self._model.unmap_dma, one.address, one.size)
