"""Guest tests: the device is unplugged while VFIO has it open. Runs last: the device goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from lab.kernel.guest.edu import edu
from lab.kernel.guest.edu.edu import Edu
from lab.kernel.guest.host import Host, within
from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport

LIMIT_S = 20


@pytest.fixture
def host() -> Iterator[Host]:
    line = Host()
    yield line
    line.close()


def test_an_unplug_during_use_is_orderly(host: Host) -> None:
    function = PciFunction.find(System(), edu.address())
    binding = Binding.bind(function)
    asked = threading.Event()
    transport = VfioTransport(function.address, reach_bits=28, on_removal=asked.set)
    device = Edu(transport)
    interrupts = transport.interrupts
    assert interrupts is not None
    start = time.monotonic()
    host.monitor("device_del", id="edu0")
    assert asked.wait(within(LIMIT_S)), "the kernel did not ask for the device back"
    # The device is still ours and answers until we let go, so that work can end in order.
    assert device.alive()
    assert transport.removal_requested and not transport.present()
    assert not interrupts.wait(within(LIMIT_S)) and time.monotonic() - start < within(LIMIT_S)
    assert function.folder.is_dir()
    transport.close()
    Clock().wait_until(
        lambda: not function.folder.is_dir(),
        unit="PCI bus",
        waiting_for="the device's removal after it was closed",
        limit_s=within(LIMIT_S),
    )
    binding.restore()  # nothing to give back, and no error
    with pytest.raises(DeviceNotFound):
        VfioTransport(function.address)


def test_a_device_plugged_in_is_found(host: Host) -> None:
    before = len(edu.addresses())
    host.monitor("device_add", driver="edu", id="edu9", bus="port0")
    Clock().wait_until(
        lambda: len(edu.addresses()) > before,
        unit="PCI bus",
        waiting_for="the device that was plugged in",
        limit_s=within(LIMIT_S),
    )
    function = PciFunction.find(System(), edu.address())
    with Binding.bind(function), VfioTransport(function.address, reach_bits=28) as transport:
        assert Edu(transport).alive()
