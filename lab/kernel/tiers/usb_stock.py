"""Tier "usb_stock": tier "usb" with ASMedia's patched firmware, whose protocol needs bulk streams.

The kernel's own driver for such devices, uas, binds to it first.
"""

from __future__ import annotations

from lab.kernel.lab import Lab, Run
from lab.kernel.tiers import usb

MODULES = ("xhci_pci", "uas")
LONG_LIMIT_S = 1800
# While the card boots, early and late, and while it works; a boot takes 30,000 transfers.
DRIVER_PULLS = ((3_000, 0), (14_000, 1), (34_000, 0))


def run(lab: Lab) -> list[Run]:
    """One boot. That of the card takes 14,000 commands, and thus minutes."""
    usb.prepare()
    tests = ["usb_stock"]
    tests += ["usb_driver_pulls", "usb_stock_driver"] if lab.long else []
    limit_s = LONG_LIMIT_S if lab.long else usb.LIMIT_S
    return [usb.boot(lab, "usb-stock", tests, "uas", MODULES, limit_s, DRIVER_PULLS)]
