"""What the guest tests of the virtual Navi31 share."""

from __future__ import annotations

import subprocess

from lab.kernel.guest.vfio_card import PROGRAM_LIMIT_S, GuestCard, check_copies, kill
from lab.kernel.lab import CACHE

__all__ = [
    "FIRMWARE", "PCI_ID", "PROGRAM_LIMIT_S", "address", "bound", "check_copies", "environment",
    "kernel_log", "kill", "open_card", "run_until", "start",
]  # fmt: skip

FIRMWARE = CACHE / "firmware"
PCI_ID = ("0x1002", "0x744c")
CARD = GuestCard(PCI_ID, FIRMWARE)
address, bound, open_card = CARD.address, CARD.bound, CARD.open
environment, start, run_until = CARD.environment, CARD.start, CARD.run_until


def kernel_log() -> str:
    return subprocess.run(["/bin/dmesg"], capture_output=True, text=True, check=False).stdout
