"""AMD cards that get too hot."""

from __future__ import annotations

from typing import Any

from hcq.errors import OverTemperature
from tests.campaign.kind import Kind, Layer, Recovery

_SOURCE = "Linux smu_v13_0.c"
_LIMIT = 118  # of the virtual board
_HOT = _LIMIT + 4
_AWAY = ("which nothing decodes", "bus mastering off", "IOMMU")


def heat(name: str, stages: tuple[str, ...], plant: Any, error: Any, **fields: Any) -> Kind:
    made: dict[str, Any] = {
        "layer": Layer.HARDWARE, "devices": ("navi31", "navi31+usb"), "source": _SOURCE,
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


def _was_told(stand: Any) -> bool:
    return bool(stand.device.driver.units.thermal.moments)


KINDS = [
    heat("chip is hotter than its board allows", ("idle", "launch", "copy", "wait", "close"),
         _heat, OverTemperature, planted=f"`chip.thermal.heat({_HOT})`", errors={"close": None},
         state="THM: too hot", remedy="let the card cool"),
    heat("chip is too hot for a moment", ("idle", "launch", "copy"), _flash, None,
         planted=f"`chip.thermal.heat({_HOT})`, then {_LIMIT - 20}", recovery=Recovery.NONE,
         struck=_was_told),
    heat("chip meets its critical temperature", ("idle", "launch", "copy", "wait"), _critical,
         OverTemperature, planted="`chip.thermal.critical()`, which cuts the power",
         layer=Layer.POWER, remedy="power the card off", cure=_again, recovery=Recovery.REOPEN,
         objections=_AWAY),
]  # fmt: skip
