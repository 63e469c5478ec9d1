"""Whatever stands between a driver and a card: the transport's error and the doctor's finding name
the same thing, each with the remedy. One made-up machine serves both.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.errors import (
    AccessDenied,
    BarTooSmall,
    BarUnassigned,
    DeviceAsleep,
    DeviceBusy,
    GroupNotViable,
    IommuOff,
    LinkDown,
    ModuleMissing,
    UgpuError,
)
from ugpu.hcq.find.catalogue import pci_drivers
from ugpu.hcq.transport.vfio.transport import VfioTransport
from ugpu.tools.inspect import doctor

GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"
LEAST = dict(pci_drivers()[0x1002, 0x744C].least_bars)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[VfioMachine]:
    made = VfioMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="vfio-pci")
    (tmp_path / "sys/module/vfio").mkdir(parents=True)
    (tmp_path / "sys/module/vfio_iommu_type1").mkdir()
    yield made
    made.free()


def group_held(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    machine.add(AUDIO, kind=0x040300, driver="snd_hda_intel", bars={})


def node_forbidden(machine: VfioMachine, patch: pytest.MonkeyPatch) -> None:
    machine.fail["dev/vfio/7"] = errno.EACCES
    access = os.access
    patch.setattr(os, "access", lambda path, mode: "vfio/7" not in str(path) and access(path, mode))


def iommu_off(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    (machine.folder(GPU) / "iommu_group").unlink()
    group = machine.root / "sys/kernel/iommu_groups/7"
    (group / "devices" / GPU).unlink()
    (group / "devices").rmdir()
    (group / "type").unlink()
    group.rmdir()


def _resource(machine: VfioMachine, line: str) -> None:
    path = machine.folder(GPU) / "resource"
    path.write_text("\n".join([line, *path.read_text().splitlines()[1:]]))


def bar_unassigned(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    _resource(machine, "0x0000000000000000 0x000000000fffffff 0x000000002014220c")


def bar_small(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    _resource(machine, "0x0000008000000000 0x0000008001ffffff 0x000000000014220c")


def asleep(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    (machine.folder(GPU) / "power_state").write_text("D3cold\n")


def link_down(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    (machine.folder(GPU) / "current_link_width").write_text("0\n")


def no_module(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    (machine.root / "sys/bus/pci/drivers/vfio-pci/bind").unlink()
    (machine.root / "sys/bus/pci/drivers/vfio-pci/unbind").unlink()
    (machine.root / "sys/bus/pci/drivers/vfio-pci").rmdir()


def no_type1(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    (machine.root / "sys/module/vfio_iommu_type1").rmdir()
    machine.extensions = set()


def kernel_holds(machine: VfioMachine, _: pytest.MonkeyPatch) -> None:
    machine.load("amdgpu")
    machine.write_text(machine.folder(GPU) / "driver/unbind", GPU)
    machine.write_text(machine.root / "sys/bus/pci/drivers/amdgpu/bind", GPU)


Spoil = Callable[[VfioMachine, pytest.MonkeyPatch], None]
# (what is wrong, the error, words of the remedy in both, words of who or what in the error)
OBSTACLES: list[tuple[Spoil, type[UgpuError], str, str]] = [
    (group_held, GroupNotViable, "ugpu bind", "snd_hda_intel"),
    (node_forbidden, AccessDenied, "udev", "dev/vfio/7"),
    (iommu_off, IommuOff, "intel_iommu=on", GPU),
    (bar_unassigned, BarUnassigned, "pci=realloc", "BAR 0"),
    (bar_small, BarTooSmall, "Resizable BAR", "size="),
    (asleep, DeviceAsleep, "power/control", "D3cold"),
    (link_down, LinkDown, "rescan", GPU),
    (no_module, ModuleMissing, "modprobe vfio-pci", "vfio-pci"),
    (no_type1, ModuleMissing, "modprobe vfio_iommu_type1", "vfio_iommu_type1"),
    (kernel_holds, DeviceBusy, "ugpu bind", "amdgpu"),
]


@pytest.mark.parametrize(
    ("spoil", "error", "remedy", "named"), OBSTACLES, ids=lambda item: getattr(item, "__name__", "")
)
def test_error_and_doctor_name_it_with_its_remedy(
    machine: VfioMachine,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil,
    error: type[UgpuError],
    remedy: str,
    named: str,
) -> None:
    healthy = {finding.remedy for finding in doctor.Doctor(machine.root).findings()}
    VfioTransport(GPU, system=machine, least_bars=LEAST).close()
    spoil(machine, monkeypatch)
    with pytest.raises(error) as caught:
        VfioTransport(GPU, system=machine, least_bars=LEAST)
    assert remedy in str(caught.value.facts["remedy"]) and named in str(caught.value)
    told = [
        finding
        for finding in doctor.Doctor(machine.root).findings()
        if finding.state == "missing" and finding.remedy not in healthy
    ]
    assert any(remedy in finding.remedy for finding in told), told
    assert machine.open_files == {}
