"""The thermal controller: temperature limits and over-temperature interrupts.

Facts: Linux 6.12 smu_v13_0.c (smu_v13_0_set_irq_state: limits, masks and enables;
smu_v13_0_irq_process: clients and sources), thm_13_0_2 register header, soc15_ih_clientid.h. The
headers do not define the bits THERM_*_SET and THERM_*_CLR of THM_THERMAL_INT_ENA. Linux writes all
of the latter to switch the interrupts on, and 0 to switch them off; this model follows Linux.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.am.regs import constants
from ugpu.virtual.amd.block import Block, Reset

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board
    from ugpu.virtual.amd.firmware.smumetrics import Metrics

_CLIENTS = constants("soc15_ih_clientid")
_LOW_TO_HIGH, _HIGH_TO_LOW, _GPIO_19 = 0, 1, 83
_SHUTDOWN_S = 0.25  # from the critical fault until the board cuts the power; our choice


class Thermal(Block):
    """Compare the chip's hotspot temperature with two limits; each crossing raises an interrupt.

    `heat` forces a temperature, `cool` removes it, and `critical` makes the board cut the power.
    """

    def __init__(self, chip: Board, metrics: Metrics, power_off: Callable[[], None]) -> None:
        super().__init__(chip, "thm")
        self._metrics = metrics
        self._power_off = power_off
        self._enabled = False
        self._above = self._below = False
        self.on_write("THM_THERMAL_INT_CTRL", lambda _: self._compare())
        self.on_write("THM_THERMAL_INT_ENA", self._enable)
        self.on_read("THM_THERMAL_INT_STATUS", self._status)
        self.on_read("CG_MULT_THERMAL_STATUS", self._temperature)

    def reset(self, scope: Reset) -> None:
        """Clear the limits. A forced temperature stays: a reset does not cool a chip."""
        self._enabled = self._above = self._below = False

    # ---- faults -------------------------------------------------------------------------------

    def heat(self, celsius: int) -> None:
        """Force the hotspot temperature until `cool` is called."""
        with self.chip.lock:
            self._metrics.planted = celsius
            self._compare()

    def cool(self) -> None:
        """Make the temperature follow the load again."""
        with self.chip.lock:
            self._metrics.planted = None
            self._compare()

    def critical(self) -> None:
        """Raise the critical temperature fault: the chip reports it, the board cuts the power."""
        with self.chip.lock:
            self.chip.ih.raise_interrupt(_CLIENTS.SOC15_IH_CLIENTID_ROM_SMUIO, _GPIO_19)
            self.chip.scheduler.after(_SHUTDOWN_S, self._power_off, outside=True)

    # ---- registers ----------------------------------------------------------------------------

    def _enable(self, value: int) -> None:
        fields = self.fields("THM_THERMAL_INT_ENA")
        names = ("THERM_INTH_CLR", "THERM_INTL_CLR", "THERM_TRIGGER_CLR")
        cleared = [bool(fields[name]) for name in names]
        if value and not all(cleared):
            self.chip.violation(
                f"THM_THERMAL_INT_ENA set to {value:#x}, expected 0 or the three bits *_CLR"
            )
        self._enabled = all(cleared)
        self._above = self._below = False
        self._compare()

    def _compare(self) -> None:
        """Raise interrupts for limits crossed since the last comparison."""
        control = self.fields("THM_THERMAL_INT_CTRL")
        if not (self._enabled and control.THERM_IH_HW_ENA):
            return
        celsius = self._metrics.hotspot
        above, below = celsius > control.DIG_THERM_INTH, celsius < control.DIG_THERM_INTL
        if above and not self._above and not control.THERM_INTH_MASK:
            self._tell(_LOW_TO_HIGH)
        if below and not self._below and not control.THERM_INTL_MASK:
            self._tell(_HIGH_TO_LOW)
        self._above, self._below = above, below

    def _tell(self, source: int) -> None:
        self.chip.ih.raise_interrupt(_CLIENTS.SOC15_IH_CLIENTID_THM, source)

    def _status(self) -> int:
        control, celsius = self.fields("THM_THERMAL_INT_CTRL"), self._metrics.hotspot
        detected = {
            "THERM_INTH_DETECT": int(celsius > control.DIG_THERM_INTH),
            "THERM_INTL_DETECT": int(celsius < control.DIG_THERM_INTL),
        }
        return self.chip.space.register(self.block, "THM_THERMAL_INT_STATUS").insert(0, detected)

    def _temperature(self) -> int:
        celsius = self._metrics.hotspot
        fields = {"ASIC_MAX_TEMP": celsius, "CTF_TEMP": celsius}
        return self.chip.space.register(self.block, "CG_MULT_THERMAL_STATUS").insert(0, fields)
