"""`ugpu ls` and `info` show the way to a card: enclosure, authorisation, tunnel, slowest link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.usb.thunderbolt_tree import RAZER, ThunderboltTree
from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.find import registry
from ugpu.hcq.find.listing import DeviceEntry
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.hotplug import Pauses, Watcher
from ugpu.tools.base.console import Output
from ugpu.tools.inspect.devices import names_of, run_watch, with_way


def test_an_entry_shows_the_way_to_its_card(tmp_path: Path) -> None:
    tree = ThunderboltTree(PciMachine(tmp_path))
    (port, _) = tree.host_on_die()
    tree.enclosure()
    gpu = tree.card_behind(port, width=1)
    entry = with_way(DeviceEntry(f"pci:{gpu}", "card", {"driver": None}), tree.machine)
    assert entry.facts["enclosure"] == "Razer Core X" and entry.facts["driver"] is None
    assert "8 GT/s x1, 1.0 GB/s" in str(entry.facts["slowest_link"])
    assert entry.facts["link_cost"] == "30.5 GB/s less than the card's own link"
    assert names_of(entry) == (f"pci:{gpu}", f"thunderbolt:{RAZER[2]}")


def test_an_entry_that_is_on_no_bus_stays() -> None:
    entry = DeviceEntry("cpu", "host threads")
    assert with_way(entry) is entry


def test_watching_shows_what_comes_and_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = PciMachine(tmp_path)
    out = Output()

    class Script(Pauses):
        def wait(self, limit_s: float) -> None:
            if not machine.functions:
                machine.add("0000:03:00.0")
            else:
                out.lost = BrokenPipeError()  # the reader has seen enough
                super().wait(limit_s)

    clock = Steps()
    assert run_watch(out, Watcher(machine, wake=Script(clock), clock=clock)) == 0
    assert capsys.readouterr().out == "pci:0000:03:00.0 arrived\n"


class Steps(Clock):
    """A clock that only sleeping moves."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_an_enclosure_is_a_name_of_its_own() -> None:
    with pytest.raises(DeviceNotFound, match="no enclosure 'ffff-not-there' is plugged in"):
        registry.open("thunderbolt:ffff-not-there")
