"""The speed that a port's link is set to: Link Control 2, bytes by hand from pci_regs.h."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from tests.support.usb.thunderbolt_tree import ThunderboltTree
from ugpu.hcq.state.telemetry import Telemetry
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import hops, target_speed
from ugpu.tools.service.daemon.cards.watch import links

PORT = "0000:00:01.0"


def port(tmp_path: Path, version: int = 2, control: int = 1) -> PciFunction:
    machine = PciMachine(tmp_path / "machine")
    made = machine.add(PORT, group=None)
    # The list: power management at 0x50, PCI Express at 0x64; its registers from there on.
    made.config[0x64 + 2] = version
    made.config[0x64 + 0x30 : 0x64 + 0x32] = bytes((control, 0))
    return PciFunction(machine, PORT)


@pytest.mark.parametrize(("control", "speed"), [(1, 2.5), (4, 16.0), (0x26, 64.0), (9, 0), (0, 0)])
def test_the_register(tmp_path: Path, control: int, speed: float) -> None:
    assert target_speed(port(tmp_path, control=control)) == speed


def test_what_has_no_such_register_or_sleeps(tmp_path: Path) -> None:
    assert target_speed(port(tmp_path, version=1)) == 0
    sleeper = port(tmp_path / "b")
    (sleeper.folder / "power").mkdir()
    (sleeper.folder / "power/runtime_status").write_text("suspended\n")
    assert target_speed(sleeper) == 0
    looped = port(tmp_path / "c")
    assert isinstance(looped.system, PciMachine)
    looped.system.functions[PORT].config[0x50:0x52] = bytes((1, 0x50))
    assert target_speed(looped) == 0


def test_it_is_named_as_the_cause(tmp_path: Path) -> None:
    tree = ThunderboltTree(PciMachine(tmp_path / "machine"))
    card = tree.card_behind(tree.host_on_die()[0])
    (first, *_) = hops(PciFunction.find(tree.machine, card))
    config = tree.machine.functions[first.upper.address].config
    config[0x66], config[0x94] = 2, 1
    found = Telemetry("a", "gfx1100", "ok", 1, "u", 0.0)
    assert links(f"pci:{card}", found, tree.machine).limit == (
        f"{first.upper.address} is set to 2.5 GT/s (Link Control 2)"
    )
    config[0x94] = 4
    assert links(f"pci:{card}", found, tree.machine).limit == ""
