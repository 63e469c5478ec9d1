"""The enclosure's power sensor, a Texas Instruments INA231 on the bridge's I2C pins.

Source: asm2464pd-firmware scripts/ina231_monitor.py (address, shunt); TI's INA231 data sheet
SBOS644 (registers and their units). Reads only: after power-on the sensor measures continuously.
"""

from __future__ import annotations

from dataclasses import dataclass

from usbgpu.bridge import Bridge
from usbgpu.i2c import I2cBus

ADDRESS = 0x45
_SHUNT_VOLTAGE, _BUS_VOLTAGE = 0x01, 0x02
_SHUNT_UNIT_V, _BUS_UNIT_V = 2.5e-6, 1.25e-3
_BUS_BITS = 0x7FFF
# Two resistors of 1 mOhm in series by the board's nominal values; the power that the firmware's
# authors measured matches this.
SHUNT_OHM = 2.78e-3


@dataclass(frozen=True)
class Power:
    """What goes through the sensor: volts, amperes (negative: backwards), watts."""

    volts: float
    amperes: float

    @property
    def watts(self) -> float:
        return self.volts * self.amperes


def read_power(bridge: Bridge) -> Power:
    """Read the sensor; about 400 control transfers. DeviceNotFound for an enclosure without one."""
    with I2cBus(bridge) as bus:
        shunt = bus.read_word(ADDRESS, _SHUNT_VOLTAGE)
        volts = (bus.read_word(ADDRESS, _BUS_VOLTAGE) & _BUS_BITS) * _BUS_UNIT_V
    signed = shunt - (1 << 16) if shunt >> 15 else shunt
    return Power(volts, signed * _SHUNT_UNIT_V / SHUNT_OHM)
