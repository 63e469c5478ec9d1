"""Navi32, whose SMU resets the graphics core alone: what breaks there, and in that reset."""

from __future__ import annotations

import random
import sys
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.kinds.firmware import planned
from lab.campaign.kinds.host import Raiser
from ugpu.hcq.errors import ChipError, DeviceHang, FirmwareRejected, FirmwareSilent, UgpuError
from ugpu.virtual.amd.block import Reset

_MODE2 = "Linux smu_v13_0_10.c"
_LINES = 900  # of the driver that a reset by mode2 runs, about


def _mode2(stand: Any) -> None:
    stand.device.driver.units.psp.limit_s = 2.0
    stand.device.reset("mode2")


def _lose_firmware(stand: Any) -> None:
    """As after a glitch of the core's supply: RLC, command processors and copy engines are off."""
    chip = stand.chip
    chip.gfx.rlc.reset(Reset.GFX)
    chip.faults.mec_crashed = chip.faults.sdma_crashed = True


def in_mode2(name: str, plan: dict[str, Any], error: type[UgpuError], **fields: Any) -> Kind:
    """What goes wrong while `device.reset("mode2")` is at work; the next reset repeats it."""
    made: dict[str, Any] = {
        "devices": ("navi32",), "source": _MODE2, "recovery": Recovery.RESET, "provoke": _mode2,
        "facts": {"rung": "mode2 reset"},
    }  # fmt: skip
    return planned(name, ("reset",), plan, error, **(made | fields))


def loses_firmware(devices: tuple[str, ...], rung: str, *, lost: bool) -> Kind:
    return Kind(
        name=f"graphics core loses its firmware, {rung} helps", layer=Layer.POWER,
        planted="`chip.gfx.rlc.reset()`, engines make no progress", devices=devices,
        stages=("launch", "copy"), plant=_lose_firmware, error=DeviceHang, lost=lost,
        state="RLC: autoload not complete", remedy="device.reset()", source=_MODE2,
        objections=("before gc is up",) if lost else (),
    )  # fmt: skip


def at_a_line(name: str, what: type[BaseException]) -> Kind:
    def plant(stand: Any) -> None:
        number = random.Random(f"{stand.seed} {stand.variant}").randrange(_LINES)
        sys.settrace(Raiser(number, what))

    return Kind(
        name=f"{name} in a mode2 reset", layer=Layer.HOST, devices=("navi32",), stages=("reset",),
        planted=f"{what.__name__} at a line, by `sys.settrace`", plant=plant, provoke=_mode2,
        error=what, cure=lambda _: sys.settrace(None), may_cope=True, variants=6,
        recovery=Recovery.GO_ON, source="signal(7)",
    )  # fmt: skip


KINDS = [
    loses_firmware(("navi32",), "mode2", lost=False),
    loses_firmware(("navi31", "navi48"), "mode1", lost=True),
    in_mode2("SMU acknowledges mode2 and does nothing", {"mode2_ignored": True}, FirmwareSilent),
    in_mode2("SMU fails mode2", {"smu_responses": {0x4F: 0xFF}}, FirmwareRejected),
    in_mode2("PSP refuses the IMU after mode2", {"psp_reject": {"IMU_D"}}, FirmwareRejected,
             remedy="update the firmware images"),
    in_mode2("PSP refuses to start the RLC after mode2", {"psp_commands": {0x21: 0x80}},
             FirmwareRejected),
    in_mode2("PSP is silent after mode2", {"psp_silent": True}, FirmwareSilent),
    in_mode2("RLC is silent after mode2", {"autoload_never": True}, FirmwareSilent,
             state="RLC: autoload not complete"),
    in_mode2("graphics hub does not acknowledge a TLB flush after mode2", {"tlb_no_ack": {"gc"}},
             ChipError, layer=Layer.HARDWARE),
    at_a_line("Ctrl-C", KeyboardInterrupt),
    at_a_line("memory of the process runs out", MemoryError),
]  # fmt: skip
