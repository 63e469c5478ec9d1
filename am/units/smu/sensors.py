"""Sensors: the SMU's measurements, read from its metrics table.

One table serves all sensors: it is transferred at most once per REFRESH_S. Source: Linux 6.12
smu_v13_0_0_ppt.c (meaning and units of the members), smu13_driver_if_v13_0_0.h.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from ugpu.am.regs import constants
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.state.telemetry import Sensor

REFRESH_S = 0.1
_THROTTLER = "THROTTLER_"  # smu_v13_0_0_get_throttler_status: a reason applies if it is above 0 %


class Metrics:
    """The SMU's table, cached. `lock` is the device's: messages must not interleave."""

    def __init__(self, smu: Smu, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self.smu = smu
        self.lock = lock
        self.clock = clock
        self._read_at = float("-inf")
        self._table: Struct | None = None

    @functools.cached_property
    def reasons(self) -> list[tuple[int, str]]:
        """See `reasons_of`."""
        return reasons_of(self.smu)

    def table(self) -> Struct:
        with self.lock:
            now = self.clock()
            if self._table is None or now - self._read_at >= REFRESH_S:
                self._table = self.smu.metrics()
                self._read_at = now
            return self._table


def reasons_of(smu: Smu) -> list[tuple[int, str]]:
    """Return the reasons to lower clocks: place in the table, and label."""
    ids = constants(smu.interface.tables)
    names = [name for name in ids if name.startswith(_THROTTLER) and name.endswith("_BIT")]
    return sorted(
        (ids[name], name[len(_THROTTLER) : -len("_BIT")].lower().replace("_", " "))
        for name in names
    )


def make_sensors(metrics: Metrics) -> tuple[Sensor, ...]:
    """Return all sensors of the device."""
    ids = constants(metrics.smu.interface.tables)

    def temperature(index: str) -> Callable[[], float]:
        position = ids[index]
        return lambda: float(metrics.table().AvgTemperature[position])

    def megahertz(member: str) -> Callable[[], float]:
        return lambda: float(metrics.table()[member]) * 1e6

    def percent(member: str) -> Callable[[], float]:
        return lambda: float(metrics.table()[member]) / 100.0

    def throttled(index: int) -> Callable[[], float]:
        return lambda: float(metrics.table().ThrottlingPercentage[index] > 0)

    return (
        Sensor("clock_hertz", "Hz", megahertz("AverageGfxclkFrequencyPostDs"), "gfx"),
        Sensor("clock_hertz", "Hz", megahertz("AverageMemclkFrequencyPostDs"), "memory"),
        Sensor("temperature_celsius", "°C", temperature("TEMP_EDGE"), "edge"),
        Sensor("temperature_celsius", "°C", temperature("TEMP_HOTSPOT"), "hotspot"),
        Sensor("temperature_celsius", "°C", temperature("TEMP_MEM"), "memory"),
        Sensor("power_watts", "W", lambda: float(metrics.table().AverageSocketPower), "socket"),
        Sensor("usage_ratio", "ratio", percent("AverageGfxActivity"), "gfx"),
        Sensor("usage_ratio", "ratio", percent("AverageUclkActivity"), "memory"),
        Sensor("fan_rpm", "rpm", lambda: float(metrics.table().AvgFanRpm)),
        *(Sensor("clock_throttled", "flag", throttled(at), label) for at, label in metrics.reasons),
    )
