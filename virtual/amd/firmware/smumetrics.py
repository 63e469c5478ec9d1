"""Metrics of the virtual SMU: plausible values that follow the load and always change.

The average power never exceeds the limit: the graphics clock falls instead.

Facts: SmuMetricsExternal_t in smu13_driver_if_v13_0_0.h.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.am.regs import constants, structs
from ugpu.virtual.amd.firmware.clocks import FABRIC, GFX, MEMORY, Clocks
from ugpu.virtual.shader.load import Load

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

_EDGE, _HOTSPOT, _MEMORY_TEMPERATURE = 0, 1, 4
_IDLE_WATTS = 18.0
_FULL_SHARE = 0.92  # of the board's limit, at full load; our choice
# UNSURE: over which time the firmware averages; AMD does not publish it. Our choice.
_AVERAGED_S = 0.1


class Metrics:
    """Build the metrics table from the load and the clocks."""

    def __init__(self, chip: Board, clocks: Clocks, gfxoff: Callable[[], bool]) -> None:
        """gfxoff: returns whether the graphics core has no power."""
        self._chip = chip
        self._clocks = clocks
        self._gfxoff = gfxoff
        self._random = random.Random(chip.options.seed)
        self.load = Load(chip.scheduler.now, _AVERAGED_S)
        self._heat = 0.0  # follows the load slowly
        self._energy = 0.0
        self._counter = 0
        self._edge = 34.0
        self.throttling: dict[int, int] = {}  # percent by throttler
        self.power_limit = chip.facts.board.power_limit  # watts
        self.planted: int | None = None  # forced hotspot temperature, see Thermal

    @property
    def hotspot(self) -> int:
        """Hotspot temperature in degrees Celsius."""
        if self.planted is not None:
            return self.planted
        return round(self._edge + 6 + 12 * self._heat)

    def reset(self) -> None:
        """Reset to a cold chip."""
        self._heat = 0.0
        self._energy = 0.0
        self._counter = 0
        self.power_limit = self._chip.facts.board.power_limit

    def _watts(self, activity: float, jitter: float) -> tuple[float, float]:
        """Return the power, and the share of the load's power that the limit lets pass."""
        full = _FULL_SHARE * self._chip.facts.board.power_limit
        load = (full - _IDLE_WATTS) * activity
        rest = _IDLE_WATTS + 2 * jitter
        if rest + load <= self.power_limit:
            return rest + load, 1.0
        return float(self.power_limit), max(0.0, self.power_limit - rest) / load

    def table(self) -> bytes:
        """Build a SmuMetricsExternal_t for the current state."""
        self._counter += 1
        activity = self.load.share()
        self._heat += 0.2 * (activity - self._heat)
        jitter = self._random.uniform(-1.0, 1.0)
        watts, share = self._watts(activity, jitter)
        self._energy += watts
        layout = structs(self._chip.facts.smu.tables).SmuMetricsExternal_t
        external = layout.new()
        metrics = external.SmuMetrics
        for clock in range(len(metrics.CurrClock)):
            metrics.CurrClock[clock] = self._clocks.current(clock, activity)
        # UNSURE: a core without power has no clock; a board's values for this case are not public.
        frequency = 0 if self._gfxoff() else self._clocks.current(GFX, activity * share)
        metrics.CurrClock[GFX] = frequency
        for name in ("Target", "PreDs", "PostDs"):
            metrics[f"AverageGfxclkFrequency{name}"] = frequency
        for name in ("PreDs", "PostDs"):
            metrics[f"AverageFclkFrequency{name}"] = self._clocks.current(FABRIC, activity)
            metrics[f"AverageMemclkFrequency{name}"] = self._clocks.current(MEMORY, activity)
        metrics.MetricsCounter = self._counter
        metrics.AverageGfxActivity = round(100 * activity)
        metrics.AverageUclkActivity = round(60 * activity)
        metrics.EnergyAccumulator = round(self._energy) & 0xFFFF_FFFF
        metrics.AverageSocketPower = round(watts)
        metrics.AverageTotalBoardPower = round(watts * 1.1 + 9)
        edge = self._edge = 34 + 26 * self._heat + jitter
        if self.planted is not None:
            edge = self.planted - 12.0
        for sensor in range(len(metrics.AvgTemperature)):
            metrics.AvgTemperature[sensor] = round(edge + sensor % 5)
        metrics.AvgTemperature[_EDGE] = round(edge)
        metrics.AvgTemperature[_HOTSPOT] = self.hotspot
        metrics.AvgTemperature[_MEMORY_TEMPERATURE] = round(edge + 10 + 8 * self._heat)
        metrics.AvgTemperatureFanIntake = 27
        metrics.AvgVoltage[0] = round(720 + 380 * activity)
        metrics.AvgCurrent[0] = round(watts / 1.1)
        if share < 1:
            names = constants(self._chip.facts.smu.tables)
            metrics.ThrottlingPercentage[names.THROTTLER_PPT0_BIT] = round(100 * (1 - share))
        for throttler, percent in self.throttling.items():
            metrics.ThrottlingPercentage[throttler] = percent
        metrics.PcieRate, metrics.PcieWidth = 3, 6  # 16 GT/s, x16, in the firmware's codes
        metrics.AvgFanPwm = round(255 * self._heat * 0.5)
        metrics.AvgFanRpm = round(3300 * self._heat * 0.5)
        return bytes(external)
