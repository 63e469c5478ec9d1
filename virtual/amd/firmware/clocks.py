"""Clocks that the virtual SMU manages: their levels, and the bounds that a driver sets.

Facts: PPCLK_e in smu13_driver_if_v13_0_0.h; Linux 6.12 smu_v13_0_get_dpm_freq_by_index (bit 31:
discrete levels). Frequencies are those of a Radeon RX 7900 XTX, in MHz; the highest graphics and
memory frequencies are the board's.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts

GFX, SOC, MEMORY, FABRIC = 0, 1, 2, 3
_LEVELS: dict[int, tuple[int, ...]] = {
    SOC: (500, 800, 1000, 1200),
    FABRIC: (800, 1400, 2000, 2304),
    4: (400, 1300),
    5: (400, 1300),
    6: (400, 1300),
    7: (400, 1300),
    # Display: the upper limits are those of Linux 6.12 dcn32_fpu.c.
    8: (400, 2150),
    9: (400, 2150),
    10: (400, 716),
    11: (400, 1564),
    12: (400, 1564),
}
_DISCRETE = 1 << 31
_COUNT = 0xFF


class Clocks:
    """Levels and bounds, keyed by the SMU's clock number."""

    def __init__(self, board: BoardFacts) -> None:
        self._levels = _LEVELS | {
            GFX: (500, board.graphics_megahertz),  # any frequency between: fine-grained
            MEMORY: (96, 456, 772, board.memory_megahertz),
        }
        self._bounds: dict[int, tuple[int, int]] = {}

    def reset(self) -> None:
        """Remove all bounds."""
        self._bounds.clear()

    def level(self, clock: int, index: int) -> int | None:
        """Answer GetDpmFreqByIndex; index 0xFF returns the number of levels."""
        levels = self._levels.get(clock)
        if levels is None or (index != _COUNT and index >= len(levels)):
            return None
        value = len(levels) if index == _COUNT else levels[index]
        return value if clock == GFX else value | _DISCRETE

    def end(self, clock: int, which: int) -> int | None:
        """Return the lowest (0) or highest (-1) level."""
        levels = self._levels.get(clock)
        return None if levels is None else levels[which]

    def limit(self, argument: int, *, lowest: bool) -> bool:
        """Set a bound from a message argument: clock << 16 | MHz. False for an unknown clock."""
        clock, frequency = argument >> 16, argument & 0xFFFF
        levels = self._levels.get(clock)
        if levels is None:
            return False
        frequency = min(max(frequency, levels[0]), levels[-1])
        low, high = self._bounds.get(clock, (levels[0], levels[-1]))
        if lowest:
            self._bounds[clock] = (frequency, max(high, frequency))
        else:
            self._bounds[clock] = (min(low, frequency), frequency)
        return True

    def current(self, clock: int, activity: float) -> int:
        """Return the frequency for the load (0 to 1), within the bounds."""
        levels = self._levels.get(clock)
        if levels is None:
            return 0
        low, high = self._bounds.get(clock, (levels[0], levels[-1]))
        return round(low + (high - low) * activity)
