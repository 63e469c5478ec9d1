"""SRAM of a bridge whose firmware can only fill it from its start. See hcq.transport.bulk.

XDATA shows its first page and the firmware's submission queue. The firmware does not use the second
half of the queue, which holds the timelines (tinygrad 0.12 runtime/ops_amd.py, USBIface).
"""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.dma import PAGE
from ugpu.usbgpu.bridge.interface import SLOT, SRAM_BUS_ADDRESS, SRAM_SIZE, Bridge

_XDATA = 0xF000
_SIGNALS_BUS, _SIGNALS_XDATA, _SIGNALS_SIZE = 0x82_0800, 0xA800, 0x800


class Staging:
    """See hcq.transport.bulk.StagedMemory."""

    address = BusAddr(SRAM_BUS_ADDRESS)
    size = SRAM_SIZE - 4 * SLOT  # whole writes of the firmware; leaves room for the spare page
    readable = PAGE
    spare = BusAddr(SRAM_BUS_ADDRESS + SRAM_SIZE - PAGE)
    signals = BusAddr(_SIGNALS_BUS)
    signals_size = _SIGNALS_SIZE

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def fill(self, data: bytes | bytearray | memoryview) -> None:
        """See StagedMemory.fill."""
        if len(data) > self.size:
            raise BadArgument(f"expected {self.size} bytes at most, got {len(data)}")
        self._bridge.fill_sram(data)

    def read(self, size: int) -> bytes:
        """See StagedMemory.read."""
        if not 0 <= size <= self.readable:
            raise BadArgument(f"expected 0 to {self.readable} bytes, got {size}")
        return self._bridge.read_xdata(_XDATA, size)

    def read_signals(self, start: int, size: int) -> bytes:
        """See Signals.read_signals."""
        return self._bridge.read_xdata(_SIGNALS_XDATA + start, size)

    def write_signals(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """See Signals.write_signals; the range from the first to the last changed byte is written
        at once."""
        before = self.read_signals(start, len(data))
        new = bytes(data)
        first = next((at for at in range(len(new)) if before[at] != new[at]), len(new))
        last = next((at for at in reversed(range(len(new))) if before[at] != new[at]), -1)
        if first <= last:
            self._bridge.write_xdata(_SIGNALS_XDATA + start + first, new[first : last + 1])
