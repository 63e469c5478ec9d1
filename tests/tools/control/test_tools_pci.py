"""`ugpu bind | unbind | eject` on made-up machines, and what the doctor says of the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from ugpu.hcq.errors import DeviceBusy, DeviceNotFound
from ugpu.tools import cli
from ugpu.tools.base.console import Output
from ugpu.tools.control import pci
from ugpu.tools.inspect import doctor

GPU, AUDIO, DISK = "0000:03:00.0", "0000:03:00.1", "0000:01:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> PciMachine:
    made = PciMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="amdgpu")
    made.add(AUDIO, kind=0x040300, driver="snd_hda_intel", bars={0: 16384})
    made.add(DISK, ids=(0x144D, 0xA808), kind=0x010802, driver="nvme", group="3", bars={})
    return made


def report(
    verb: str, machine: PciMachine, capsys: pytest.CaptureFixture[str], *, dry_run: bool = False
) -> dict[str, object]:
    capsys.readouterr()
    assert pci.run(verb, f"pci:{GPU}", Output(True), dry_run=dry_run, system=machine) == 0
    shown: dict[str, object] = json.loads(capsys.readouterr().out)
    return shown


def test_a_dry_run_shows_the_steps_and_writes_nothing(
    machine: PciMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = report("bind", machine, capsys, dry_run=True)
    assert shown["steps"] == [f"{GPU}: amdgpu -> vfio-pci", f"{AUDIO}: snd_hda_intel -> vfio-pci"]
    assert machine.log == [] and machine.driver(GPU) == "amdgpu"


def test_bind_then_unbind_then_eject(
    machine: PciMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = report("bind", machine, capsys)
    assert shown["drivers"] == {GPU: "vfio-pci", AUDIO: "vfio-pci"}
    assert report("bind", machine, capsys)["steps"] == []
    for address, driver in ((GPU, "amdgpu"), (AUDIO, "snd_hda_intel")):
        machine.natural[address] = driver
    shown = report("unbind", machine, capsys)
    assert shown["drivers"] == {GPU: "amdgpu", AUDIO: "snd_hda_intel"}
    with pytest.raises(DeviceBusy, match="amdgpu"):
        report("eject", machine, capsys)
    report("bind", machine, capsys)
    assert len(str(report("eject", machine, capsys, dry_run=True)["steps"])) > 10
    assert machine.folder(GPU).exists()
    report("eject", machine, capsys)
    assert not machine.folder(GPU).exists() and not machine.folder(AUDIO).exists()


@pytest.mark.parametrize("verb", sorted(pci.VERBS))
def test_what_is_not_ours_is_left_alone(machine: PciMachine, verb: str) -> None:
    for name in (f"pci:{DISK}", "pci:0000:77:00.0"):
        with pytest.raises(DeviceNotFound):
            pci.run(verb, name, Output(True), system=machine)
    assert machine.log == [] and machine.driver(DISK) == "nvme"


def test_the_command_line_refuses_with_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bind", "pci:nonsense", "--dry-run"]) == 2
    assert "not a PCI address" in capsys.readouterr().err


def test_the_doctor_asks_the_transports_own_questions(machine: PciMachine) -> None:
    def details() -> str:
        found = doctor.Doctor(machine.root).findings()
        assert all(one.remedy for one in found if one.state == "missing")
        return " | ".join(f"{one.state}: {one.detail}" for one in found)

    assert "missing: the PCIe link" not in details()
    (machine.folder(GPU) / "current_link_width").write_text("0\n")
    (machine.folder(GPU) / "power_state").write_text("D3cold\n")
    said = details()
    assert "missing: the PCIe link of 0000:03:00.0 is down" in said
    assert "missing: 0000:03:00.0 is powered down" in said
    module = machine.root / "sys/module/vfio/parameters"
    module.mkdir(parents=True)
    (module / "enable_unsafe_noiommu_mode").write_text("Y\n")
    said = details()
    assert "note: enabled: any process" in said
    assert "missing: VFIO's IOMMU driver is not loaded" in said
