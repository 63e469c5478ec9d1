"""Tier "usb_stock": tier "usb" with ASMedia's patched firmware, whose protocol needs bulk streams.

The kernel's own driver for such devices, uas, binds to it first.
"""

from __future__ import annotations

from tests.kernel import tier_usb
from tests.kernel.lab import Lab, Run

MODULES = ("xhci_pci", "uas")


def run(lab: Lab) -> list[Run]:
    """One boot."""
    tier_usb.prepare()
    return [tier_usb.boot(lab, "usb-stock", ["usb_stock"], "uas", MODULES)]
