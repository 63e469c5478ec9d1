"""What the virtual SMU measures: plausible figures that follow the load and never stand still.

Facts: SmuMetricsExternal_t in smu13_driver_if_v13_0_0.h.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from am.regs import structs
from am.virtual.clocks import FABRIC, GFX, MEMORY, Clocks

if TYPE_CHECKING:
    from am.virtual.chip import Chip

_EDGE, _HOTSPOT, _MEMORY_TEMPERATURE = 0, 1, 4
_IDLE_WATTS, _FULL_WATTS = 18.0, 312.0


class Metrics:
    """Makes the table. activity: 0 to 1, what the engines do now."""

    def __init__(self, chip: Chip, clocks: Clocks) -> None:
        self._chip = chip
        self._clocks = clocks
        self._random = random.Random(chip.options.seed)
        self.activity = 0.0
        self._heat = 0.0  # follows activity slowly
        self._energy = 0.0
        self._counter = 0

    def reset(self) -> None:
        """Start from cold."""
        self.activity = 0.0
        self._heat = 0.0
        self._energy = 0.0
        self._counter = 0

    def table(self) -> bytes:
        """Make a SmuMetricsExternal_t of this moment."""
        self._counter += 1
        self._heat += 0.2 * (self.activity - self._heat)
        jitter = self._random.uniform(-1.0, 1.0)
        watts = _IDLE_WATTS + (_FULL_WATTS - _IDLE_WATTS) * self.activity + 2 * jitter
        self._energy += watts
        layout = structs("smu13_driver_if_v13_0_0").SmuMetricsExternal_t
        external = layout.new()
        metrics = external.SmuMetrics
        for clock in range(13):
            metrics.CurrClock[clock] = self._clocks.current(clock, self.activity)
        frequency = self._clocks.current(GFX, self.activity)
        for name in ("Target", "PreDs", "PostDs"):
            metrics[f"AverageGfxclkFrequency{name}"] = frequency
        for name in ("PreDs", "PostDs"):
            metrics[f"AverageFclkFrequency{name}"] = self._clocks.current(FABRIC, self.activity)
            metrics[f"AverageMemclkFrequency{name}"] = self._clocks.current(MEMORY, self.activity)
        metrics.MetricsCounter = self._counter
        metrics.AverageGfxActivity = round(100 * self.activity)
        metrics.AverageUclkActivity = round(60 * self.activity)
        metrics.EnergyAccumulator = round(self._energy) & 0xFFFF_FFFF
        metrics.AverageSocketPower = round(watts)
        metrics.AverageTotalBoardPower = round(watts * 1.1 + 9)
        edge = 34 + 26 * self._heat + jitter
        for sensor in range(13):
            metrics.AvgTemperature[sensor] = round(edge + sensor % 5)
        metrics.AvgTemperature[_EDGE] = round(edge)
        metrics.AvgTemperature[_HOTSPOT] = round(edge + 6 + 12 * self._heat)
        metrics.AvgTemperature[_MEMORY_TEMPERATURE] = round(edge + 10 + 8 * self._heat)
        metrics.AvgTemperatureFanIntake = 27
        metrics.AvgVoltage[0] = round(720 + 380 * self.activity)
        metrics.AvgCurrent[0] = round(watts / 1.1)
        metrics.PcieRate, metrics.PcieWidth = 3, 6  # 16 GT/s, x16, in the firmware's codes
        metrics.AvgFanPwm = round(255 * self._heat * 0.5)
        metrics.AvgFanRpm = round(3300 * self._heat * 0.5)
        return bytes(external)
