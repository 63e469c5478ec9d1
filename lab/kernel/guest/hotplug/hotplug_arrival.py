"""Guest tests: a program waits for a card; the card leaves in order and comes back elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.edu import slots
from lab.kernel.guest.host import Host, within
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.transport.pci.hotplug import UdevEvents, Watcher

Note = Callable[[str, object], None]


@pytest.fixture
def host() -> Iterator[Host]:
    line = Host()
    yield line
    line.close()


def test_a_program_waits_for_the_card(host: Host, record_property: Note) -> None:
    expected = "pci:0000:01:00.0"
    with pytest.raises(DeviceNotFound):
        hcq.open(expected, wait_s=0.2)
    opened: list[Device] = []
    begin: list[float] = []

    def program() -> None:
        opened.append(hcq.open(expected, wait_s=within(60), bind=True, firmware=navi31.FIRMWARE))
        begin.append(time.monotonic())

    thread = threading.Thread(target=program)
    thread.start()
    start = time.monotonic()
    slots.plug(host, 0, 0)
    thread.join(within(90))
    assert opened, "the card did not come up"
    record_property("plugged in to open (s)", f"{begin[0] - start:.1f}")
    with opened[0] as device:
        navi31.check_copies(device)
    slots.pull(host, 0)


def test_the_watcher_follows_the_card_to_another_slot(host: Host) -> None:
    pytest.importorskip("pyudev", reason="pyudev is not installed")
    with Watcher() as watcher:
        assert isinstance(watcher._wake, UdevEvents)
        for port in (0, 1):
            slots.plug(host, 1, port)
            (came,) = watcher.changes(within(slots.LIMIT_S))
            assert came.arrived and came.name == f"pci:0000:0{port + 1}:00.0"
            with hcq.open(
                came.name, wait_s=within(30), bind=True, firmware=navi31.FIRMWARE
            ) as device:
                navi31.check_copies(device)
            slots.pull(host, 1)
            (left,) = watcher.changes(within(slots.LIMIT_S))
            assert not left.arrived and left.name == came.name
        assert watcher.changes(0) == []
