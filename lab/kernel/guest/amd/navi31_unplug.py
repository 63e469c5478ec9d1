"""Guest test: the slot asks for the card back during work. Runs last: the card goes."""

from __future__ import annotations

import threading
import time

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.host import Host, within
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

LIMIT_S = 30


def test_an_unplug_during_work_is_orderly() -> None:
    host = Host()
    with navi31.bound() as name:
        folder = PciFunction.find(System(), name.removeprefix("pci:")).folder
        device = navi31.open_card(name)
        transport = device.transport
        assert isinstance(transport, VfioTransport)
        begin = time.monotonic()
        host.monitor("device_del", id="gpu0")
        Clock().wait_until(
            lambda: transport.removal_requested,
            unit="PCI slot", waiting_for="the request to let the card go", limit_s=within(LIMIT_S),
        )  # fmt: skip
        assert folder.is_dir(), "the kernel waits for us"
        closer = threading.Thread(target=device.close)
        closer.start()
        closer.join(within(LIMIT_S))
        assert not closer.is_alive() and time.monotonic() - begin < within(LIMIT_S)
        Clock().wait_until(
            lambda: not folder.is_dir(),
            unit="PCI bus", waiting_for="the card's removal", limit_s=within(LIMIT_S),
        )  # fmt: skip
    host.close()
    with pytest.raises(UgpuError):
        navi31.open_card(name)
