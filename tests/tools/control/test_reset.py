"""`ugpu reset`: it explains, refuses what others own, climbs, and proves what it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pci.slot_machine import GPU, SLOT, SWITCH, SlotMachine
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceLost, HostError, NotSupported
from ugpu.hcq.state.ladder import Diagnosis, Level, climb
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.power_action import PowerAction
from ugpu.hcq.transport.pci.rungs import FunctionReset
from ugpu.tools.base.console import Output
from ugpu.tools.control import reset

NAME = f"pci:{GPU}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlotMachine:
    made = SlotMachine(tmp_path)
    made.own(GPU, "vfio-pci")
    found = Diagnosis(Level.WARM, "no unit reports a fault")
    monkeypatch.setattr(reset._Card, "_diagnose", lambda self: found)
    return made


def report(capsys: pytest.CaptureFixture[str], name: str, **options: Any) -> dict[str, Any]:
    capsys.readouterr()
    assert reset.run(name, Output(True), **options) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


class Card:
    """Opens a virtual device in the place of a card; `broken` times it is lost instead."""

    def __init__(self, broken: int = 0) -> None:
        self.broken, self.opened = broken, 0

    def __call__(self, name: str) -> Device:
        assert name == NAME
        self.opened += 1
        if self.opened <= self.broken:
            raise DeviceLost("the chip stopped responding")
        return hcq.open("cpu")


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("virtual:navi32", ""), ("virtual:navi31", "the firmware of SMU 13.0.0 has no mode2 reset")],
)
def test_a_dry_run_says_what_mode2_keeps_or_why_it_is_not_there(
    capsys: pytest.CaptureFixture[str], name: str, refusal: str
) -> None:
    shown = report(capsys, name, dry_run=True)
    (mode2,) = [one for one in shown["plan"] if one["level"] == "mode2"]
    assert "memory and programs stay" in mode2["cost"]
    assert mode2["refusal"] == refusal and mode2["taken"] is not bool(refusal)


def test_a_dry_run_changes_nothing(
    machine: SlotMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    card, before = Card(), list(machine.log)
    shown = report(capsys, NAME, system=machine, opener=card, dry_run=True)
    assert card.opened == 0 and machine.events == [] and machine.log == before
    assert shown["first"] == "warm" and shown["attempts"] == []
    plan = {one["level"]: one for one in shown["plan"]}
    assert not plan["queue"]["taken"] and plan["mode1"]["taken"] and plan["bus"]["taken"]
    assert "UGPU_POWER_COMMAND" in plan["power"]["refusal"]
    assert all(one["cost"] for one in shown["plan"])


def test_a_card_that_opens_is_reset_by_its_driver(
    machine: SlotMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = report(capsys, NAME, system=machine, opener=Card())
    assert [one["worked"] for one in shown["attempts"]] == [True]
    assert shown["proof"]["launched"] == "one kernel" and "copy" in shown["proof"]["copied"]
    assert machine.events == []


def test_a_card_that_does_not_open_is_reset_from_its_slot(
    machine: SlotMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = report(capsys, NAME, system=machine, opener=Card(broken=1))
    tried = [(one["level"], one["worked"], one["refused"]) for one in shown["attempts"]]
    assert tried == [("warm", False, False), ("flr", False, True), ("bus", True, False)]
    assert machine.events == ["reset"] and machine.whole()
    assert shown["proof"]["launched"] == "one kernel"


def test_a_rung_whose_card_does_not_open_has_not_worked(
    machine: SlotMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = report(capsys, NAME, system=machine, opener=Card(broken=2))
    levels = [one["level"] for one in shown["attempts"] if not one["refused"]]
    assert levels == ["warm", "bus", "rescan"] and "rescan" in machine.events


def test_one_rung_and_no_other(machine: SlotMachine, capsys: pytest.CaptureFixture[str]) -> None:
    card = Card()
    shown = report(capsys, NAME, system=machine, opener=card, to="d3cold")
    assert [one["level"] for one in shown["attempts"]] == ["d3cold"]
    assert machine.events == ["D3cold", "D0"] and card.opened == 1
    with pytest.raises(BadArgument, match="expected a rung"):
        reset.run(NAME, Output(True), system=machine, to="hammer")


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_another_owns_is_refused(machine: SlotMachine, dry_run: bool) -> None:
    card = Card()
    machine.open_by(GPU)
    with pytest.raises(DeviceBusy, match=r"server \(pid 4242\)"):
        reset.run(NAME, Output(True), system=machine, opener=card, dry_run=dry_run)
    machine.write_text(machine.root / "sys/bus/pci/drivers/vfio-pci/unbind", GPU)
    machine.own(GPU, "amdgpu")
    before = list(machine.log)
    with pytest.raises(DeviceBusy, match="amdgpu"):
        reset.run(NAME, Output(True), system=machine, opener=card, dry_run=dry_run)
    assert card.opened == 0 and machine.log == before


def test_a_gpu_of_nvidias_driver_is_refused(machine: SlotMachine) -> None:
    with pytest.raises(DeviceBusy, match="nvidia-smi --gpu-reset"):
        reset.run("nvrm:0", Output(True), system=machine, opener=Card())


@pytest.mark.parametrize("name", ["cpu", "virtual:gh100"])
def test_other_devices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, name)
    assert shown["attempts"][-1]["worked"] and shown["proof"]["launched"] == "one kernel"
    planned = report(capsys, name, dry_run=True)
    assert planned["attempts"] == [] and planned["plan"]


def test_a_virtual_card_by_mode1(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report(capsys, "virtual:navi31", to="mode1")
    done = [one["name"] for one in shown["attempts"] if not one["refused"]]
    assert done == ["mode1 reset"] and "SDMA0" in shown["proof"]["copied"]


# ---- the power action and the function-level reset ---------------------------------------------


def action(machine: SlotMachine, command: str) -> PowerAction:
    return PowerAction(PciFunction.find(machine, GPU), machine, command)


def test_the_power_action_runs_while_the_card_is_off_the_bus(
    machine: SlotMachine, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    climb(action(machine, f"sh -c 'echo $0 > {note}' {{device}}"), machine)
    assert note.read_text() == f"{NAME}\n"
    assert f"{SWITCH} removed" in machine.events and machine.driver(GPU) == "vfio-pci"


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        ("", NotSupported, "no power action is configured"),
        ("no-such-command-anywhere", NotSupported, "command 'no-such"),
        ("sh 'unclosed", BadArgument, "UGPU_POWER_COMMAND"),
        ("sh -c 'echo the outlet is locked >&2; exit 3'", HostError, "outlet is locked"),
    ],
)
def test_a_power_action_that_fails(
    machine: SlotMachine, command: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        climb(action(machine, command), machine)
    assert machine.driver(GPU) == "vfio-pci" and machine.folder(SLOT).exists()


def test_a_function_level_reset_by_the_kernel(
    machine: SlotMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = machine.write_text, []

    def attribute(path: Path, text: str) -> None:
        if path.name not in ("reset", "reset_method"):
            write(path, text)
            return
        written.append((path.name, text))
        path.write_text(text)

    monkeypatch.setattr(machine, "write_text", attribute)
    rung = FunctionReset(PciFunction.find(machine, GPU), machine)
    with pytest.raises(NotSupported, match="no function-level reset"):
        rung.check()
    folder = machine.folder(GPU)
    (folder / "reset_method").write_text("flr bus\n")
    (folder / "reset").write_text("")
    done = climb(rung, machine)
    assert done.proof["identity"] == "1002:744c"
    assert written == [("reset_method", "flr"), ("reset", "1"), ("reset_method", "flr bus")]
