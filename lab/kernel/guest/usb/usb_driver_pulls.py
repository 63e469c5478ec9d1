"""Guest tests: the cable is pulled while the driver boots a card, works and closes it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from lab.kernel.guest.amd.navi31 import environment
from lab.kernel.guest.host import Host
from lab.kernel.guest.usb.usb_stack import hand
from lab.kernel.guest.usb.usb_stock import appeared
from tests.support.pci import descriptors
from tests.support.usb.bridge_work import warnings, work
from ugpu import hcq
from ugpu.hcq.errors import DeviceLost

Note = Callable[[str, object], None]
SETTLED = 2  # pulls before what is open is counted for the first time


def _pulled(host: Host, transfer: int, after: int) -> str:
    """Open, work and close until the pull: the call that meets it raises DeviceLost, and `close`
    logs it. Return what the pull met: boot, work, close, or idle after that."""
    appeared()
    host.ask("pull_at", transfer=transfer, after=after)
    device, phase = None, "boot"
    with warnings() as logged:
        try:
            device = hcq.open("usb:0")
            phase = "work"
            work(device)
            phase = "close"
            device.close()
        except DeviceLost:
            assert not host.ask("plugged")
        else:
            named = any("unplugged" in text for text in logged)
            assert host.ask("plugged") != named, f"the pull is not named: {logged}"
            phase = phase if named else "idle"
        finally:
            if device is not None:
                with suppress(DeviceLost):
                    device.close()
    return phase


@pytest.mark.timeout(0)  # the boot of the guest has a limit
def test_each_pull_is_named_and_every_plug_works(
    record_property: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    phases: Counter[str] = Counter()
    with hand() as host:
        pulls, counted = host.ask("driver_pulls"), (0, 0)
        begin = time.monotonic()
        for number, (transfer, after) in enumerate(pulls):
            if number == SETTLED:
                counted = host.ask("descriptors"), descriptors.settled()
            phases[_pulled(host, transfer, after)] += 1
            host.ask("plug")
            assert host.ask("objections") == [], f"pull {number}"
        record_property("pulls of a working driver, by phase", dict(phases))
        record_property("these pulls (s)", f"{time.monotonic() - begin:.0f}")
        if len(pulls) > SETTLED:
            outside, here = counted
            assert host.ask("leaked", before=outside) == 0 and descriptors.leaked(here) == 0
        appeared()
        begin = time.monotonic()
        with hcq.open("usb:0") as device:
            record_property("boot of the card behind the last plug (s)",
                            f"{time.monotonic() - begin:.0f}")  # fmt: skip
            work(device)
            record_property("with a copy in and out and a kernel (s)",
                            f"{time.monotonic() - begin:.0f}")  # fmt: skip
