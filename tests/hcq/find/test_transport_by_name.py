"""`pci:` names on a made-up machine: what is refused, what is handed on, what is given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.amd.am_navi31 import attach, shared_facts
from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.errors import (
    BadArgument,
    BarTooSmall,
    DeviceBusy,
    DeviceNotFound,
    FirmwareNotFound,
    FirmwareSilent,
    NotSupported,
)
from ugpu.hcq.find import catalogue, listing, registry
from ugpu.hcq.transport import attach as pci
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set

GPU, OTHER = "0000:03:00.0", "0000:04:00.0"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VfioMachine:
    made = VfioMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="amdgpu")
    made.add(OTHER, ids=(0x10DE, 0x1B80), driver="nvidia", group="8")
    monkeypatch.setattr(pci, "System", lambda: made)
    monkeypatch.setattr(listing, "SYSFS_PCI", tmp_path / "sys/bus/pci/devices")
    return made


def test_what_no_driver_knows_is_left_alone(machine: VfioMachine) -> None:
    for name in (f"pci:{OTHER}", "pci:0000:09:00.0"):
        with pytest.raises(DeviceNotFound):
            registry.open(name, bind=True)
    with pytest.raises(BadArgument, match="not a PCI address"):
        registry.open("pci:first")
    assert machine.log == [] and machine.driver(OTHER) == "nvidia"


def test_options_are_checked_before_binding(machine: VfioMachine) -> None:
    with pytest.raises(BadArgument, match=r"leaf.*bind.*leave.*no_iommu.*via"):
        registry.open(f"pci:{GPU}", bind=True, leaf="warm")
    assert machine.log == []


def test_a_card_in_use_is_refused_and_named(machine: VfioMachine) -> None:
    with pytest.raises(DeviceBusy, match="amdgpu"):
        registry.open("pci:03:00.0")
    assert machine.log == []


def test_the_chips_needs_are_asked_of_the_bars(machine: VfioMachine) -> None:
    folder = machine.folder(GPU)
    text = (folder / "resource").read_text().splitlines()
    text[0] = "0x0000008000000000 0x0000008000ffffff 0x000000000014220c"
    (folder / "resource").write_text("\n".join(text))
    with pytest.raises(BarTooSmall, match="Resizable BAR"):
        registry.open(f"pci:{GPU}", bind=True)
    assert machine.driver(GPU) == "amdgpu"


def test_a_driver_that_fails_gives_the_card_back(
    machine: VfioMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The made-up card has memory where registers should be: no firmware in it ever starts."""
    shared_facts(monkeypatch, ifwi_limit_s=0.01)
    with pytest.raises(FirmwareSilent):
        registry.open(f"pci:{GPU}", bind=True)
    assert machine.driver(GPU) == "amdgpu" and machine.open_files == {}


def test_an_nvidia_card_is_handed_on_and_given_back(machine: VfioMachine, tmp_path: Path) -> None:
    """The made-up card has memory where registers should be: no chip that ugpu boots."""
    card = "0000:05:00.0"
    machine.add(card, ids=(0x10DE, 0x2684), driver="nouveau", group="9",
                bars={0: 16 << 20, 1: 256 << 20, 3: 32 << 20})  # fmt: skip
    with pytest.raises(DeviceBusy, match="nouveau"):
        registry.open(f"pci:{card}")
    with pytest.raises(FirmwareNotFound):
        registry.open(f"pci:{card}", bind=True, firmware=tmp_path)
    for name, image in whole_set("ad102").items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    for way in ("vfio", "iommufd"):
        if way == "iommufd":
            machine.offer_iommufd(card)
        with pytest.raises(NotSupported, match="BOOT_42"):
            registry.open(f"pci:{card}", bind=True, via=way, firmware=tmp_path)
        assert machine.driver(card) == "nouveau" and machine.open_files == {}


def test_an_nvidia_card_through_sysfs(machine: VfioMachine, tmp_path: Path) -> None:
    card = "0000:05:00.0"
    machine.add(card, ids=(0x10DE, 0x2684), group=None,
                bars={0: 16 << 20, 1: 256 << 20, 3: 32 << 20})  # fmt: skip
    with pytest.raises(NotSupported, match="does not place memory"):
        registry.open(f"pci:{card}", via="sysfs", leave="warm", firmware=tmp_path)
    with pytest.raises(FirmwareNotFound):
        registry.open(f"pci:{card}", via="sysfs", firmware=tmp_path)
    assert machine.open_files == {}


def test_auto_takes_only_what_is_ready(machine: VfioMachine) -> None:
    with registry.open("auto") as device:
        assert device.name == "cpu"


def test_the_needs_of_the_chip_are_met_by_its_model() -> None:
    with attach(vram=256 << 20).transport as transport:
        needs = dict(catalogue.pci_drivers()[0x1002, 0x744C].least_bars)
        assert all(transport.window(bar).size >= size for bar, size in needs.items())
