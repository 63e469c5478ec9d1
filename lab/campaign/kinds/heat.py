"""AMD cards that get too hot."""

from __future__ import annotations

from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from ugpu.hcq.errors import OverTemperature

_SOURCE = "Linux smu_v13_0.c"
_LIMIT = 118  # of the virtual board
_HOT = _LIMIT + 4
_LOWERED = _LIMIT - 12  # of the same board, while a fan does not turn
_AWAY = ("which nothing decodes", "bus mastering off", "IOMMU")


def heat(name: str, stages: tuple[str, ...], plant: Any, error: Any, **fields: Any) -> Kind:
    made: dict[str, Any] = {
        "layer": Layer.HARDWARE, "devices": ("navi31", "navi31+usb", "navi48"), "source": _SOURCE,
        "cure": lambda stand: stand.chip.thermal.cool(), "facts": {"limit_celsius": _LIMIT},
    }  # fmt: skip
    return Kind(name=name, stages=stages, plant=plant, error=error, **(made | fields))


def _heat(stand: Any) -> None:
    stand.chip.thermal.heat(_HOT)


def _flash(stand: Any) -> None:
    stand.chip.thermal.heat(_HOT)
    stand.chip.thermal.heat(_LIMIT - 20)


def _critical(stand: Any) -> None:
    stand.chip.thermal.critical()


def _again(stand: Any) -> None:
    stand.chip.thermal.cool()
    stand.chip.power_cycle()


def _stall_and_heat(stand: Any) -> None:
    """Hotter than is allowed while a fan does not turn, and less than else."""
    stand.chip.announcements.stall_fan()
    stand.chip.thermal.heat(_LOWERED + 4)


def _turn_and_cool(stand: Any) -> None:
    stand.chip.thermal.cool()
    stand.chip.announcements.turn_fan()


def _announced(stand: Any) -> Any:
    return stand.device.driver.units.thermal.announcements


def _is_stalled(stand: Any) -> bool:
    stand.device.synchronize()  # what came during a reset
    return bool(_announced(stand).fan_abnormal)


def _was_told(stand: Any) -> bool:
    return bool(stand.device.driver.units.thermal.moments)


KINDS = [
    heat("chip is hotter than its board allows", ("idle", "launch", "copy", "wait", "close"),
         _heat, OverTemperature, planted=f"`chip.thermal.heat({_HOT})`", errors={"close": None},
         state="THM: too hot", remedy="let the card cool"),
    heat("chip is briefly too hot", ("idle", "launch", "copy"), _flash, None,
         planted=f"`chip.thermal.heat({_HOT})`, then {_LIMIT - 20}", recovery=Recovery.NONE,
         struck=_was_told),
    heat("fan does not turn and the chip exceeds the lower limit",
         ("idle", "launch", "copy", "wait"), _stall_and_heat, OverTemperature,
         planted=f"`chip.announcements.stall_fan()`, then `chip.thermal.heat({_LOWERED + 4})`",
         cure=_turn_and_cool, facts={"limit_celsius": _LOWERED}, state="THM: too hot",
         remedy="check its fan"),
    heat("fan does not turn", ("idle", "launch", "copy", "reset"),
         lambda s: s.chip.announcements.stall_fan(), None, recovery=Recovery.NONE,
         planted="`chip.announcements.stall_fan()`", cure=_turn_and_cool,
         struck=_is_stalled),
    heat("SMU lowers clocks", ("idle", "launch", "copy"),
         lambda s: s.chip.announcements.throttle("TEMP_HOTSPOT"), None, recovery=Recovery.NONE,
         planted='`chip.announcements.throttle("TEMP_HOTSPOT")`', layer=Layer.FIRMWARE,
         cure=lambda s: s.chip.announcements.relax(),
         struck=lambda s: _announced(s).throttlings == 1),
    heat("card runs on battery power", ("idle", "launch", "copy"),
         lambda s: s.chip.announcements.supply(battery=True), None, recovery=Recovery.NONE,
         planted="`chip.announcements.supply(battery=True)`", layer=Layer.POWER,
         cure=lambda s: None, struck=lambda s: _announced(s).on_battery),
    heat("SMU sends an unknown announcement", ("idle", "launch"),
         lambda s: s.chip.announcements._announce(0x2A), None, recovery=Recovery.NONE,
         planted="an announcement with context 0x2a", layer=Layer.FIRMWARE, cure=lambda s: None),
    heat("chip reaches its critical temperature", ("idle", "launch", "copy", "wait"), _critical,
         OverTemperature, planted="`chip.thermal.critical()`, which cuts the power",
         layer=Layer.POWER, remedy="power the card off", cure=_again, recovery=Recovery.REOPEN,
         objections=_AWAY),
]  # fmt: skip
