"""The bridge's SRAM: the memory outside the card that the card can access.

The host accesses its first page byte by byte through XDATA; this page is allocated as DMA memory.
Transfers fill and empty all other slots.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from hcq.errors import OutOfMemory
from hcq.memory import BusAddr
from hcq.transport.base import DmaSegment
from hcq.transport.bulk import Data
from hcq.transport.dma import PAGE, rounded
from hcq.transport.view import RemoteView
from usbgpu.bridge import SLOT, SRAM_BUS_ADDRESS, SRAM_SIZE, Bridge

DMA_BYTES = PAGE
_XDATA = 0xF000  # where the bridge's own processor sees the first page
# A page that the card writes and XDATA shows. The SRAM engine uses its start; tinygrad 0.14 puts a
# fence here too (ops_amd.py).
_FENCE_BUS, _FENCE_XDATA, _FENCE_SIZE = 0x82_0800, 0xA800, 8
_START_BUS, _START_XDATA, _START_SIZE = 0x82_0810, 0xA810, 4
_SIGNALS_BUS, _SIGNALS_XDATA, _SIGNALS_SIZE = 0x82_0900, 0xA900, 256
# The completion queue of the bridge's storage engine: a completion releases armed data.
_RELEASE_BUS = 0x82_200C


class SramPage:
    """The first page as DMA memory. See hcq.transport.base.DmaMemory. A write is one transfer for
    each byte. Accesses to an unplugged bridge raise DeviceLost."""

    def __init__(self, bridge: Bridge, release: Callable[[SramPage], None]) -> None:
        self.size = PAGE
        self.view = RemoteView(self._read, self._write, PAGE)
        self.segments: Sequence[DmaSegment] = (DmaSegment(BusAddr(SRAM_BUS_ADDRESS), PAGE),)
        self._bridge = bridge
        self._release = release

    def _read(self, start: int, size: int) -> bytes:
        return self._bridge.read_xdata(_XDATA + start, size)

    def _write(self, start: int, data: bytes | bytearray | memoryview) -> None:
        self._bridge.write_xdata(_XDATA + start, bytes(data))

    def close(self) -> None:
        """Free the page; idempotent."""
        self.view.release()
        self._release(self)

    def __repr__(self) -> str:
        return f"<SramPage {self.size} bytes at bus {SRAM_BUS_ADDRESS:#x}>"


class Sram:
    """See hcq.transport.bulk.BulkMemory, and `allocate`. Thread-safe."""

    address = BusAddr(SRAM_BUS_ADDRESS + SLOT)
    size = SRAM_SIZE - SLOT
    granule = SLOT
    fence = BusAddr(_FENCE_BUS)
    start = BusAddr(_START_BUS)
    release = BusAddr(_RELEASE_BUS)
    signals = BusAddr(_SIGNALS_BUS)
    signals_size = _SIGNALS_SIZE

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._lock = threading.RLock()
        self._page: SramPage | None = None

    def allocate(self, size: int) -> SramPage:
        """Allocate and zero the page; OutOfMemory for more, or a second time."""
        if rounded(size) > PAGE or self._page is not None:
            raise OutOfMemory(
                "the bridge has one page of DMA memory", size=size, free=PAGE * (self._page is None)
            )
        with self._lock:
            self._bridge.write_sram(0, PAGE, [bytes(PAGE)])
            self._page = SramPage(self._bridge, self._free)
            return self._page

    def _free(self, page: SramPage) -> None:
        with self._lock:
            if self._page is page:
                self._page = None

    def close(self) -> None:
        """Free the page; idempotent."""
        page = self._page
        if page is not None:
            page.close()

    # ---- bulk --------------------------------------------------------------------------------

    def send(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """See BulkMemory.send: one transfer, one for each piece, and those of producing the
        pieces."""
        self._bridge.write_sram(SLOT + offset, size, pieces)

    def receive(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """See BulkMemory.receive: one transfer, one for each piece, and those of the callbacks."""
        self._bridge.read_sram(SLOT + offset, sizes, begun, arrived)

    def read_fence(self) -> int:
        """See BulkMemory.read_fence: one transfer."""
        return int.from_bytes(self._bridge.read_xdata(_FENCE_XDATA, _FENCE_SIZE), "little")

    def write_start(self, value: int) -> None:
        """See BulkMemory.write_start: one transfer."""
        self._bridge.write_xdata(_START_XDATA, bytes([value]))

    def read_signals(self, start: int, size: int) -> bytes:
        """See BulkMemory.read_signals: one transfer for each 255 bytes (64 on USB 2)."""
        return self._bridge.read_xdata(_SIGNALS_XDATA + start, size)

    def write_signals(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """See BulkMemory.write_signals."""
        before = self.read_signals(start, len(data))
        for position, (old, new) in enumerate(zip(before, bytes(data), strict=True)):
            if old != new:
                self._bridge.write_xdata(_SIGNALS_XDATA + start + position, bytes([new]))

    def clear(self) -> None:
        """See BulkMemory.clear: twelve transfers."""
        self._bridge.write_xdata(_FENCE_XDATA, bytes(_FENCE_SIZE))
        self._bridge.write_xdata(_START_XDATA, bytes(_START_SIZE))
