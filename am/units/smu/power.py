"""The power limit of a board: read, set and restored through its SMU.

The SMU lowers clocks so that the socket's average power stays below the limit of its first
controller (PPT0). The range is that of Linux: from the board's limit less the percentage that its
table allows, to the most that the message takes. Limits above, which need the overdrive table, are
not supported. Source: Linux smu_v13_0.c and smu_v14_0.c (..._set_power_limit,
..._get_current_power_limit), smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c and smu_v14_0_2_ppt.c
(..._get_power_limit), smu_v13_0_0_pptable.h.
"""

from __future__ import annotations

import logging

from ugpu.am.regs import constants, structs
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.errors import BadArgument, ChipError, FirmwareRejected, UgpuError
from ugpu.hcq.state.telemetry import PowerLimit

log = logging.getLogger(__name__)

_TABLE = "TABLE_COMBO_PPTABLE"
_MOST_WATTS = 0xFFFF  # of the message; bits above select the source and the controller


class PowerLimiter:
    """One card's power limit. The caller holds the card's lock. wanted: set by `set`, in watts."""

    def __init__(self, smu: Smu) -> None:
        self.smu = smu
        self.wanted: int | None = None
        self._before: int | None = None  # to restore at the end
        self._watts: int | None = None  # the SMU's; None: not known
        self._range: PowerLimit | None = None

    def watts(self) -> int:
        """Return the limit. FirmwareSilent, FirmwareRejected."""
        if self._watts is None:
            source = constants(self.smu.interface.tables).POWER_SOURCE_AC
            self._watts = self.smu.send("GetPptLimit", source << 16) & _MOST_WATTS
        return self._watts

    def limit(self) -> PowerLimit:
        """Return the limit and the board's range. ChipError if the board's table has none."""
        if self._range is None:
            self._range = self._read_range()
        return self._range._replace(watts=float(self.watts()))

    def _read_range(self) -> PowerLimit:
        interface = self.smu.interface
        layout, ids = structs(interface.tables).PPTable_t, constants(interface.tables)
        size = interface.pptable_place + layout.size
        raw = self.smu.table(_TABLE, -(-size // 4) * 4)
        table = layout.view(raw[interface.pptable_place : size])
        usual = int(table[interface.power_limits].SocketPowerLimitAc[ids.PPT_THROTTLER_PPT0])
        power = table.SkuTable.MsgLimits.Power
        most = int(power[ids.PPT_THROTTLER_PPT0][ids.POWER_SOURCE_AC])
        percent = 0
        if table.SkuTable.OverDriveLimitsBasicMax.FeatureCtrlMask >> ids.PP_OD_FEATURE_PPT_BIT & 1:
            at = interface.power_floor_place  # 10 % less is 10 on SMU 13, and -10 on SMU 14
            percent = abs(int.from_bytes(raw[at : at + 2], "little", signed=True))
        if not (0 < usual <= most and percent < 100):
            raise ChipError(
                "the board's table has no valid power limits: expected a limit that is at most the "
                f"most and a percentage below 100, found {usual} W, {most} W and {percent} %",
                unit="SMU",
            )
        return PowerLimit(0.0, float(usual * (100 - percent) // 100), float(most), float(usual))

    def set(self, watts: float, *, keep: bool = False) -> None:
        """Set the limit; fractions are cut off. keep: `restore` leaves it. BadArgument with the
        range for a limit outside; FirmwareRejected if the SMU refuses, and nothing has changed."""
        limit = self.limit()
        assert limit.least is not None and limit.most is not None
        if not limit.least <= watts <= limit.most:
            raise BadArgument(
                f"expected a power limit of {limit.least:g} to {limit.most:g} W, which the board "
                f"allows, got {watts:g} W"
            )
        first = self._before is None
        if first:
            self._before = self.watts()
        try:
            self._send(int(watts))
        except FirmwareRejected:
            self._before = None if first else self._before
            raise
        self.wanted = int(watts)
        if keep:
            self._before = None

    def _send(self, watts: int) -> None:
        self._watts = None  # unknown if an exception ends this
        try:
            self.smu.tell("SetPptLimit", watts)
        except FirmwareRejected as error:
            raise FirmwareRejected(
                f"the SMU refuses a power limit of {watts} W: {error.message}", **error.facts
            ) from error
        self._watts = watts

    def restore(self) -> bool:
        """Set what `set` found at first, if anything. Return whether the limit is that again."""
        if self._before is None:
            return True
        try:
            self._send(self._before)
        except UgpuError as error:
            log.warning("the power limit is not restored to %d W: %s", self._before, error)
            return False
        self._before = self.wanted = None
        return True

    def restore_usual(self) -> None:
        """Set the board's own limit: a process that died may have left another one."""
        limit = self.limit()
        if limit.usual is not None and limit.watts != limit.usual:
            log.warning("the power limit of %g W was left by a process that died", limit.watts)
            self._send(int(limit.usual))

    def after_reset(self) -> None:
        """Note that the SMU was reset, and has the board's limit."""
        self._watts = self._before = None

    def apply_again(self) -> None:
        """Set the wanted limit again, if any: the SMU runs after a reset."""
        if self.wanted is not None:
            self.set(self.wanted)
