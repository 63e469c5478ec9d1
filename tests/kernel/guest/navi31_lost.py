"""Guest test: the card falls off the bus during work. Every read gives all ones from then on."""

from __future__ import annotations

import time

import pytest

from hcq.errors import DeviceLost, UgpuError
from tests.kernel.guest import navi31
from tests.kernel.guest.host import Host

LIMIT_S = 60


def test_surprise_removal_is_device_lost() -> None:
    host = Host()
    with navi31.bound() as name:
        device = navi31.open_card(name)
        navi31.check_copies(device)
        host.ask("unplug_card")
        begin = time.monotonic()
        device.limit_s = 5
        with pytest.raises(UgpuError) as caught:
            navi31.check_copies(device)
        assert isinstance(caught.value, DeviceLost), repr(caught.value)
        assert time.monotonic() - begin < LIMIT_S
        device.close()
    host.close()
