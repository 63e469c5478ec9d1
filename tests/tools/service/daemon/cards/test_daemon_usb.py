"""Cards behind USB bridges that come and go under ugpud: virtual bridge and card, made-up sysfs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.service.daemon import Running, scaled, settings_text
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceBusy, DeviceLost, DeviceNotFound
from ugpu.tools.service.daemon.cards.ward import Ward
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.daemon import Daemon
from ugpu.tools.service.daemon.hotplug import USB, Bridges
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

BRIDGE = "usb:0badcafe"


class Desk:
    """A machine, and an enclosure with a Navi31 that is plugged into it by hand."""

    def __init__(self, root: Path) -> None:
        self.machine = PciMachine(root)
        self.devices = self.machine.path(USB)
        self.devices.mkdir(parents=True)
        self.card = endpoint("navi31")
        self.box = Enclosure(self.card, EnclosureOptions())
        self._show()

    def _show(self, port: str = "", serial: str = "") -> None:
        who = self.box.identity
        folder = self.devices / (port or who.port)
        folder.mkdir()
        for name, text in {
            "idVendor": f"{who.vendor:04x}",
            "idProduct": f"{who.product:04x}",
            "bcdDevice": f"{who.release:04x}",
            "manufacturer": who.manufacturer,
            "product": who.name,
            "serial": serial or who.serial,
            "speed": str(int(who.speed)),
            "devnum": str(who.address),
        }.items():
            (folder / name).write_text(text + "\n")

    def pull(self) -> None:
        self.box.unplug()
        shutil.rmtree(self.devices / self.box.options.port)

    def plug(self) -> None:
        self.box.plug()
        self._show()

    def another(self, port: str, serial: str) -> None:
        """A bridge more; what is behind it is not opened."""
        self._show(port, serial)

    def open(self, name: str, **options: Any) -> Device:
        if not self.box.plugged:
            raise DeviceNotFound(f"no bridge {name}; plugged in: none")
        return hcq.open("virtual:navi31+usb", enclosure=self.box)

    def close(self) -> None:
        self.box.close()
        self.card.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "machine")
    yield made
    made.close()


def run(desk: Desk, tmp_path: Path, device: str, more: str = "") -> Running:
    folder = tmp_path / "d"
    folder.mkdir()
    text = settings_text(folder, [device], more).replace("\n\n", "\n[recovery]\npause_s = 0.1\n\n")
    return Running(parse(text), Daemon(parse(text), system=desk.machine, opener=desk.open))


def until_state(running: Running, state: State) -> None:
    until(lambda: running.daemon.owned[0].card.state is state, f"the state {state.value}")


@pytest.mark.parametrize("name", [BRIDGE, "usb:2-1", "usb:0"])
def test_a_cable_that_is_pulled_ends_the_lease_and_the_next_in_line_is_served(
    desk: Desk, tmp_path: Path, name: str
) -> None:
    running = run(desk, tmp_path, name)
    served: list[Device] = []
    try:
        gpu = running.lease(name)
        assert scaled(gpu)
        waiter = threading.Thread(target=lambda: served.append(running.lease(name, wait_s=120)))
        waiter.start()
        until(lambda: len(running.daemon.table.waiters) == 1, "the one who waits")
        desk.pull()
        with pytest.raises(DeviceLost) as caught:
            while True:
                gpu.driver.core.check_failures()
        assert "unplugged" in str(caught.value) or "not on the bus" in str(caught.value)
        gpu.close()
        until_state(running, State.OFF)
        assert running.daemon.owned[0].card.reason == "the card is not on the bus"
        assert not served
        desk.plug()
        waiter.join()
        (again,) = served
        assert again.grant.device == name and scaled(again)
        again.close()
    finally:
        running.close()


def test_a_card_whose_departure_is_told_late_is_off_all_the_same(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recovery has failed by then: the buses are asked before it is called broken."""
    monkeypatch.setattr(Ward, "_departed", lambda ward, name: None)
    running = run(desk, tmp_path, BRIDGE)
    try:
        with running.lease(BRIDGE) as gpu, gpu.alloc(4096) as buffer:
            desk.pull()
            with pytest.raises(DeviceLost):
                while True:
                    buffer.copy_from(np.zeros(4096, np.uint8))
        until_state(running, State.OFF)
        assert running.daemon.owned[0].card.reason == "the card is not on the bus"
    finally:
        running.close()


def test_work_that_the_cable_is_pulled_under_fails_with_one_error(
    desk: Desk, tmp_path: Path
) -> None:
    """The driver notices before the bus is looked at; the card is off, not recovered or broken."""
    running = run(desk, tmp_path, BRIDGE)
    try:
        with running.lease(BRIDGE) as gpu, gpu.alloc(4096) as buffer:
            desk.pull()
            with pytest.raises(DeviceLost):
                while True:
                    buffer.copy_from(np.zeros(4096, np.uint8))
        until_state(running, State.OFF)
        with pytest.raises(DeviceBusy, match="not on the bus"):
            running.lease(BRIDGE)
        desk.plug()
        with running.lease(BRIDGE, wait_s=120) as gpu:
            assert scaled(gpu)
    finally:
        running.close()


def test_bridges_that_arrive_are_taken_where_the_configuration_says_so(
    desk: Desk, tmp_path: Path
) -> None:
    desk.pull()
    running = run(desk, tmp_path, "cpu", 'hotplug = ["usb:*"]')
    try:
        desk.plug()
        until(lambda: len(running.daemon.owned) == 2, "the card behind the bridge")
        with running.lease(BRIDGE, wait_s=120) as gpu:
            assert scaled(gpu)
    finally:
        running.close()


def test_names_of_bridges(desk: Desk) -> None:
    names = ["usb:2-1", "cpu"]
    bridges = Bridges(desk.machine, lambda: names)
    assert bridges.changes() == []
    desk.another("2-2", "feed")
    assert bridges.changes() == [("usb:feed", True)]
    assert bridges.usable("usb:feed")
    assert not bridges.usable(BRIDGE), "it is the one that the daemon has as usb:2-1"
    assert not bridges.usable("usb:9")
    desk.pull()
    desk.plug()  # between two looks
    found = bridges.changes()
    assert sorted(found) == sorted(
        [("usb:2-1", False), (BRIDGE, False), ("usb:2-1", True), (BRIDGE, True)]
    )
    assert [arrived for _, arrived in found] == [False, False, True, True]
    assert not Bridges(PciMachine(desk.machine.root / "bare"), lambda: names).changes()
