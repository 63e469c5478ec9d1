"""The enclosure's power sensor, a Texas Instruments INA231 on the bridge's I2C pins.

Source: asm2464pd-firmware scripts/ina231_monitor.py (address, shunt); TI's INA231 data sheet
SBOS644 (registers and their units). Reads only: after power-on the sensor measures continuously.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.telemetry import Sensor
from ugpu.usbgpu.bridge.checks import require
from ugpu.usbgpu.bridge.i2c import I2cBus
from ugpu.usbgpu.bridge.interface import Ability, Bridge

ADDRESS = 0x45
_SHUNT_VOLTAGE, _BUS_VOLTAGE = 0x01, 0x02
_SHUNT_UNIT_V, _BUS_UNIT_V = 2.5e-6, 1.25e-3
_BUS_BITS = 0x7FFF
# Two resistors of 1 mOhm in series, by the board's nominal values; the power that the firmware's
# authors measured matches this.
SHUNT_OHM = 2.78e-3
_FRESH_S = 0.5  # our choice: a reading takes about 60 ms of the link


@dataclass(frozen=True)
class Power:
    """A reading of the sensor: volts, amperes (negative: backwards), watts."""

    volts: float
    amperes: float

    @property
    def watts(self) -> float:
        return self.volts * self.amperes


def read_power(bridge: Bridge) -> Power:
    """Read the sensor; about 400 control transfers. DeviceNotFound for an enclosure without one,
    NotSupported where we may not use the bridge's pins."""
    require(bridge, Ability.PINS, "the power sensor")
    with I2cBus(bridge) as bus:
        shunt = bus.read_word(ADDRESS, _SHUNT_VOLTAGE)
        volts = (bus.read_word(ADDRESS, _BUS_VOLTAGE) & _BUS_BITS) * _BUS_UNIT_V
    signed = shunt - (1 << 16) if shunt >> 15 else shunt
    return Power(volts, signed * _SHUNT_UNIT_V / SHUNT_OHM)


class Supply:
    """The sensor as part of a device's sensors. One reading serves all requests within 0.5 s.
    Thread-safe."""

    def __init__(self, bridge: Bridge, clock: Clock) -> None:
        self._bridge = bridge
        self._clock = clock
        self._lock = threading.Lock()  # the pins carry one reading at a time
        self._missing = False
        self._read: tuple[float, Power] | None = None  # time and reading

    def sensors(self) -> Sequence[Sensor]:
        """Return the sensors; empty for an enclosure without one, which the first call detects."""
        if Ability.PINS not in self._bridge.abilities:
            return ()
        try:
            self._power()
        except DeviceNotFound:
            return ()
        return (
            Sensor("enclosure_power_watts", "W", lambda: self._power().watts),
            Sensor("enclosure_supply_volts", "V", lambda: self._power().volts),
            Sensor("enclosure_supply_amperes", "A", lambda: self._power().amperes),
        )

    def _power(self) -> Power:
        with self._lock:
            if self._missing:
                raise DeviceNotFound("the enclosure has no power sensor")
            if self._read is None or self._clock.now() - self._read[0] > _FRESH_S:
                try:
                    self._read = (self._clock.now(), read_power(self._bridge))
                except DeviceNotFound:
                    self._missing = True
                    raise
            return self._read[1]
