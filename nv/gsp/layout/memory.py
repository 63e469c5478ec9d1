"""Host memory that the GSP reads or writes, with the addresses of its pages on the bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ugpu.hcq.errors import NotSupported, OutOfMemory
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaMemory, Placing, Transport
from ugpu.nv.gsp.layout import radix3

PAGE = 4096


class Pages:
    """DMA memory of whole pages. The owner closes it. view: its bytes."""

    def __init__(
        self,
        transport: Transport,
        size: int,
        *,
        bits: int,
        contiguous: bool = False,
        address: int | None = None,
    ) -> None:
        """bits: width of the addresses that the chip emits; OutOfMemory for memory above. address:
        on the bus, where it must lie; NotSupported if the transport places no memory."""
        self.size = -(-size // PAGE) * PAGE
        self._memory: DmaMemory
        if address is None:
            self._memory = transport.allocate_dma(self.size, contiguous=contiguous)
        elif isinstance(transport, Placing):
            self._memory = transport.place_dma(self.size, BusAddr(address))
        else:
            raise NotSupported(f"{transport.name} does not place memory at chosen addresses")
        try:
            view = self._memory.view
            if not isinstance(view, memoryview):
                raise NotSupported(
                    "the GSP's queues require host memory that this process maps, which a bridge "
                    "does not provide"
                )
            self.view: memoryview = view
            self.pages = tuple(self._pages())
            end = max(self.pages) + PAGE
            if end > 1 << bits:
                raise OutOfMemory("the memory lies above the chip's reach", address=end, bits=bits)
            if contiguous and self.pages[-1] - self.pages[0] != self.size - PAGE:
                raise OutOfMemory("the memory must be contiguous on the bus", size=self.size)
        except BaseException:
            self._memory.close()
            raise

    def _pages(self) -> list[int]:
        found = [
            int(segment.address) + offset
            for segment in self._memory.segments
            for offset in range(0, segment.size, PAGE)
        ]
        return found[: self.size // PAGE]

    @property
    def address(self) -> int:
        """The first page's address on the bus."""
        return self.pages[0]

    def put(self, data: bytes | memoryview, offset: int = 0) -> None:
        """Copy bytes in."""
        self.view[offset : offset + len(data)] = data

    def close(self) -> None:
        """Free the memory; idempotent. The GSP must not access it any more."""
        self._memory.close()


class Keeper:
    """Owner of several pieces of such memory. named: pieces that the firmware uses while it runs.
    places: where on the bus they must lie, by name; anywhere if a name is missing."""

    def __init__(self, transport: Transport, bits: int) -> None:
        self._transport = transport
        self._bits = bits
        self._kept: list[Pages] = []
        self.named: dict[str, Pages] = {}
        self.places: Mapping[str, int] = {}

    def take(
        self,
        size: int,
        data: bytes | memoryview = b"",
        *,
        name: str = "",
        contiguous: bool = True,
        bits: int | None = None,
    ) -> Pages:
        """Allocate memory that starts with `data`. bits: of its addresses, if fewer than usual."""
        limit, address = self._bits if bits is None else bits, self.places.get(name)
        pages = Pages(self._transport, size, bits=limit, contiguous=contiguous, address=address)
        self._kept.append(pages)
        if name:
            self.named[name] = pages
        pages.put(data)
        return pages

    def take_listed(self, size: int, data: bytes | memoryview = b"") -> Pages:
        """Allocate memory of `size` bytes behind the tables that name its pages, see radix3."""
        counts = radix3.level_pages(size)
        tables = sum(counts[:3]) * PAGE
        pages = self.take(tables + counts[3] * PAGE, contiguous=False)
        pages.put(radix3.tables(size, pages.pages))
        pages.put(data, tables)
        return pages

    def close(self, only: Sequence[Pages] | None = None) -> None:
        """Free all pieces, or those of `only`; can be repeated."""
        for pages in list(self._kept):
            if only is None or any(pages is each for each in only):
                pages.close()
                self._kept.remove(pages)
