"""Guest tests: the driver on a card behind the vendor's firmware, by the system's libusb.

Memory and registers go by commands of a dword there, 14,000 of them for a boot.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.kernel.guest.usb import usb_driver
from lab.kernel.guest.usb.usb_stock import appeared

Note = Callable[[str, object], None]
DEMO_LIMIT_S = 900


@pytest.mark.timeout(0)  # the boot of the guest has a limit
def test_demo(tmp_path: Path, record_property: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    appeared()
    monkeypatch.setattr(usb_driver, "PROGRAM_LIMIT_S", DEMO_LIMIT_S)
    usb_driver.test_demo(tmp_path, record_property)
