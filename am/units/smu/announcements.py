"""Notifications of the SMU to the driver: throttling, a fan that does not turn, the power source.

The SMU raises one interrupt (client MP1, source 0xFE) and names the event in the first data word.
Each notification is an event `smu` on the bus (hcq.state.trace). Source: Linux 6.12 smu_v13_0.c
(smu_v13_0_set_irq_state, smu_v13_0_irq_process), smu_v13_0_0_ppt.c
(smu_v13_0_0_get_thermal_temperature_range: the offset of the limit), and amdgpu_smu.h of later
kernels (SMU_IH_INTERRUPT_CONTEXT_ID_*: names of the events).
"""

from __future__ import annotations

import logging

from ugpu.am.chip.chip import Chip
from ugpu.am.regs import constants
from ugpu.am.units.smu.sensors import reasons_of
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.errors import FirmwareError
from ugpu.hcq.state import trace

log = logging.getLogger(__name__)

CLIENT_MP1 = int(constants("soc15_ih_clientid").SOC15_IH_CLIENTID_MP1)
TO_DRIVER = 0xFE
AC, DC, THROTTLING, FAN_ABNORMAL, FAN_RECOVERY = 3, 4, 7, 8, 9
_NAMES = {
    AC: "mains", DC: "battery", THROTTLING: "throttling", FAN_ABNORMAL: "fan abnormal",
    FAN_RECOVERY: "fan recovery",
}  # fmt: skip
_QUIET_S = 60.0  # between two log lines about throttling, our choice; the counter counts all


class Announcements:
    """Drive the interrupt of one chip's SMU. throttlings: how often the SMU has lowered a clock.
    fan_abnormal: a fan does not turn as it should. on_battery: the supply is a battery."""

    def __init__(self, chip: Chip, smu: Smu) -> None:
        self.chip = chip
        self.smu = smu
        self.throttlings = 0
        self.fan_abnormal = self.on_battery = False
        self._told = float("-inf")  # when throttling was logged last

    @batched
    def start(self) -> None:
        """Enable announcements, which a reset disables. The SMU runs."""
        self.fan_abnormal = self.on_battery = False
        mp1 = self.chip.mp1
        mp1.MP1_SMN_IH_SW_INT.update(ID=TO_DRIVER, VALID=0)
        mp1.MP1_SMN_IH_SW_INT_CTRL.update(INT_MASK=0)

    def stop(self) -> None:
        """Disable announcements."""
        self.chip.mp1.MP1_SMN_IH_SW_INT_CTRL.update(INT_MASK=1)

    def take(self, device: str, event: int) -> bool:
        """Acknowledge an event and note it; return whether it concerns the temperature limit.

        ORDER: the acknowledgement first; the SMU announces nothing before it.
        """
        self.chip.mp1.MP1_SMN_IH_SW_INT_CTRL.update(INT_ACK=1)
        trace.point("smu", device=device, announces=_NAMES.get(event, f"event {event}"))
        if event == THROTTLING:
            self._throttled(device)
        elif event in (AC, DC):
            self._supplied(device, battery=event == DC)
        elif event in (FAN_ABNORMAL, FAN_RECOVERY):
            self.fan_abnormal = event == FAN_ABNORMAL
            return True
        else:
            log.info("%s: the SMU announces event %d, which has no known meaning", device, event)
        return False

    def _throttled(self, device: str) -> None:
        self.throttlings += 1
        now = self.chip.clock.now()
        if now - self._told < _QUIET_S:
            return
        self._told = now
        try:
            share = self.smu.metrics().ThrottlingPercentage
        except FirmwareError as error:
            why = f"for a reason that cannot be read: {error}"
        else:
            names = [name for at, name in reasons_of(self.smu) if share[at]]
            why = ", ".join(names) or "for a reason that has passed"
        log.warning("%s: the SMU lowers clocks: %s", device, why)

    def _supplied(self, device: str, *, battery: bool) -> None:
        """Note the power source, and enable its next report (smu_v13_0_ack_ac_dc_interrupt)."""
        self.on_battery = battery
        log.warning("%s runs on %s", device, "a battery" if battery else "the mains")
        try:
            self.smu.tell("ReenableAcDcInterrupt")
        except FirmwareError as error:
            log.warning("%s: changes of the power source are not announced: %s", device, error)
