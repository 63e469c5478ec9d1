"""Guest tests: the cable is pulled at random points, also amid bulk transfers, and plugged in."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable

import pytest
import usb1

from lab.kernel.guest.usb.usb_stack import GONE, Bridge, hand, opened
from tests.support.pci import descriptors

SEED = 12
SETTLED = 5  # pulls before what is open is counted for the first time
Note = Callable[[str, object], None]


def work(bridge: Bridge) -> None:
    """About 14 transfers: power, a look at the tree, SRAM."""
    bridge.power(True)
    assert bridge.xdata(0xB450) == b"\x78"
    for _ in range(3):
        assert bridge.config(0, 0) == 0x24631B21
    for byte in (0x31, 0x32):
        bridge.arm(16384)
        assert bridge.out(bytes([byte]) * 16384) == 16384


def _memory() -> int:
    """The most that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.timeout(0)  # the boot's limit grows with the number of pulls
def test_pulls_are_told_and_every_plug_works(record_property: Note) -> None:
    chance = random.Random(SEED)
    errors: dict[str, int] = {}
    slowest = 0.0
    with hand() as host:
        pulls, counted = host.ask("pulls"), (0, 0)
        for pull in range(pulls):
            if pull == SETTLED:
                counted = host.ask("descriptors"), descriptors.settled()
                record_property("memory of the process, early (MiB)", _memory())
            with opened() as bridge:
                work(bridge)
                host.ask(
                    "pull_at",
                    transfer=chance.randrange(14),
                    after=chance.choice((0, 0, 1, 1024, 5000)),
                )
                begin = time.monotonic()
                with pytest.raises(GONE) as caught:
                    while True:
                        begin = time.monotonic()
                        work(bridge)
                # A pull loses what was under way; from then on the device is gone for good.
                slowest = max(slowest, time.monotonic() - begin)
                errors[type(caught.value).__name__] = errors.get(type(caught.value).__name__, 0) + 1
                with pytest.raises(usb1.USBError):
                    for _ in range(100):
                        bridge.xdata(0)
                        time.sleep(0.01)
            host.ask("plug")
            assert host.ask("objections") == [], f"pull {pull}"
        with opened() as bridge:
            work(bridge)
        if pulls > SETTLED:
            outside, here = counted
            assert host.ask("leaked", before=outside) == 0 and descriptors.leaked(here) == 0
    record_property("memory of the process, at the end (MiB)", _memory())
    record_property("pulls", pulls)
    record_property("errors by libusb", errors)
    record_property("work until its error, the slowest (s)", f"{slowest:.2f}")
