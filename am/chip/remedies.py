"""Remedies, as texts for errors (fact `remedy`) and named states: those for all cards, and ours."""

from __future__ import annotations

from ugpu.hcq.bare.firmware import FirmwarePackage
from ugpu.hcq.bare.remedies import BOOT, COOL, COOL_OFF, DAMAGED, LINK, PLACES, POWER_CYCLE, RESET

__all__ = [
    "BOOT",
    "COOL",
    "COOL_OFF",
    "DAMAGED",
    "FIRMWARE",
    "LINK",
    "MODE1",
    "PLACES",
    "POWER_CYCLE",
    "REFUSED",
    "RESET",
]

MODE1 = "device.reset() or `force_cold=True` resets the chip (mode1)"
# Our choice of a limit: the largest file of the chips in am/chips has 2 MiB.
PACKAGE = FirmwarePackage("amdgpu", ("linux-firmware", "firmware-amd-graphics"), 16 << 20)
FIRMWARE = PACKAGE.remedy
REFUSED = "update the firmware images; the chip needs a bus reset"
