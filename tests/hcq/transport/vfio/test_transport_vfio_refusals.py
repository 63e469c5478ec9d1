"""What the VFIO transport refuses, on a made-up kernel: each by its name, with its remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pci import fake_vfio
from tests.support.pci.descriptors import leaked, settled
from tests.support.pci.fake_vfio import VfioMachine
from ugpu.hcq.errors import (
    AccessDenied,
    BarTooSmall,
    BarUnassigned,
    DeviceAsleep,
    DeviceBusy,
    DeviceLost,
    GroupNotViable,
    HostError,
    IommuOff,
    LinkDown,
    ModuleMissing,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.transport.vfio.transport import VfioTransport

GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[VfioMachine]:
    made = VfioMachine(tmp_path)
    made.load("vfio-pci")
    made.add(GPU, driver="vfio-pci")
    yield made
    assert made.open_files == {}, "descriptors were left open"
    made.free()


def opened(machine: VfioMachine, **options: Any) -> VfioTransport:
    return VfioTransport(GPU, system=machine, **options)


def _module(machine: VfioMachine) -> None:
    (machine.root / "dev/vfio/vfio").unlink()


def _type1(machine: VfioMachine) -> None:
    machine.extensions = set()


def _iommu(machine: VfioMachine) -> None:
    (machine.folder(GPU) / "iommu_group").unlink()


def _access(machine: VfioMachine) -> None:
    machine.fail["dev/vfio/7"] = errno.EACCES


def _taken(machine: VfioMachine) -> None:
    machine.fail["dev/vfio/7"] = errno.EBUSY


def _kernel(machine: VfioMachine) -> None:
    machine.load("amdgpu")
    machine.write_text(machine.folder(GPU) / "driver/unbind", GPU)
    machine.write_text(machine.root / "sys/bus/pci/drivers/amdgpu/bind", GPU)


def _sibling(machine: VfioMachine) -> None:
    machine.add(AUDIO, kind=0x040300, driver="snd_hda_intel", bars={})


def _asleep(machine: VfioMachine) -> None:
    (machine.folder(GPU) / "power_state").write_text("D3cold\n")


def _stuck_in_d3(machine: VfioMachine) -> None:
    machine.functions[GPU].config[0x54] = 3
    machine.functions[GPU].config[6] = 0x10


def _link(machine: VfioMachine) -> None:
    (machine.folder(GPU) / "current_link_width").write_text("0\n")


def _ones(machine: VfioMachine) -> None:
    machine.functions[GPU].config[:] = b"\xff" * 4096


def _no_bar(machine: VfioMachine) -> None:
    path = machine.folder(GPU) / "resource"
    lines = path.read_text().splitlines()
    lines[0] = "0x0000000000000000 0x000000000fffffff 0x000000002014220c"
    path.write_text("\n".join(lines))


def _remapping(machine: VfioMachine) -> None:
    machine.fail[f"container:{fake_vfio.SET_IOMMU:#x}"] = errno.EPERM


def _version(machine: VfioMachine) -> None:
    machine.api = 5


REFUSALS = [
    (_module, ModuleMissing, "modprobe vfio"),
    (_type1, ModuleMissing, "modprobe vfio_iommu_type1"),
    (_iommu, IommuOff, "intel_iommu=on"),
    (_access, AccessDenied, "udev"),
    (_taken, DeviceBusy, "process"),
    (_kernel, DeviceBusy, "ugpu bind"),
    (_sibling, GroupNotViable, "snd_hda_intel"),
    (_asleep, DeviceAsleep, "power/control"),
    (_stuck_in_d3, DeviceAsleep, "power/control"),
    (_link, LinkDown, "rescan"),
    (_ones, DeviceLost, "all ones"),
    (_no_bar, BarUnassigned, "pci=realloc"),
    (_remapping, HostError, "interrupt remapping"),
    (_version, NotSupported, "version"),
]


@pytest.mark.parametrize(("spoil", "error", "words"), REFUSALS)
def test_each_refusal_is_named_with_its_remedy(
    machine: VfioMachine, spoil: object, error: type[UgpuError], words: str
) -> None:
    assert callable(spoil)
    spoil(machine)
    before = settled()
    with pytest.raises(error) as caught:
        opened(machine)
    assert words in str(caught.value)
    assert not leaked(before)


def test_a_device_that_the_kernel_put_to_sleep_is_woken_by_opening(machine: VfioMachine) -> None:
    _asleep(machine)
    (machine.folder(GPU) / "power").mkdir()
    (machine.folder(GPU) / "power/runtime_status").write_text("suspended\n")
    with opened(machine) as transport:
        assert transport.present()


def test_bars_that_are_too_small_or_missing(machine: VfioMachine) -> None:
    with pytest.raises(BarTooSmall, match="Resizable BAR"):
        opened(machine, least_bars={0: 1 << 30})
    with pytest.raises(BarUnassigned):
        opened(machine, least_bars={4: 4096})


@pytest.mark.parametrize(
    "call",
    [
        f"group:{fake_vfio.GROUP_STATUS:#x}", f"group:{fake_vfio.SET_CONTAINER:#x}",
        f"group:{fake_vfio.GET_FD:#x}", f"device:{fake_vfio.DEVICE_INFO:#x}",
        f"device:{fake_vfio.REGION_INFO:#x}", f"device:{fake_vfio.SET_IRQS:#x}",
        f"container:{fake_vfio.IOMMU_INFO:#x}", f"container:{fake_vfio.API:#x}", "device:pread",
    ],
)  # fmt: skip
def test_a_failure_at_any_call_leaves_nothing_open(machine: VfioMachine, call: str) -> None:
    machine.fail[call] = errno.EIO
    before = settled()
    with pytest.raises(UgpuError):
        opened(machine)
    assert not leaked(before) and machine.open_files == {}


def test_without_an_iommu_only_when_asked_and_with_a_warning(
    machine: VfioMachine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.extensions = {fake_vfio.NOIOMMU}
    (machine.root / "dev/vfio/noiommu-7").touch()
    with pytest.raises(ModuleMissing):
        opened(machine)
    assert "IOMMU" not in caplog.text
    with opened(machine, no_iommu=True) as transport:
        assert "all memory of this machine" in caplog.text
        assert transport.space.ranges == ((0, (1 << 64) - 1),)
    machine.extensions = {fake_vfio.TYPE1V2}
    with pytest.raises(NotSupported, match="VFIO_NOIOMMU"):
        opened(machine, no_iommu=True)
