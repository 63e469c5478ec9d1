"""The bridge's SRAM: the memory outside the card that the card can access.

Transfers fill and empty its slots; the first one is spare. Under the open firmware the bridge's own
processor, and so the host by XDATA, cannot access it (asm2464pd-firmware pcie/dma_probe.py: 0xF000
is "independent XDATA RAM"). The host and the card both see one page beside it, byte by byte: the
storage engine's submission queue, whose start the SRAM engine overwrites. It contains the fence,
signals and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.bulk import Data
from ugpu.usbgpu.bridge.interface import SLOT, SRAM_BUS_ADDRESS, SRAM_SIZE, Bridge

# The page that the card writes and XDATA shows. The SRAM engine uses its start; tinygrad 0.14 puts
# a fence here too (ops_amd.py).
_FENCE_BUS, _FENCE_XDATA, _FENCE_SIZE = 0x82_0800, 0xA800, 8
_START_BUS, _START_XDATA, _START_SIZE = 0x82_0810, 0xA810, 4
_SIGNALS_BUS, _SIGNALS_XDATA, _SIGNALS_SIZE = 0x82_0900, 0xA900, 256
_RESULTS_BUS, _RESULTS_XDATA, _RESULTS_SIZE = 0x82_0E00, 0xAE00, 512
# The completion queue of the bridge's storage engine: a completion releases armed data.
_RELEASE_BUS = 0x82_200C


class Sram:
    """See hcq.transport.bulk.BulkMemory. Thread-safe."""

    address = BusAddr(SRAM_BUS_ADDRESS + SLOT)
    size = SRAM_SIZE - SLOT
    granule = SLOT
    fence = BusAddr(_FENCE_BUS)
    start = BusAddr(_START_BUS)
    release = BusAddr(_RELEASE_BUS)
    signals = BusAddr(_SIGNALS_BUS)
    signals_size = _SIGNALS_SIZE
    spare = BusAddr(SRAM_BUS_ADDRESS)
    results = BusAddr(_RESULTS_BUS)
    results_size = _RESULTS_SIZE

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

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

    def read_results(self, size: int) -> bytes:
        """See BulkMemory.read_results: one transfer for each 255 bytes (64 on USB 2)."""
        return self._bridge.read_xdata(_RESULTS_XDATA, size)

    def clear_results(self) -> None:
        """See BulkMemory.clear_results: four transfers."""
        self._bridge.write_xdata(_RESULTS_XDATA, bytes(4))

    def clear(self) -> None:
        """See BulkMemory.clear: twelve transfers."""
        self._bridge.write_xdata(_FENCE_XDATA, bytes(_FENCE_SIZE))
        self._bridge.write_xdata(_START_XDATA, bytes(_START_SIZE))
