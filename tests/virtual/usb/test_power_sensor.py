"""The enclosure's power sensor, read over the virtual bridge's I2C pins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ugpu.hcq.errors import DeviceNotFound, TransportError
from ugpu.hcq.state.clock import Clock
from ugpu.usbgpu.bridge import ina231
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.i2c import I2cBus
from ugpu.virtual.usb.enclosure import Enclosure
from ugpu.virtual.usb.sensor import CLOCK, DATA, POWER_ON, Sensor


class Stopped(Clock):
    """A clock that a test moves."""

    time = 0.0

    def now(self) -> float:
        return self.time


@pytest.fixture
def box() -> Iterator[Enclosure]:
    box = Enclosure(None)
    yield box
    assert box.hardware.sensor.pins == POWER_ON, "the pins have their functions again"
    assert box.objections == []
    box.close()


@pytest.fixture
def sensor(box: Enclosure) -> Sensor:
    return box.hardware.sensor


@pytest.fixture
def bridge(box: Enclosure) -> Iterator[CustomBridge]:
    bridge = CustomBridge(box.open())
    yield bridge
    bridge.close()


@pytest.mark.parametrize(
    ("shunt", "bus", "volts", "amperes"),
    [
        (0, 0, 0.0, 0.0),
        (11120, 9600, 12.0, 10.0),
        (0xFFFF, 9600, 12.0, -2.5e-6 / 2.78e-3),
        (0x8000, 0xFFFF, 0x7FFF * 1.25e-3, -0x8000 * 2.5e-6 / 2.78e-3),
    ],
)
def test_power(
    sensor: Sensor, bridge: CustomBridge, shunt: int, bus: int, volts: float, amperes: float
) -> None:
    """11,120 steps of 2.5 uV over 2.78 mOhm are 10 A."""
    sensor.registers |= {0x01: shunt, 0x02: bus}
    power = ina231.read_power(bridge)
    assert power.volts == pytest.approx(volts)
    assert power.amperes == pytest.approx(amperes)
    assert power.watts == pytest.approx(volts * amperes)


def test_an_enclosure_without_a_sensor(sensor: Sensor, bridge: CustomBridge) -> None:
    sensor.present = False
    with pytest.raises(DeviceNotFound, match="0x45"):
        ina231.read_power(bridge)


def test_another_address(sensor: Sensor, bridge: CustomBridge) -> None:
    sensor.address = 0x40
    with pytest.raises(DeviceNotFound, match="0x45"):
        ina231.read_power(bridge)
    with I2cBus(bridge) as bus:
        assert bus.read_word(0x40, 0x00) == 0x4127


def test_a_bus_that_is_held_low(
    sensor: Sensor, bridge: CustomBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor, "_pulls", True)
    with pytest.raises(TransportError, match="idle bus"):
        ina231.read_power(bridge)


def test_one_reading_serves_all_that_ask_within_half_a_second(
    sensor: Sensor, bridge: CustomBridge
) -> None:
    clock = Stopped()
    supply = ina231.Supply(bridge, clock)
    sensor.registers |= {0x01: 11120, 0x02: 9600}
    watts, volts, amperes = supply.sensors()
    before = bridge.transfers
    sensor.registers[0x01] = 5560
    assert (watts.read(), volts.read(), amperes.read()) == pytest.approx((120, 12, 10))
    assert bridge.transfers == before
    clock.time += 0.6
    assert watts.read() == pytest.approx(60)


def test_a_missing_sensor_is_looked_for_once(sensor: Sensor, bridge: CustomBridge) -> None:
    supply = ina231.Supply(bridge, Stopped())
    sensor.present = False
    assert supply.sensors() == ()
    before = bridge.transfers
    assert supply.sensors() == () and bridge.transfers == before


def test_the_clock_stays_the_masters(sensor: Sensor, bridge: CustomBridge) -> None:
    before = bridge.transfers
    ina231.read_power(bridge)
    assert bridge.transfers - before < 420
    assert sensor.pins == {CLOCK: 0x13, DATA: 0x14}
