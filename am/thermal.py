"""THM: the thermal controller, which tells when the chip gets too hot.

The board's power-play table states at which temperature a driver has to stop the chip. Linux then
waits 50 ms, reads the temperature again, and switches the machine off. At a higher one the board
cuts the power by itself, and says so before (critical temperature fault, CTF). Source: Linux 6.12
smu_v13_0.c (smu_v13_0_set_irq_state, smu_v13_0_irq_process), smu_v13_0_0_pptable.h (the table),
smu_v13_0_0_ppt.c (smu_v13_0_0_get_thermal_temperature_range), soc15_ih_clientid.h.
"""

from __future__ import annotations

import logging
import struct

from am import advice
from am.chip import Chip, batched
from am.regs import constants
from am.smu import Smu
from hcq.errors import FirmwareError, FirmwareRejected, LinkError, OverTemperature

log = logging.getLogger(__name__)

_SHUTDOWN = struct.Struct("<29xH")  # software_shutdown_temp, in the packed table
_HEAD_SIZE = 32  # of the table, to whole dwords
_LEAST, _MOST = 60, 255  # degrees: what a limit may be; the field has 8 bits
_CREDIT = 5  # interrupts that the interrupt handler has not taken yet, at most
_TOO_HOT, _GPIO_19 = 0, 83

_CLIENTS = constants("soc15_ih_clientid")
CLIENT_THM = int(_CLIENTS.SOC15_IH_CLIENTID_THM)
CLIENT_SMUIO = int(_CLIENTS.SOC15_IH_CLIENTID_ROM_SMUIO)


class Thermal:
    """Drive one chip's controller. limit: degrees Celsius of the hottest place beyond which the
    chip must not work; 0 where nothing states it, or the chip has no controller that we know.
    moments: how often it was passed and not found passed any more."""

    def __init__(self, chip: Chip, smu: Smu) -> None:
        self.chip = chip
        self.smu = smu
        self.limit = 0
        self.moments = 0

    def start(self) -> None:
        """Learn the limit and have its crossing told. The SMU runs."""
        self.limit = 0
        if not self.chip.instances("THM"):
            log.info("no table of the thermal controller's registers: over-temperature is not told")
            return
        try:
            table = self.smu.table("TABLE_COMBO_PPTABLE", _HEAD_SIZE)
        except FirmwareRejected as error:
            log.warning("over-temperature is not told: %s", error)
            return
        (limit,) = _SHUTDOWN.unpack_from(table)
        if not _LEAST <= limit <= _MOST:
            log.warning(
                "over-temperature is not told: expected a shutdown temperature of %d to %d degrees "
                "in the board's table, found %d",
                _LEAST, _MOST, limit,
            )  # fmt: skip
            return
        self.limit = limit
        self._switch_on()

    @batched
    def _switch_on(self) -> None:
        thm = self.chip.thm
        thm.THM_THERMAL_INT_CTRL.update(
            MAX_IH_CREDIT=_CREDIT,
            THERM_IH_HW_ENA=1,
            THERM_INTH_MASK=0,
            THERM_INTL_MASK=0,
            THERM_TRIGGER_MASK=0,
            DIG_THERM_INTH=self.limit,
            DIG_THERM_INTL=0,
        )
        thm.THM_THERMAL_INT_ENA.write(THERM_INTH_CLR=1, THERM_INTL_CLR=1, THERM_TRIGGER_CLR=1)

    def stop(self) -> None:
        """Have nothing told any more."""
        if not self.limit:
            return
        thm = self.chip.thm
        thm.THM_THERMAL_INT_CTRL.update(THERM_INTH_MASK=1, THERM_INTL_MASK=1)
        thm.THM_THERMAL_INT_ENA.write(0)

    def hotspot(self) -> int:
        """Degrees Celsius of the hottest place, as the SMU measures it."""
        index = constants(self.smu.interface.tables).TEMP_HOTSPOT
        return int(self.smu.metrics().AvgTemperature[index])

    def explain(self, device: str, client: int, source: int) -> OverTemperature | None:
        """The failure that an interrupt of the controller means; None where it is none (any more),
        or where another block has sent it. The device's lock is held."""
        if client == CLIENT_SMUIO and source == _GPIO_19:
            return OverTemperature(
                f"{device} met its critical temperature: the board cuts its power",
                limit_celsius=self.limit,
                remedy=advice.COOL_OFF,
            )
        if client != CLIENT_THM or source != _TOO_HOT:
            return None
        try:
            return self.excess(device)
        except (FirmwareError, LinkError) as error:
            return OverTemperature(
                f"{device} reports more than {self.limit} degrees Celsius, and its sensors cannot "
                f"be read: {error}",
                limit_celsius=self.limit,
                remedy=advice.COOL,
            )

    def excess(self, device: str) -> OverTemperature | None:
        """The failure of a chip that is too hot at this moment."""
        celsius = self.hotspot()
        if not self.limit or celsius < self.limit:
            self.moments += 1
            log.warning(
                "%s was hotter than %d degrees Celsius for a moment, and is at %d now",
                device, self.limit, celsius,
            )  # fmt: skip
            return None
        return OverTemperature(
            f"{device} is too hot: {celsius} degrees Celsius, at most {self.limit} expected",
            celsius=celsius,
            limit_celsius=self.limit,
            remedy=advice.COOL,
        )
