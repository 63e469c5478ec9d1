"""NVIDIA's stock driver on made-up machines: what `ugpu ls` lists, what `ugpu doctor` finds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nvidia.nv_driver_tree import CLOSED, OPEN, NvMachine
from ugpu.hcq.find.listing import DeviceEntry
from ugpu.tools.base.console import Output
from ugpu.tools.base.finding import Finding
from ugpu.tools.cli import main
from ugpu.tools.inspect import devices, doctor, smi
from ugpu.tools.inspect.nvidia import MigInstance, NvidiaMachine, entries


@pytest.fixture
def machine(tmp_path: Path) -> NvMachine:
    return NvMachine(tmp_path)


def _findings(machine: NvMachine) -> list[Finding]:
    return doctor.Doctor(machine.root).findings()


def _missing(found: Sequence[Finding]) -> set[str]:
    return {each.check for each in found if each.state == "missing"}


def test_a_machine_without_the_driver_has_none(machine: NvMachine) -> None:
    assert NvidiaMachine(machine.root).driver() is None
    assert entries(NvidiaMachine(machine.root)) == []


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (OPEN, "580.142", "open"),
        (CLOSED, "535.183.01", "closed"),
        ("NVRM version: something {}", "570.144", "unknown"),
    ],
)
def test_the_driver_tells_its_version_and_kind(
    machine: NvMachine, text: str, version: str, flavour: str
) -> None:
    machine.add_driver(version, text)
    driver = NvidiaMachine(machine.root).driver()
    assert driver is not None
    assert (driver.version, driver.flavour, driver.branch) == (version, flavour, version[:3])


def test_gpus_are_listed_in_the_order_of_their_minors(machine: NvMachine) -> None:
    machine.add_driver()
    machine.add_gpu(1, "0000:0a:00.0")
    machine.add_gpu(0, "0000:4b:00.0")
    (machine.root / "proc/driver/nvidia/gpus/0000:99:00.0").mkdir()
    found = entries(NvidiaMachine(machine.root))
    assert [entry.name for entry in found] == ["nvrm:0", "nvrm:1"]
    assert found[0].description == "NVIDIA H200"
    assert found[0].facts == {
        "driver": "nvidia 580.142",
        "branch": "580",
        "module": "open",
        "pci": "0000:4b:00.0",
        "usable": True,
        "proven_on_silicon": "no",
        "mig": None,
    }
    driver = NvidiaMachine(machine.root).driver()
    assert driver is not None
    assert driver.gpus[0].uuid.startswith("GPU-0123")
    assert driver.gpus[0].power == "Disabled by default"


def test_mig_instances_are_recognised(machine: NvMachine) -> None:
    machine.add_driver()
    machine.add_gpu()
    machine.add_mig(0, 9, None, 30, node=True)
    machine.add_mig(0, 9, 0, 31, node=True)
    machine.add_mig(0, 10, None, 40, node=False)
    driver = NvidiaMachine(machine.root).driver()
    assert driver is not None
    assert driver.gpus[0].mig == (
        MigInstance(9, None, True),
        MigInstance(9, 0, True),
        MigInstance(10, None, False),
    )
    assert entries(NvidiaMachine(machine.root))[0].facts["mig"] == "3 instances"
    details = [each.detail for each in _findings(machine)]
    assert "MIG is on: 3 instances, 2 usable" in details


def test_a_whole_machine_is_ready_without_vfio(machine: NvMachine) -> None:
    machine.add_pci()
    machine.add_driver()
    machine.add_gpu()
    found = _findings(machine)
    assert _missing(found) == set()
    assert doctor.as_json(found)["ready"] is True
    assert any("open kernel module; a known branch" in each.detail for each in found)
    assert any("used through the nvidia driver" in each.detail for each in found)


def test_a_card_without_a_driver_is_told(machine: NvMachine) -> None:
    machine.add_pci(driver=None)
    assert "nvidia driver" in _missing(_findings(machine))


def test_what_is_broken_is_named_with_a_remedy(machine: NvMachine) -> None:
    machine.add_driver("580.142", module="570.144")
    found = {each.detail: each for each in _findings(machine)}
    assert "procfs reports version 580.142, sysfs 570.144" in found
    assert "the driver is not bound to any GPU" in found
    machine.add_gpu(excluded="Yes")
    (machine.root / "dev/nvidiactl").unlink()
    (machine.root / "dev/nvidia-uvm-tools").unlink()
    (machine.root / "run/nvidia-persistenced/socket").unlink()
    again = _findings(machine)
    assert {"nvidia driver", "nvrm:0", "iommu"} <= _missing(again)
    details = " ".join(each.detail for each in again)
    assert "/dev/nvidiactl does not exist" in details
    assert "errors of copies will not state whether the access was a read or a write" in details
    assert "excluded by the driver's configuration" in details
    assert "no persistence daemon" in details
    assert all(each.remedy for each in again if each.state != "ok")


def test_an_unknown_release_is_a_note(machine: NvMachine) -> None:
    machine.add_driver("615.71.09")
    machine.add_gpu()
    notes = [each for each in _findings(machine) if each.state == "note"]
    assert any("treated as branch 610 (nearest)" in each.detail for each in notes)


def test_a_node_that_may_not_be_opened(machine: NvMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add_driver()
    machine.add_gpu()
    allowed = os.access  # root may open everything, so the answer for one node is made up
    monkeypatch.setattr(
        os, "access", lambda path, how: Path(path).name != "nvidia0" and allowed(path, how)
    )
    assert "nvrm:0" in _missing(_findings(machine))
    assert entries(NvidiaMachine(machine.root))[0].facts["usable"] is False


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_in_procfs_is_borne(
    tmp_path_factory: pytest.TempPathFactory, version: str, information: str
) -> None:
    machine = NvMachine(tmp_path_factory.mktemp("nv"))
    machine.add_driver()
    machine.add_gpu()
    place = machine.root / "proc/driver/nvidia"
    (place / "version").write_text(version, encoding="utf-8")
    (place / "gpus/0000:0a:00.0/information").write_text(
        information + "\nDevice Minor: 0\n", encoding="utf-8"
    )
    assert [entry.name for entry in entries(NvidiaMachine(machine.root))] == ["nvrm:0"]
    assert _findings(machine)


def test_what_the_machine_knows_goes_with_what_hcq_lists(
    machine: NvMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add_driver()
    machine.add_gpu(0)
    machine.add_gpu(1, "0000:0b:00.0")
    named = [DeviceEntry("nvrm:0", "from hcq"), DeviceEntry("cpu", "host threads")]
    monkeypatch.setattr("ugpu.hcq.list_devices", lambda: named)
    found = devices.listed(NvidiaMachine(machine.root))
    assert [entry.name for entry in found] == ["nvrm:1", "nvrm:0", "cpu"]
    assert found[1].description == "NVIDIA H200"


def test_smi_shows_the_sensors_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smi", "--json", "virtual:navi31"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["device"] == "virtual:navi31"
    assert {each["unit"] for each in found[0]["sensors"]} >= {"W", "°C", "Hz", "B"}


def test_smi_names_what_cannot_be_opened_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert smi.run(["nvrm:77", "virtual:navi31"], Output(as_json=True)) == 1
    found = json.loads(capsys.readouterr().out)
    assert "error" in found[0]
    assert found[1]["sensors"]


def test_smi_without_a_gpu_says_where_to_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smi, "listed", lambda: [DeviceEntry("cpu", "host threads")])
    assert smi.run([], Output()) == 0
    assert "ugpu doctor" in capsys.readouterr().out
