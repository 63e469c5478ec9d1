"""Binding on made-up machines: what is refused, what is restored, also after Ctrl-C half way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.pci.pci_machine import PciMachine
from ugpu.hcq.errors import (
    AccessDenied,
    BadArgument,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    IommuOff,
    LinkDown,
    ModuleMissing,
    TransportError,
    UgpuError,
)
from ugpu.hcq.transport.pci.binding import Binding, plan, release
from ugpu.hcq.transport.pci.eject import eject
from ugpu.hcq.transport.pci.function import PciFunction, normal_address

GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> PciMachine:
    """A card as a desktop holds it: GPU and its audio function in one group, kernel drivers on."""
    made = PciMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="amdgpu")
    made.add(AUDIO, ids=(0x1002, 0xAB30), kind=0x040300, driver="snd_hda_intel", bars={0: 16384})
    return made


def gpu(machine: PciMachine) -> PciFunction:
    return PciFunction.find(machine, GPU)


def state(machine: PciMachine) -> dict[str, tuple[str | None, str | None]]:
    return {
        address: (machine.driver(address), PciFunction(machine, address).override)
        for address in machine.functions
    }


def test_the_group_goes_together_and_comes_back(machine: PciMachine) -> None:
    before = state(machine)
    with Binding.bind(gpu(machine)) as binding:
        assert [machine.driver(one) for one in (GPU, AUDIO)] == ["vfio-pci", "vfio-pci"]
        assert [str(step) for step in binding.steps] == [
            f"{GPU}: amdgpu -> vfio-pci",
            f"{AUDIO}: snd_hda_intel -> vfio-pci",
        ]
    assert state(machine) == before
    binding.restore()
    assert state(machine) == before


@pytest.mark.parametrize("place", ["driver_override", "driver/unbind", "drivers_probe"])
@pytest.mark.parametrize("victim", [GPU, AUDIO])
def test_an_interrupt_anywhere_leaves_nothing_unbound(
    machine: PciMachine, place: str, victim: str
) -> None:
    before = state(machine)
    machine.interrupt_at = place if place == "drivers_probe" else f"{victim}/{place}"
    with pytest.raises(KeyboardInterrupt):
        Binding.bind(gpu(machine))
    assert state(machine) == before


@pytest.mark.parametrize("place", ["driver_override", "driver/unbind", "/bind"])
def test_an_interrupt_while_giving_back_comes_after_all_were_given_back(
    machine: PciMachine, place: str
) -> None:
    before = state(machine)
    binding = Binding.bind(gpu(machine))
    machine.interrupt_at = place
    with pytest.raises(KeyboardInterrupt):
        binding.restore()
    assert state(machine) == before and binding.steps == []


def test_a_function_that_vfio_does_not_take_goes_back_with_the_rest(machine: PciMachine) -> None:
    before = state(machine)
    machine.refuse_probe.add(AUDIO)
    with pytest.raises(TransportError, match="could not bind"):
        Binding.bind(gpu(machine))
    assert state(machine) == before


def test_a_former_override_is_kept(machine: PciMachine) -> None:
    (machine.folder(GPU) / "driver_override").write_text("amdgpu\n")
    with Binding.bind(gpu(machine)):
        pass
    assert PciFunction(machine, GPU).override == "amdgpu"


def test_restoring_goes_on_after_a_failure(machine: PciMachine) -> None:
    binding = Binding.bind(gpu(machine))
    machine.fail["snd_hda_intel/bind"] = errno.ENODEV
    with pytest.raises(TransportError, match="some functions"):
        binding.restore()
    assert machine.driver(GPU) == "amdgpu"


def test_a_card_that_was_pulled_out_needs_no_restoring(machine: PciMachine) -> None:
    binding = Binding.bind(gpu(machine))
    for address in (GPU, AUDIO):
        machine.folder(address).unlink()
    binding.restore()


@pytest.mark.parametrize(
    ("kind", "word", "driver"),
    [(0x010802, "storage", "nvme"), (0x020000, "network", "e1000e")],
)
def test_a_group_with_a_disk_or_network_card_is_left_alone(
    machine: PciMachine, kind: int, word: str, driver: str
) -> None:
    machine.add("0000:04:00.0", ids=(0x8086, 1), kind=kind, driver=driver, bars={})
    before = state(machine)
    with pytest.raises(DeviceBusy, match=word) as caught:
        Binding.bind(gpu(machine))
    assert driver in str(caught.value) and caught.value.facts["remedy"]
    assert state(machine) == before and machine.log == []


def test_mounts_of_a_disk_are_named(machine: PciMachine) -> None:
    machine.add("0000:04:00.0", ids=(0x8086, 1), kind=0x010802, driver="nvme", bars={})
    part = machine.folder("0000:04:00.0") / "nvme/nvme0/block/nvme0n1/nvme0n1p1"
    part.mkdir(parents=True)
    for folder in (part, part.parent):
        (folder / "dev").write_text("259:1")
    (machine.root / "proc/mounts").write_text("/dev/nvme0n1p1 / ext4 rw 0 0\n")
    with pytest.raises(DeviceBusy, match=r"nvme0n1 mounted on /|nvme0n1p1 mounted on /"):
        plan(gpu(machine))


def test_a_bridge_in_the_group_stays(machine: PciMachine) -> None:
    machine.add("0000:02:00.0", ids=(0x1022, 2), kind=0x060400, driver="pcieport", bars={})
    with Binding.bind(gpu(machine)):
        assert machine.driver("0000:02:00.0") == "pcieport"


def test_a_process_with_the_device_open_is_named(machine: PciMachine) -> None:
    node = machine.folder(GPU) / "drm/card1"
    node.mkdir(parents=True)
    (node / "dev").write_text("226:1")
    (node / "uevent").write_text("MAJOR=226\nDEVNAME=dri/card1\n")
    process = machine.root / "proc/4321"
    (process / "fd").mkdir(parents=True)
    (process / "fd/9").symlink_to("/dev/dri/card1")
    (process / "comm").write_text("Xorg\n")
    with pytest.raises(DeviceBusy, match=r"Xorg \(pid 4321\)"):
        Binding.bind(gpu(machine))
    assert machine.log == []


def _no_iommu(machine: PciMachine) -> None:
    (machine.folder(GPU) / "iommu_group").unlink()


def _no_module(machine: PciMachine) -> None:
    folder = machine.root / "sys/bus/pci/drivers/vfio-pci"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _link_down(machine: PciMachine) -> None:
    (machine.folder(GPU) / "current_link_width").write_text("0\n")


def _link_status_all_ones(machine: PciMachine) -> None:
    (machine.folder(GPU) / "current_link_width").write_text("63\n")


def _all_ones(machine: PciMachine) -> None:
    (machine.folder(GPU) / "vendor").write_text("0xffff\n")


def _no_rights(machine: PciMachine) -> None:
    machine.fail["driver_override"] = errno.EACCES


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_no_iommu, IommuOff),
        (_no_module, ModuleMissing),
        (_link_down, LinkDown),
        (_link_status_all_ones, LinkDown),
        (_all_ones, DeviceLost),
        (_no_rights, AccessDenied),
    ],
)
def test_each_obstacle_has_its_error_and_remedy(
    machine: PciMachine, spoil: object, error: type[UgpuError]
) -> None:
    assert callable(spoil)
    spoil(machine)
    with pytest.raises(error) as caught:
        Binding.bind(gpu(machine))
    assert caught.value.facts["remedy"]
    assert machine.driver(GPU) == "amdgpu" and machine.driver(AUDIO) == "snd_hda_intel"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_rights_are_checked_before_anything_is_written(machine: PciMachine) -> None:
    (machine.folder(GPU) / "driver_override").chmod(0o444)
    with pytest.raises(AccessDenied, match="sudo"):
        Binding.bind(gpu(machine))
    assert machine.log == []
    assert plan(gpu(machine), rights=False)


def test_a_bridge_or_nothing_at_all(machine: PciMachine) -> None:
    machine.add("0000:02:00.0", kind=0x060400, driver="pcieport", bars={})
    with pytest.raises(BadArgument, match="bridge"):
        plan(PciFunction.find(machine, "0000:02:00.0"))
    with pytest.raises(DeviceNotFound):
        PciFunction.find(machine, "0000:55:00.0")


def test_giving_back_waits_for_users(machine: PciMachine) -> None:
    Binding.bind(gpu(machine))
    process = machine.root / "proc/77"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/vfio/7")
    (process / "comm").write_text("python3\n")
    with pytest.raises(DeviceBusy, match=r"python3 \(pid 77\)"):
        release(gpu(machine))
    (process / "fd/3").unlink()
    assert len(release(gpu(machine))) == 2


def test_ejecting_takes_the_whole_card_or_nothing(machine: PciMachine) -> None:
    with pytest.raises(DeviceBusy, match="amdgpu"):
        eject(gpu(machine))
    assert machine.folder(GPU).exists()
    Binding.bind(gpu(machine))
    assert [one.address for one in eject(gpu(machine))] == [GPU, AUDIO]
    assert not machine.folder(GPU).exists() and not machine.folder(AUDIO).exists()


@pytest.mark.parametrize("text", ["", "3:0", "0000:03:00", "0000:03:20.0", "0000:03:00.8", "../x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(BadArgument):
        normal_address(text)


def test_short_addresses_are_completed() -> None:
    assert normal_address("0A:1F.7") == "0000:0a:1f.7"


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])
def test_a_function_that_leaves_while_it_is_given_back(
    machine: PciMachine, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Linux takes a function's files away before its folder."""
    binding = Binding.bind(gpu(machine))
    real = machine.write_text

    def removed(path: Path, text: str) -> None:
        if GPU in str(path):
            (PciFunction(machine, GPU).folder / "driver_override").unlink(missing_ok=True)
            raise OSError(code, os.strerror(code))
        real(path, text)

    monkeypatch.setattr(machine, "write_text", removed)
    binding.restore()
    assert binding.steps == []
    assert machine.driver(AUDIO) == "snd_hda_intel"


def test_a_file_that_is_missing_of_a_function_that_stays_is_a_failure(
    machine: PciMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = Binding.bind(gpu(machine))
    real = machine.write_text

    def refused(path: Path, text: str) -> None:
        if GPU in str(path):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        real(path, text)

    monkeypatch.setattr(machine, "write_text", refused)
    with pytest.raises(TransportError, match="did not return to their driver"):
        binding.restore()
