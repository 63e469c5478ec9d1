"""Tier "edu": the transports on QEMU's teaching device, under a real kernel's VFIO and sysfs."""

from __future__ import annotations

from tests.kernel.lab import Lab, Run

GUEST = "tests/kernel/guest"


def run(lab: Lab) -> list[Run]:
    """One boot, with the device behind a root port so that it can be unplugged and bus-reset."""
    devices = (
        *("-device", "pcie-root-port,id=port0,chassis=1,slot=1"),
        *("-device", "edu,id=edu0,bus=port0"),
    )
    return [lab.boot("edu", tests=[f"{GUEST}/smoke.py"], devices=devices, limit_s=150)]
