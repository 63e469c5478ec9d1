"""What owners of AMD cards have reported in public, where the driver has to cope.

Other files plant what the driver must name: a queue that does not leave the hardware
(ublue-os/bazzite#4464), a core that needs mode1, which loses memory (bazzite#5729, SteamOS#2802),
and discovery tables that cannot be read (ROCm#4454, #5008). Clocks that stay low under load
(ROCm#5849) are found by the self-test of a card (ugpu.tools.ci.health and its tests). Not planted:
a scheduler's firmware that hangs (ROCm#5724), as ugpu's driver has no scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.kinds.firmware import NAVI

_LATE_S = 0.03  # after power-on, several times the usual; the campaign's limits are shorter, too
_OTHER = 0x32  # interface version of an SMU's firmware, which no table of the driver has
_LARGER = 0x1900000  # bytes of the firmware's region: more than the usual 0x1300000
_FIRST = "config space"


def copes(name: str, stages: tuple[str, ...], plant: Any, planted: str, source: str) -> Kind:
    return Kind(
        name=name, layer=Layer.FIRMWARE, planted=planted, devices=NAVI, stages=stages, plant=plant,
        error=None, source=source, recovery=Recovery.NONE,
    )  # fmt: skip


def _other_interface(stand: Any) -> None:
    stand.chip.options = replace(stand.chip.options, smu_driver_if=_OTHER)


def _late(stand: Any) -> None:
    options = stand.chip.options
    stand.chip.options = replace(options, delays=replace(options.delays, ifwi=_LATE_S))
    stand.chip.power_cycle()


def _larger_region(stand: Any) -> None:
    stand.chip.options = replace(stand.chip.options, tmr_size=_LARGER)
    stand.chip.power_cycle()


def _without_optional(stand: Any) -> None:
    spared = tuple(f.name.split("{}")[1] for f in stand.facts.generation.firmware if f.optional)
    stand.changes["firmware"] = lambda files: {
        name: data for name, data in files.items() if not name.endswith(spared)
    }


KINDS = [
    copes("SMU has another interface version", ("SMU",), _other_interface,
          f"`ChipOptions(smu_driver_if={_OTHER:#x})`",
          "raspberry-pi-pcie-devices#741, freebsd/drm-kmod#462"),
    copes("board firmware is late", (_FIRST,), _late, f"`Delays(ifwi={_LATE_S})`",
          "omacom/omarchy#4047: a card attached at boot"),
    copes("firmware needs a larger region", (_FIRST,), _larger_region,
          f"`ChipOptions(tmr_size={_LARGER:#x})`", "tinygrad#15744: a RX 7800M"),
    copes("optional firmware files are missing", (_FIRST,), _without_optional,
          "other firmware files", "raspberry-pi-pcie-devices#741"),
]  # fmt: skip
