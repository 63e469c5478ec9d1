"""Firmware of AMD cards that refuses, is silent, or does not what it should."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from ugpu.hcq.errors import DeviceHang, FirmwareRejected, FirmwareSilent, UgpuError
from ugpu.virtual.amd.options import FaultPlan

NAVI = ("navi31", "navi48")  # of GFX 11 and GFX 12
PSP, PSP_RING = "Linux psp_v13_0.c", "Linux psp_gfx_if.h, amdgpu_psp.c"
SMU, GFX = "Linux smu_cmn.c", "Linux gfx_v11_0.c"
_POWER = "power the card off and on"


def planned(
    name: str, stages: tuple[str, ...], plan: dict[str, Any], error: type[UgpuError] | None,
    **fields: Any,
) -> Kind:  # fmt: skip
    """A kind of virtual.amd.options.FaultPlan; cured by taking the plan back."""

    def plant(stand: Any) -> None:
        for key, value in plan.items():
            setattr(stand.chip.faults, key, value)

    def cure(stand: Any) -> None:
        for key in plan:
            setattr(stand.chip.faults, key, getattr(FaultPlan(), key))

    shown = ", ".join(f"{key}={value!r}" for key, value in plan.items())
    made: dict[str, Any] = {
        "layer": Layer.FIRMWARE, "planted": f"`FaultPlan({shown})`", "devices": NAVI,
        "plant": plant, "cure": cure, "recovery": Recovery.REOPEN,
    }  # fmt: skip
    return Kind(name=name, stages=stages, error=error, **(made | fields))


def powered(kind: str) -> dict[str, Any]:
    """Cured by power: what is set is taken back and the card is switched off and on."""

    def cure(stand: Any) -> None:
        setattr(stand.chip.faults, kind, False)
        stand.chip.power_cycle()

    return {"cure": cure}


def bootloader(component: str, kind: str) -> Kind:
    return planned(
        f"PSP bootloader refuses {component}", ("PSP bootloader",), {"psp_reject": {kind}},
        FirmwareRejected, source=PSP, facts={"stage": "PSP bootloader", "status": 15},
        state="PSP: bootloader refused", remedy="update the firmware images",
    )  # fmt: skip


def image(what: str, kind: str, stage: str) -> Kind:
    return planned(
        f"PSP refuses the image of {what}", (stage,), {"psp_reject": {kind}}, FirmwareRejected,
        source=PSP_RING, facts={"stage": stage, "status": 15}, remedy="update the firmware images",
    )  # fmt: skip


def command(what: str, number: int, stage: str, remedy: str = "mode1") -> Kind:
    return planned(
        f"PSP refuses {what}", (stage,), {"psp_commands": {number: 0x80}}, FirmwareRejected,
        source=PSP_RING, facts={"stage": stage, "status": 0x80}, remedy=remedy,
    )  # fmt: skip


def message(what: str, status: int, remedy: str) -> Kind:
    """Message 6 is EnableAllSmuFeatures, 2 GetSmuVersion (smu_v13_0_0_ppsmc.h)."""
    return planned(
        f"SMU {what}", ("SMU",), {"smu_responses": {6: status}}, FirmwareRejected, source=SMU,
        facts={"stage": "SMU", "image": "SMU", "status": status}, remedy=remedy,
    )  # fmt: skip


def _again_ifwi(stand: Any) -> None:
    stand.chip.faults.ifwi_never = True
    stand.chip.power_cycle()


def until_mode1(**plan: object) -> Any:
    """Plant a plan that a mode1 reset, by whatever way, takes back."""

    def plant(stand: Any) -> None:
        chip = stand.chip
        strike = chip.mode1_reset
        before = {name: getattr(chip.faults, name) for name in plan}

        def cured() -> None:
            for name, value in before.items():
                setattr(chip.faults, name, value)
            strike()

        chip.mode1_reset = cured
        for name, value in plan.items():
            setattr(chip.faults, name, value)

    return plant


def _stuck(stand: Any) -> None:
    until_mode1(smu_silent=True)(stand)
    stand.device.driver.units.smu.limit_s = 0.5
    with contextlib.suppress(FirmwareSilent):
        stand.read_sensors()


KINDS = [
    planned(
        "board firmware never finishes", ("config space",), {"ifwi_never": True}, FirmwareSilent,
        source="Linux amdgpu_discovery.c", facts={"stage": "board firmware"},
        state="board firmware: not done", remedy=_POWER, plant=_again_ifwi, **powered("ifwi_never"),
    ),
    bootloader("the key database", "KDB"),
    bootloader("a driver", "SYS_DRV"),
    bootloader("the secure OS", "SOS"),
    planned(
        "PSP bootloader accepts a component and does not become ready again", ("PSP bootloader",),
        {"bootloader_never": True}, FirmwareSilent, source=PSP, facts={"stage": "PSP bootloader"},
        state="PSP: bootloader not ready", remedy=_POWER, **powered("bootloader_never"),
    ),
    planned(
        "secure OS never starts", ("PSP bootloader",), {"secure_os_never": True}, FirmwareSilent,
        source=PSP, facts={"stage": "PSP bootloader"}, state="PSP: bootloader not ready",
        remedy=_POWER, **powered("secure_os_never"),
    ),
    planned(
        "PSP refuses its ring", ("PSP ring",), {"psp_ring_status": 7}, FirmwareRejected,
        source=PSP, facts={"image": "ring", "status": 7}, state="PSP: ring refused",
        remedy="mode1",
    ),
    planned(
        "PSP does not answer the ring's creation", ("PSP ring",), {"ring_never": True},
        FirmwareSilent, source=PSP, facts={"stage": "PSP ring"}, state="PSP: ring busy",
        remedy="mode1",
    ),
    planned(
        "PSP does not complete commands", ("TMR", "IP firmware"), {"psp_silent": True},
        FirmwareSilent, source=PSP_RING, remedy="mode1",
    ),
    image("the SMU", "SMU", "TMR"),
    image("a copy engine", "SDMA_TH0", "IP firmware"),
    image("the compute engine", "RS64_MEC", "IP firmware"),
    image("the IMU", "IMU_I", "IP firmware"),
    image("the RLC", "RLC_G", "IP firmware"),
    command("the table of contents", 0x20, "TMR", "update the firmware images"),
    # Of GFX 12 the board's firmware sets the region up, and no command asks for it.
    replace(command("the trusted memory region", 5, "TMR"), devices=("navi31",)),
    command("the start of the RLC", 0x21, "IP firmware"),
    planned(
        "RLC autoload never completes", ("IP firmware",), {"autoload_never": True},
        FirmwareSilent, source=GFX, facts={"stage": "RLC autoload"},
        state="RLC: autoload not complete", remedy="mode1",
    ),
    planned(
        "RLC does not acknowledge safe mode", ("GFX",), {"safe_mode_never": True}, None,
        source="Linux gfx_v11_0_set_safe_mode: goes on", recovery=Recovery.NONE,
    ),
    message("fails a message", 0xFF, "mode1"),
    message("does not know a message", 0xFE, "update the firmware images"),
    message("misses a prerequisite", 0xFD, "mode1"),
    message("stays busy", 0xFC, "mode1"),
    planned(
        "SMU is briefly busy", ("SMU", "idle"), {"smu_busy": 3}, None, source=SMU,
        recovery=Recovery.NONE,
    ),
    planned(
        "SMU is silent", ("SMU", "idle"), {"smu_silent": True}, FirmwareSilent, source=SMU,
        facts={"unit": "SMU"}, state="SMU: hung or at work", remedy="mode1",
        recovery=Recovery.RESET, lost=True,
    ),
    planned(
        "SMU is silent, its debug mailbox answers", ("reset",), {"smu_silent": True}, None,
        source="Linux 29b1b0b06def", recovery=Recovery.NONE, lost=True,
        plant=_stuck,
    ),
    planned(
        "MEC firmware makes no progress", ("launch",), {"mec_crashed": True}, DeviceHang,
        source="gfx_v11_0.c (soft reset)", remedy="device.reset()", recovery=Recovery.RESET,
        cure=lambda s: None,
        elsewhere={"navi48": {"lost": True}},  # it has no soft reset of the engines: mode1
    ),
    planned(
        "copy engine firmware makes no progress", ("copy",), {"sdma_crashed": True}, DeviceHang,
        source="sdma_v6_0.c (soft reset)", remedy="device.reset()", recovery=Recovery.RESET,
        cure=lambda s: None,
    ),
    planned(
        "compute queue does not leave the hardware", ("wait", "reset"), {"dequeue_never": True},
        None, errors={"wait": DeviceHang}, source=GFX, recovery=Recovery.RESET,
        cure=lambda s: None, remedy="device.reset()",
    ),
]  # fmt: skip
