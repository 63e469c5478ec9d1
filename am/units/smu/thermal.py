"""THM: the thermal controller, which reports when the chip gets too hot.

The board's power-play table states at which temperature a driver has to stop the chip, and how much
lower that is while a fan does not turn. Linux then waits 50 ms, reads the temperature again, and
switches the machine off. At a higher temperature the board cuts the power by itself, and reports
that first (critical temperature fault, CTF). Source: Linux 6.12 smu_v13_0.c
(smu_v13_0_set_irq_state, smu_v13_0_irq_process), smu_v13_0_0_pptable.h (the table),
smu_v13_0_0_ppt.c (smu_v13_0_0_get_thermal_temperature_range), soc15_ih_clientid.h.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.regs import constants, structs
from ugpu.am.units.smu.announcements import CLIENT_MP1, TO_DRIVER, Announcements
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.bare.program import HostPrograms
from ugpu.hcq.errors import FirmwareError, FirmwareRejected, LinkError, OverTemperature

log = logging.getLogger(__name__)

_TABLE = "TABLE_COMBO_PPTABLE"
_OFFSET = struct.Struct("<h")  # FanAbnormalTempLimitOffset
_LEAST, _MOST = 60, 255  # degrees: valid range of a limit; the field has 8 bits
_CREDIT = 5  # maximum of interrupts that the interrupt handler has not taken yet
_TOO_HOT, _GPIO_19 = 0, 83

_CLIENTS = constants("soc15_ih_clientid")
CLIENT_THM = int(_CLIENTS.SOC15_IH_CLIENTID_THM)
CLIENT_SMUIO = int(_CLIENTS.SOC15_IH_CLIENTID_ROM_SMUIO)
# Clients whose interrupts concern no queue.
WHOLE_CARD = frozenset({CLIENT_THM, CLIENT_SMUIO, CLIENT_MP1})


class Thermal:
    """Drive one chip's thermal controller. limit: temperature of the hottest place, in degrees
    Celsius, beyond which the chip must not work; 0 if none is stated, or if the chip has no
    controller that ugpu knows. stated: the board's limit; `limit` is lower while a fan does not
    turn. moments: how often a crossing was reported that was over when it was checked.
    announcements: the events that the SMU reports by itself."""

    def __init__(self, chip: Chip, smu: Smu) -> None:
        self.chip = chip
        self.smu = smu
        self.limit = self.stated = 0
        self.moments = 0
        self.announcements = Announcements(chip, smu)
        self._limit_place = smu.interface.shutdown_place
        self._offset = 0
        self._control: int | None = None  # register value that `_ask` read

    def start(self, programs: HostPrograms) -> None:
        """Read the limit; enable reports of its crossing and SMU announcements. The SMU runs."""

        def take(words: Sequence[int]) -> None:
            self._take_answer(words)
            programs.leave(self.switch_on)

        programs.leave(self._ask, read=self._places, then=take)

    def _exists(self) -> bool:
        return bool(self.chip.instances("THM"))

    def _offset_place(self) -> int:
        """Place in the table of the offset that applies while a fan does not turn."""
        interface = self.smu.interface
        member = structs(interface.tables).PPTable_t.offset_of(interface.fan_offset)
        return interface.pptable_place + member

    def _ask(self) -> None:
        """As a step: have the SMU write the board's table and announce events. `_places` must be
        read after it, for `_take_answer`."""
        if self._exists():
            self.smu.ask("TransferTableSmu2Dram", self.smu.table_number(_TABLE))
            self.chip.bus.take(self.chip.thm.THM_THERMAL_INT_CTRL, self._note_control)
        self.announcements.start()

    def _note_control(self, value: int) -> None:
        self._control = value

    def _places(self) -> list[int]:
        """VRAM addresses of the words that `_take_answer` needs."""
        table = self.smu.carveout.smu_table
        places = (self._limit_place, self._offset_place()) if self._exists() else ()
        return [table + at & ~3 for at in places]

    def _take_answer(self, words: Sequence[int]) -> None:
        """Take the content of `_places`. `switch_on` is next."""
        self.limit = self.stated = 0
        if not self._exists():
            log.info("no registers of the thermal controller: over-temperature is not reported")
            return
        try:
            self.smu.answer("TransferTableSmu2Dram")
        except FirmwareRejected as error:
            log.warning("over-temperature is not reported: %s", error)
            return
        self._take_words(words)

    # ---- the limit -----------------------------------------------------------------------------

    def _take_words(self, words: Sequence[int]) -> None:
        limit, offset = (word.to_bytes(4, "little") for word in words)
        self._take(
            int.from_bytes(limit[self._limit_place & 3 :][:2], "little"),
            *_OFFSET.unpack_from(offset, self._offset_place() & 3),
        )

    def _take(self, limit: int, offset: int) -> None:
        if not _LEAST <= limit <= _MOST:
            log.warning(
                "over-temperature is not reported: expected a shutdown limit of %d to %d degrees "
                "in the board's table, found %d",
                _LEAST, _MOST, limit,
            )  # fmt: skip
            return
        self.limit = self.stated = limit
        self._offset = offset

    @batched
    def switch_on(self) -> None:
        """As a step: enable reports of crossing the limit, if the board's table has one."""
        if not self.limit:
            return
        thm, found = self.chip.thm, self._control
        thm.THM_THERMAL_INT_CTRL.write(
            int(thm.THM_THERMAL_INT_CTRL.read()) if found is None else found,
            MAX_IH_CREDIT=_CREDIT,
            THERM_IH_HW_ENA=1,
            THERM_INTH_MASK=0,
            THERM_INTL_MASK=0,
            THERM_TRIGGER_MASK=0,
            DIG_THERM_INTH=self.limit,
            DIG_THERM_INTL=0,
        )
        thm.THM_THERMAL_INT_ENA.write(THERM_INTH_CLR=1, THERM_INTL_CLR=1, THERM_TRIGGER_CLR=1)

    def _change_limit(self, device: str) -> None:
        """Change the limit after the SMU has announced a fan's state."""
        if not self.stated:
            return
        bad = self.announcements.fan_abnormal
        limit = self.stated + (self._offset if bad else 0)
        if not _LEAST <= limit <= _MOST:
            log.warning("%s: the board lowers its limit to %d degrees; ignored", device, limit)
            return
        self.limit = limit
        self.chip.thm.THM_THERMAL_INT_CTRL.update(DIG_THERM_INTH=limit, THERM_TRIGGER_MASK=0)
        what = "a fan does not turn as it should" if bad else "the fans turn again"
        log.warning("%s: %s: the limit is now %d degrees Celsius", device, what, limit)

    def stop(self) -> None:
        """Disable all reports."""
        self.announcements.stop()
        if not self.limit:
            return
        thm = self.chip.thm
        thm.THM_THERMAL_INT_CTRL.update(THERM_INTH_MASK=1, THERM_INTL_MASK=1)
        thm.THM_THERMAL_INT_ENA.write(0)

    def hotspot(self) -> int:
        """Degrees Celsius of the hottest place, as the SMU measures it."""
        index = constants(self.smu.interface.tables).TEMP_HOTSPOT
        return int(self.smu.metrics().AvgTemperature[index])

    def explain(
        self, device: str, client: int, source: int, event: int = 0
    ) -> OverTemperature | None:
        """Return the failure that an interrupt of the controller reports; None if there is none
        (any more), or if another block sent it. event: the first data word, in which the SMU names
        its announcement. The device's lock is held."""
        if client == CLIENT_MP1 and source == TO_DRIVER:
            if self.announcements.take(device, event):
                self._change_limit(device)
            return None
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
        """Return the failure of a chip that is too hot now; None if it is not."""
        celsius = self.hotspot()
        if not self.limit or celsius < self.limit:
            self.moments += 1
            log.warning(
                "%s exceeded %d degrees Celsius briefly, and is at %d now",
                device, self.limit, celsius,
            )  # fmt: skip
            return None
        fan = ", as a fan does not turn as it should" if self.limit < self.stated else ""
        return OverTemperature(
            f"{device} is too hot: {celsius} degrees Celsius, at most {self.limit} expected{fan}",
            celsius=celsius,
            limit_celsius=self.limit,
            remedy=advice.COOL,
        )
