"""Faults of a board during the start: each is reported with its stage, at once or at its limit."""

from __future__ import annotations

import pytest

from tests.nv.gsp.test_gsp_boot import booted, powered
from ugpu.hcq.errors import (
    ChipError,
    DeviceLost,
    FirmwareError,
    FirmwareInvalid,
    FirmwareRejected,
    FirmwareSilent,
    UgpuError,
    UnitTimeout,
)
from ugpu.virtual.nvidia.gsp.faults import CardFault

QUICK = [
    (CardFault.VBIOS_WITHOUT_BIT, FirmwareInvalid, "vbios"),
    (CardFault.VBIOS_WITHOUT_FWSEC, FirmwareInvalid, "vbios"),
    (CardFault.FUSES_NEWER, FirmwareInvalid, "vbios"),
    (CardFault.MEMORY_UNKNOWN, ChipError, "layout"),
    (CardFault.SCRUB_NEVER, UnitTimeout, "frts"),
    (CardFault.FALCON_HANGS, UnitTimeout, "frts"),
    (CardFault.FWSEC_FAILS, FirmwareRejected, "frts"),
    (CardFault.BOOTER_FAILS, FirmwareRejected, "booter"),
    (CardFault.INIT_FAILS, FirmwareError, "init-done"),
    (CardFault.RPC_TIMES_OUT, FirmwareError, "static-info"),
    (CardFault.REPLY_CHECKSUM, FirmwareError, "static-info"),
    (CardFault.GSP_CRASHES, FirmwareError, "static-info"),
    (CardFault.FSP_REFUSES, FirmwareError, "chain-of-trust"),
    (CardFault.FALLS_OFF, DeviceLost, None),
    (CardFault.FALLS_OFF_AT_BOOT, DeviceLost, "booter"),
]
SLOW = [
    (CardFault.POWER_ON_NEVER, FirmwareSilent, "gfw-boot"),
    (CardFault.GSP_NOT_STARTED, FirmwareSilent, "riscv"),
    (CardFault.GSP_SILENT, FirmwareSilent, "init-done"),
    (CardFault.RPC_LOST, FirmwareSilent, "static-info"),
    (CardFault.FSP_SILENT, FirmwareSilent, "chain-of-trust"),
    (CardFault.FMC_FAILS, FirmwareRejected, "lockdown"),
    (CardFault.LOCKDOWN_NEVER, FirmwareSilent, "lockdown"),
]


@pytest.mark.parametrize(
    ("fault", "kind", "stage"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
    ids=[fault.name for fault, *_ in (*QUICK, *SLOW)],
)
def test_a_fault_is_named_with_its_stage(
    fault: CardFault, kind: type[UgpuError], stage: str | None
) -> None:
    by_fsp = stage in ("chain-of-trust", "lockdown")
    with powered(chip="gb202" if by_fsp else "ad102") as card:
        card.inject_card(fault)
        with pytest.raises(kind) as caught:
            booted(card)
        assert caught.value.facts.get("stage") == stage
        if fault is CardFault.GSP_CRASHES:
            assert "pc 0x500001234" in str(caught.value.facts["crash"])
        if fault in (CardFault.INIT_FAILS, CardFault.RPC_TIMES_OUT):
            assert card.violations == [], "the firmware was asked to leave before its reset"
            assert not card.wpr.touches(0, card.memory_size)
            booted(card).end(clean=True)
