"""I2C on two pins of the bridge, clocked bit by bit by register writes.

Source: asm2464pd-firmware scripts/ina231_monitor.py (2026-04-29): registers of the pins, their
values, and the input register. A bit takes three or four transfers, so a byte about 5 ms.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ugpu.hcq.errors import DeviceNotFound, TransportError
from ugpu.usbgpu.bridge.interface import Bridge

_CLOCK, _DATA = 0xC629, 0xC62A  # XDATA: functions of GPIO 9 and GPIO 10
_INPUTS, _DATA_LEVEL = 0xC651, 1 << 2
_RELEASED, _LOW = 0x00, 0x02


class I2cBus:
    """The two pins as a context manager: entering takes them, leaving restores their former
    functions."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._before = b""

    def __enter__(self) -> Self:
        self._before = self._bridge.read_xdata(_CLOCK, 2)
        try:
            self._data(1)
            self._clock(1)
            if not self._level():
                raise TransportError("I2C: expected an idle bus, the data line is held low")
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        """ORDER: data first; a clock that falls while the data line is low starts nothing."""
        self._bridge.write_xdata(_DATA, self._before[1:])
        self._bridge.write_xdata(_CLOCK, self._before[:1])

    def read_word(self, address: int, register: int) -> int:
        """Read 16 bits, the high byte first; DeviceNotFound where nothing acknowledges.

        address: 7 bits.
        """
        try:
            self._start()
            for byte in (address << 1, register):
                self._send(byte, address)
            self._start()
            self._send(address << 1 | 1, address)
            high = self._receive(more=True)
            return high << 8 | self._receive(more=False)
        finally:
            self._stop()

    # ---- bytes -------------------------------------------------------------------------------

    def _send(self, byte: int, address: int) -> None:
        for place in reversed(range(8)):
            self._data(byte >> place & 1)
            self._pulse()
        self._data(1)
        self._clock(1)
        refused = self._level()
        self._clock(0)
        if refused:
            raise DeviceNotFound(f"I2C: no device acknowledges address {address:#04x}", byte=byte)

    def _receive(self, *, more: bool) -> int:
        value = 0
        self._data(1)
        for _ in range(8):
            self._clock(1)
            value = value << 1 | self._level()
            self._clock(0)
        self._data(0 if more else 1)
        self._pulse()
        return value

    # ---- lines -------------------------------------------------------------------------------

    def _start(self) -> None:
        """Let data fall while the clock is high; also used in the middle of a transfer."""
        self._data(1)
        self._clock(1)
        self._data(0)
        self._clock(0)

    def _stop(self) -> None:
        """Let data rise while the clock is high."""
        self._data(0)
        self._clock(1)
        self._data(1)

    def _pulse(self) -> None:
        self._clock(1)
        self._clock(0)

    def _clock(self, level: int) -> None:
        self._bridge.write_xdata(_CLOCK, bytes([_RELEASED if level else _LOW]))

    def _data(self, level: int) -> None:
        self._bridge.write_xdata(_DATA, bytes([_RELEASED if level else _LOW]))

    def _level(self) -> int:
        return int(bool(self._bridge.read_xdata(_INPUTS, 1)[0] & _DATA_LEVEL))
