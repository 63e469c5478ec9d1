"""The thermal controller: limits, and the interrupts of a chip that gets too hot.

Facts: Linux 6.12 smu_v13_0.c (smu_v13_0_set_irq_state: limits, masks and enables;
smu_v13_0_irq_process: clients and sources), thm_13_0_2 register header, soc15_ih_clientid.h. The
headers do not say what the bits THERM_*_SET and THERM_*_CLR of THM_THERMAL_INT_ENA do: Linux writes
all of the latter to switch the interrupts on and 0 to switch them off, and so does this model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from am.regs import constants
from am.virtual.block import Block, Reset

if TYPE_CHECKING:
    from am.virtual.board import Board
    from am.virtual.firmware.smumetrics import Metrics

_CLIENTS = constants("soc15_ih_clientid")
_LOW_TO_HIGH, _HIGH_TO_LOW, _GPIO_19 = 0, 1, 83
_SHUTDOWN_S = 0.25  # from the critical fault to the board's power; our choice


class Thermal(Block):
    """Compares the hottest place of the chip with two limits; an interrupt tells of each crossing.

    `heat` plants a temperature, `cool` takes it back, `critical` is the board's last resort.
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
        """Forget the limits. The heat stays: no reset cools a chip."""
        self._enabled = self._above = self._below = False

    # ---- faults -------------------------------------------------------------------------------

    def heat(self, celsius: int) -> None:
        """Plant a temperature of the hottest place, which holds until `cool`."""
        with self.chip.lock:
            self._metrics.planted = celsius
            self._compare()

    def cool(self) -> None:
        """Let the temperature follow the load again."""
        with self.chip.lock:
            self._metrics.planted = None
            self._compare()

    def critical(self) -> None:
        """Meet the critical temperature fault: the chip tells it, and the board cuts the power."""
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
        """Tell of limits that were crossed since the last look."""
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
