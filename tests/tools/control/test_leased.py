"""`ugpu eject` asks the daemons of the machine who has leased the card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.service.daemon import Running, settings_text
from ugpu.hcq.errors import AccessDenied, DeviceBusy
from ugpu.tools.base.console import Output
from ugpu.tools.control import leased, pci
from ugpu.tools.service.daemon.config import parse

GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> PciMachine:
    made = PciMachine(tmp_path / "machine")
    made.load("vfio-pci")
    made.add(GPU, driver="vfio-pci")
    made.add(AUDIO, kind=0x040300, driver="vfio-pci", bars={0: 16384})
    return made


@pytest.fixture(params=[f"pci:{GPU}", "pci:03:00.0", f"pci:{AUDIO}"])
def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Running]:
    text = settings_text(tmp_path, ["cpu"]) + f'label = "{request.param}"\n'
    made = Running(parse(text))
    monkeypatch.setattr(leased, "sockets", lambda: [tmp_path / "nobody", Path(made.socket)])
    yield made
    made.close()


def test_a_leased_card_is_not_ejected(running: Running, machine: PciMachine) -> None:
    with running.lease():
        number = running.listed()["leases"][0]["lease"]
        for dry_run in (True, False):
            with pytest.raises(DeviceBusy, match=rf"{GPU} is leased.*\(lease {number}\)"):
                pci.run("eject", f"pci:{GPU}", Output(True), dry_run=dry_run, system=machine)
        assert machine.log == [] and machine.folder(GPU).exists()


def test_a_card_that_nobody_has_leased_is_ejected(running: Running, machine: PciMachine) -> None:
    pci.run("eject", f"pci:{GPU}", Output(True), system=machine)
    assert not machine.folder(GPU).exists() and not machine.folder(AUDIO).exists()


def test_leases_of_other_cards_do_not_matter(running: Running) -> None:
    with running.lease():
        leased.check_unleased(["0000:04:00.0"], leased.sockets())


def test_a_daemon_that_may_not_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AccessDenied("no permission to use the socket")

    monkeypatch.setattr(leased, "Connection", refused)
    with pytest.raises(AccessDenied):
        leased.check_unleased([GPU], [tmp_path / "s"])
    leased.check_unleased([GPU], [tmp_path / "s"], rights=False)
