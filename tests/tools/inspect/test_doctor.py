"""`ugpu doctor` on made-up machines: every finding has its remedy, and a whole machine is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.tools.inspect import doctor
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set


class Machine:
    """A file tree that looks like the parts of sysfs, /dev and /lib that the doctor reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        (root / "sys/bus/pci/drivers").mkdir(parents=True)

    def add_gpu(
        self,
        address: str = "0000:03:00.0",
        ident: tuple[int, int] = (0x1002, 0x744C),
        driver: str | None = "vfio-pci",
        vram_bar: int = 32 << 30,
        group: bool = True,
    ) -> None:
        entry = self.root / "sys/bus/pci/devices" / address
        entry.mkdir()
        (entry / "vendor").write_text(f"{ident[0]:#06x}\n")
        (entry / "device").write_text(f"{ident[1]:#06x}\n")
        (entry / "class").write_text("0x030000\n")
        base = 0x80_0000_0000
        first = f"{base:#018x} {base + vram_bar - 1:#018x} 0x14220c" if vram_bar else "0x0 0x0 0x0"
        (entry / "resource").write_text("\n".join([first] + ["0x0 0x0 0x0"] * 12) + "\n")
        if driver is not None:
            folder = self.root / "sys/bus/pci/drivers" / driver
            folder.mkdir(exist_ok=True)
            (entry / "driver").symlink_to(folder)
        if group:
            folder = self.root / "sys/kernel/iommu_groups/7"
            folder.mkdir(parents=True, exist_ok=True)
            (entry / "iommu_group").symlink_to(folder)

    def add_vfio(self) -> None:
        (self.root / "sys/bus/pci/drivers/vfio-pci").mkdir(exist_ok=True)
        (self.root / "dev/vfio").mkdir(parents=True)
        (self.root / "dev/vfio/vfio").touch()

    def add_firmware(self, suffix: str = ".xz") -> None:
        folder = self.root / "lib/firmware/amdgpu"
        folder.mkdir(parents=True)
        for name in NAVI31.firmware_files:
            (folder / (name + suffix)).touch()

    def findings(self) -> list[doctor.Finding]:
        return doctor.Doctor(self.root).findings()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def missing(findings: list[doctor.Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.state == "missing"}


def test_a_whole_machine_is_ready(machine: Machine) -> None:
    machine.add_vfio()
    machine.add_gpu()
    machine.add_firmware()
    assert missing(machine.findings()) <= {"locked memory"}  # that one asks the real process


def test_an_empty_machine_names_everything_with_a_command(machine: Machine) -> None:
    findings = machine.findings()
    assert {"iommu", "vfio-pci", "vfio access", "firmware"} <= missing(findings)
    assert all(finding.remedy for finding in findings if finding.state != "ok")
    assert doctor.as_json(findings)["ready"] is False


def test_a_card_held_by_its_kernel_driver(machine: Machine) -> None:
    machine.add_gpu(driver="amdgpu")
    held = [f for f in machine.findings() if "kernel driver amdgpu" in f.detail]
    assert len(held) == 1 and "0000:03:00.0/driver/unbind" in held[0].remedy


def test_a_card_nobody_holds_is_bound_without_unbinding(machine: Machine) -> None:
    machine.add_gpu(driver=None)
    found = [f for f in machine.findings() if "unbound" in f.detail]
    assert len(found) == 1 and "driver/unbind" not in found[0].remedy


@pytest.mark.parametrize(
    ("size", "state", "word"),
    [(256 << 20, "note", "256 MiB"), (0, "missing", "no address"), (32 << 30, "ok", "32 GiB")],
)
def test_bar_sizes(machine: Machine, size: int, state: str, word: str) -> None:
    machine.add_gpu(vram_bar=size)
    assert [f.state for f in machine.findings() if word in f.detail] == [state]


def test_unknown_and_foreign_cards(machine: Machine) -> None:
    machine.add_gpu(address="0000:04:00.0", ident=(0x1002, 0x1478))
    machine.add_gpu(address="0000:05:00.0", ident=(0x8086, 0x56A0))
    details = [f.detail for f in machine.findings() if f.check == "device"]
    assert len(details) == 1 and "not supported yet" in details[0]


def test_an_nvidia_card_without_a_kernel_driver(machine: Machine) -> None:
    machine.add_gpu(ident=(0x10DE, 0x2684), driver="vfio-pci")
    found = {finding.check: finding for finding in machine.findings()}
    assert found["firmware"].state == "missing"
    assert "ad102/gsp/booter_load" in found["firmware"].detail
    for name in whole_set("ad102"):
        path = machine.root / "lib/firmware" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    states = {finding.check: finding.state for finding in machine.findings()}
    assert states["firmware"] == "ok" and "nvidia driver" not in states


def test_no_group(machine: Machine) -> None:
    machine.add_gpu(group=False)
    assert any("not belong to an IOMMU group" in f.detail for f in machine.findings())


def test_each_card_wants_the_images_of_its_chip(machine: Machine) -> None:
    machine.add_gpu()
    (found,) = [f for f in machine.findings() if f.check == "firmware"]
    assert "Navi31 images not in" in found.detail and "psp_13_0_0_sos.bin" in found.detail


def test_a_configured_firmware_folder_is_looked_into(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    looked = doctor.Doctor(tmp_path, firmware_folders=(folder,))
    (before,) = looked.firmware([])
    assert before.state == "missing" and str(folder) in before.detail
    for name in NAVI31.firmware_files:
        (folder / f"{name}.zst").touch()
    (after,) = looked.firmware([])
    assert after.state == "ok" and str(folder) in after.detail


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xff", b"0x", b"9" * 5000])
def test_files_of_sysfs_that_are_empty_or_odd_stop_nothing(
    machine: Machine, content: bytes
) -> None:
    """As they are while a card leaves."""
    machine.add_gpu()
    machine.add_vfio()
    files = [each for each in (machine.root / "sys").rglob("*") if each.is_file()]
    assert len(files) > 3
    for file in files:
        former = file.read_bytes()
        file.write_bytes(content)
        machine.findings()
        file.write_bytes(former)
