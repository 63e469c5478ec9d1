"""Cards that come and go under ugpud, and those who only look at them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.service.daemon import Running, scaled, settings_text, started
from tests.support.waiting import until
from ugpu.hcq.cpu.device import CpuDevice
from ugpu.hcq.cpu.driver import CpuDriver
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    Closed,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
)
from ugpu.hcq.remote.request import LeaseRequest
from ugpu.hcq.remote.wire import Message
from ugpu.tools import cli
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import parse
from ugpu.tools.service.daemon.daemon import Daemon

GPU, OTHER, NIC = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0"


class Slots:
    """A made-up bus; a card that is on it opens as a `cpu` device."""

    def __init__(self, root: Path) -> None:
        self.machine = PciMachine(root)
        self._gone = 0

    def plug(self, address: str = GPU, **facts: Any) -> None:
        self.machine.add(address, group=None, **facts)

    def pull(self, address: str = GPU) -> None:
        link = self.machine.folder(address)
        folder = link.resolve()
        link.unlink()
        # kept: its inode's number must not be the next card's
        self._gone += 1
        folder.rename(folder.with_name(f"gone-{self._gone}"))

    def open(self, name: str, **options: Any) -> Device:
        if not self.machine.folder(name.removeprefix("pci:")).exists():
            raise DeviceNotFound(f"{name} is not there")
        return CpuDevice(CardDriver("cpu", 1))


class CardDriver(CpuDriver):
    """The driver of a card, which no other process can open."""

    opens_elsewhere = False


@pytest.fixture
def slots(tmp_path: Path) -> Slots:
    return Slots(tmp_path / "machine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "d"
    made.mkdir()
    return made


@pytest.fixture
def running(slots: Slots, folder: Path) -> Iterator[Running]:
    slots.plug()
    text = settings_text(folder, [f"pci:{GPU}"], 'hotplug = ["pci:*"]')
    settings = parse(text)
    made = Running(settings, Daemon(settings, system=slots.machine, opener=slots.open))
    yield made
    made.close()


def until_state(running: Running, state: State, number: int = 0) -> None:
    def reached() -> bool:
        with running.daemon.lock:
            owned = running.daemon.owned
            return len(owned) > number and owned[number].card.state is state

    until(reached, f"the state {state.value}")


def test_a_card_that_is_pulled_ends_its_lease_and_is_leased_again_when_it_is_back(
    running: Running, slots: Slots
) -> None:
    gpu = running.lease("pci:*")
    assert scaled(gpu)
    slots.pull()
    with pytest.raises(DeviceLost, match=r"lease of .* is over: .*03:00.0 is off: the card is not"):
        while True:
            gpu.driver.core.check_failures()
    gpu.close()
    until_state(running, State.OFF)
    until(lambda: not running.listed()["leases"], "the lease is over")
    with pytest.raises(DeviceBusy, match=r"off .the card is not on the bus"):
        running.lease("pci:*")
    slots.plug()
    with running.lease("pci:*", wait_s=60) as again:
        assert scaled(again)
    assert running.daemon.history.records().get(f"pci:{GPU}") is None, "not a failure of the card"


def test_a_card_that_left_and_is_back_before_that_is_seen_is_booted(running: Running) -> None:
    """Nothing is left of the link to it; the next holder does not meet that."""
    (owned,) = running.daemon.owned
    dead = owned.device
    assert dead is not None
    dead.driver.core.fail(DeviceLost("the link is gone"))
    running.daemon._departed(owned.name)
    until(lambda: owned.device is not dead and owned.card.state is State.READY, "a new boot")
    with running.lease("pci:*") as gpu:
        assert scaled(gpu)
    assert dead.closed and running.daemon.history.records().get(owned.name) is None


def test_a_card_that_was_off_the_bus_for_a_reset_stays_open(running: Running) -> None:
    """A rung of the ladder takes a card off the bus and finds it again."""
    (owned,) = running.daemon.owned
    before = owned.device
    running.daemon._remove(owned)
    assert owned.device is before and owned.card.state is State.READY
    with running.lease("pci:*") as gpu:
        assert scaled(gpu)


def test_gpus_that_arrive_are_taken_and_other_cards_are_not(running: Running, slots: Slots) -> None:
    slots.plug(NIC, kind=0x020000)
    slots.plug(OTHER)
    until_state(running, State.READY, 1)
    assert [each.name for each in running.daemon.owned] == [f"pci:{GPU}", f"pci:{OTHER}"]
    with running.lease(f"pci:{OTHER}") as gpu:
        assert scaled(gpu)
    slots.pull(OTHER)
    until_state(running, State.OFF, 1)
    with running.lease() as gpu:
        assert gpu.grant.device == f"pci:{GPU}"


def test_a_card_that_leaves_while_it_is_recovered_is_off(
    running: Running, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = running.daemon.owned[0]
    pulled = threading.Event()

    def prove() -> None:
        slots.pull()
        until(lambda: owned.gone, "the departure")
        pulled.set()
        raise DeviceLost("all ones")

    monkeypatch.setattr(owned, "prove", prove)
    monkeypatch.setattr(owned, "reopen", lambda: slots.open(f"pci:{GPU}"))
    monkeypatch.setattr(running.daemon, "_pause", lambda seconds: False)
    with running.daemon.lock:
        running.daemon._treat(owned, "planted")
    until_state(running, State.OFF)
    assert pulled.is_set()


def test_a_card_that_is_not_there_is_off(slots: Slots, folder: Path) -> None:
    settings = parse(settings_text(folder, [f"pci:{GPU}"]))
    made = Running(settings, Daemon(settings, system=slots.machine, opener=slots.open))
    try:
        until_state(made, State.OFF)
        slots.plug()
        with made.lease(wait_s=60) as gpu:
            assert scaled(gpu)
    finally:
        made.close()


def test_a_machine_without_a_bus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from ugpu.hcq.transport.system import System

    settings = parse(settings_text(tmp_path, ["cpu"], 'hotplug = ["pci:*"]'))
    made = Running(settings, Daemon(settings, system=System(tmp_path / "nowhere")))
    made.close()
    assert "hot-plug is not monitored" in caplog.text


@pytest.mark.parametrize("text", ['hotplug = ["nvrm:*"]', "hotplug = [1]", 'hotplug = "pci:*"'])
def test_wrong_patterns(text: str) -> None:
    with pytest.raises(BadArgument, match="hotplug: expected a list"):
        parse(f'[daemon]\n{text}\n[[device]]\nname = "cpu"')
    assert parse('[daemon]\nhotplug = ["pci:*"]').devices == ()


def test_an_adreno_needs_no_size_in_the_configuration() -> None:
    """Its memory is that of the machine, which the driver reports."""
    (settings,) = parse('[[device]]\nname = "virtual:a630"').devices
    owned = Owned(settings, "a630#0")
    try:
        owned.boot()
        assert owned.card.memory == 4 << 30
    finally:
        owned.close()


# ---- observers -------------------------------------------------------------------------------


def test_observers_read_telemetry_beside_a_holder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = started(tmp_path, count=2)
    try:
        with running.lease("cpu#1") as gpu, running.connect() as observer:
            assert scaled(gpu)
            found = json.loads(bytes(observer.call("telemetry", "cpu#1").data))
            assert found["state"] == "ok" and found["launches"] >= 1
            with pytest.raises(BadArgument, match="there is no device named 'gpu'"):
                observer.call("telemetry", "gpu")
        assert cli.main(["top", "--once", "--daemon", running.socket]) == 0
        told = capsys.readouterr().out
        assert "cpu#0" in told and "cpu#1" in told and "ok" in told
        with running.daemon.owned[0].lock:
            running.daemon.owned[0].close()
        with running.connect() as observer, pytest.raises(Closed, match="cpu#0 is not open"):
            observer.call("telemetry", "cpu#0")
        with pytest.raises(AccessDenied, match="do not include"):
            running.daemon.telemetry("cpu#0", Rights("anna", "observe", "gfx*"))
    finally:
        running.close()


def test_an_observer_is_told_when_its_device_goes(running: Running, slots: Slots) -> None:
    told: list[str] = []
    with running.connect() as observer:
        gone = threading.Event()

        def on_event(event: object) -> None:
            if isinstance(event, Message):
                told.append(event.arguments[0])
            else:
                gone.set()

        observer.on_event = on_event
        wanted = LeaseRequest(kind="observer")
        observer.call("lease", wanted.to_map())
        with running.lease() as gpu:
            assert scaled(gpu), "an observer is in nobody's way"
        slots.pull()
        assert gone.wait(60)
    assert told == [f"pci:{GPU} is off: the card is not on the bus"]
