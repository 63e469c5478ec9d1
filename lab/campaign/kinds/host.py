"""The host: system calls that fail, machines that refuse, signals and memory that runs out."""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.pci import os_error
from tests.support.interrupts import Interrupted, Interrupter
from ugpu.hcq.errors import (
    AccessDenied,
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
    OutOfMemory,
    TransportError,
)

_VFIO, _UAPI = "Linux Documentation/driver-api/vfio.rst", "Linux include/uapi/linux/vfio.h"
_IOMMUFD, _SYSFS = (
    "Linux include/uapi/linux/iommufd.h",
    "Linux Documentation/ABI/testing/sysfs-bus-pci",
)
_ALL = ("vfio", "iommufd", "sysfs")
GPU, AUDIO = "0000:03:00.0", "0000:03:00.1"


# ---- system calls --------------------------------------------------------------------------------


def call(
    label: str, code: int, stages: dict[str, int], error: type[Exception] | None, remedy: str = "",
    devices: tuple[str, ...] = ("vfio",), **fields: Any,
) -> Kind:  # fmt: skip
    """A system call that fails with `code`. stages: how many such calls each has; every one of
    them fails in a case of its own."""
    name = errno.errorcode[code]
    made: dict[str, Any] = {"source": _VFIO, "layer": Layer.HOST}
    return Kind(
        name=f"{label}: {name} ({', '.join(devices)})", planted="the simulated kernel", error=error,
        devices=devices, stages=tuple(stages), variants=stages, remedy=remedy,
        plant=lambda stand: stand.machine.fail_at(label, os_error(code), stand.variant),
        recovery=Recovery.GO_ON, struck=lambda stand: stand.machine.hit,
        cure=lambda stand: setattr(stand.machine, "plan", None), **(made | fields),
    )  # fmt: skip


_E = errno
CALLS = [
    call("open dev/vfio/vfio", _E.ENOENT, {"open": 1}, ModuleMissing, "modprobe vfio"),
    call("open dev/vfio/vfio", _E.EACCES, {"open": 1}, AccessDenied, "udev"),
    call("open dev/vfio/7", _E.EACCES, {"open": 1}, AccessDenied, "udev"),
    call("open dev/vfio/7", _E.EBUSY, {"open": 1}, DeviceBusy, "end that process"),
    call("open dev/vfio/7", _E.EMFILE, {"open": 1}, OutOfMemory, "ulimit -n"),
    call("open .../config", _E.EMFILE, {"open": 3}, OutOfMemory, "ulimit -n", ("vfio", "iommufd")),
    call("open .../config", _E.EACCES, {"open": 3}, AccessDenied, "run as root",
         ("vfio", "iommufd")),
    call("eventfd", _E.EMFILE, {"open": 3, "interrupts": 2}, OutOfMemory, "ulimit -n",
         ("vfio", "iommufd")),
    call("ioctl VFIO_GET_API_VERSION", _E.EIO, {"open": 1}, TransportError),
    call("ioctl VFIO_CHECK_EXTENSION", _E.EIO, {"open": 1}, TransportError),
    call("ioctl VFIO_GROUP_GET_STATUS", _E.EIO, {"open": 1}, TransportError),
    call("ioctl VFIO_GROUP_SET_CONTAINER", _E.EIO, {"open": 1}, TransportError),
    call("ioctl VFIO_SET_IOMMU", _E.EPERM, {"open": 1}, HostError, "interrupt remapping"),
    call("ioctl VFIO_IOMMU_GET_INFO", _E.EIO, {"open": 1}, TransportError),
    call("ioctl VFIO_GROUP_GET_DEVICE_FD", _E.EPERM, {"open": 1}, TransportError),
    call("ioctl VFIO_DEVICE_GET_INFO", _E.EIO, {"open": 1}, TransportError,
         devices=("vfio", "iommufd")),
    call("ioctl VFIO_DEVICE_GET_REGION_INFO", _E.EIO, {"open": 1, "window": 1}, TransportError,
         devices=("vfio", "iommufd")),
    call("ioctl VFIO_DEVICE_GET_IRQ_INFO", _E.EIO, {"open": 2, "interrupts": 2}, None,
         devices=("vfio", "iommufd")),
    call("ioctl VFIO_DEVICE_SET_IRQS", _E.EIO, {"open": 2, "interrupts": 1}, TransportError,
         devices=("vfio", "iommufd")),
    call("ioctl VFIO_DEVICE_RESET", _E.EAGAIN, {"reset": 1}, DeviceLost,
         devices=("vfio", "iommufd")),
    call("ioctl VFIO_IOMMU_MAP_DMA", _E.ENOMEM, {"dma": 1}, OutOfMemory, "memlock"),
    call("ioctl VFIO_IOMMU_MAP_DMA", _E.EINVAL, {"dma": 1}, TransportError),
    call("ioctl VFIO_IOMMU_UNMAP_DMA", _E.EIO, {"dma": 1}, TransportError),
    call("open dev/iommu", _E.EACCES, {"open": 1}, AccessDenied, "udev", ("iommufd",),
         source=_IOMMUFD),
    call("open dev/vfio/devices/vfio0", _E.EACCES, {"open": 1}, AccessDenied, "udev",
         ("iommufd",), source=_IOMMUFD),
    call("open dev/vfio/devices/vfio0", _E.EBUSY, {"open": 1}, DeviceBusy, "end that process",
         ("iommufd",), source=_IOMMUFD),
    call("ioctl VFIO_DEVICE_BIND_IOMMUFD", _E.EIO, {"open": 1}, TransportError, "",
         ("iommufd",), source=_IOMMUFD),
    call("ioctl VFIO_DEVICE_ATTACH_IOMMUFD_PT", _E.EIO, {"open": 1}, TransportError, "",
         ("iommufd",), source=_IOMMUFD),
    call("ioctl IOMMU_IOAS_ALLOC", _E.EIO, {"open": 1}, TransportError, "", ("iommufd",),
         source=_IOMMUFD),
    call("ioctl IOMMU_IOAS_IOVA_RANGES", _E.EIO, {"open": 1}, TransportError, "", ("iommufd",),
         source=_IOMMUFD),
    call("ioctl IOMMU_IOAS_MAP", _E.ENOMEM, {"dma": 1}, OutOfMemory, "memlock", ("iommufd",),
         source=_IOMMUFD),
    call("ioctl IOMMU_IOAS_UNMAP", _E.EIO, {"dma": 1}, TransportError, "", ("iommufd",),
         source=_IOMMUFD),
    call("mmap of memory", _E.ENOMEM, {"dma": 1}, OutOfMemory, "free memory", _ALL,
         source="mmap(2)", layer=Layer.MEMORY),
    call("mmap of a BAR", _E.ENOMEM, {"window": 1}, TransportError, "", ("vfio", "iommufd"),
         source="mmap(2)"),
    call("mlock", _E.ENOMEM, {"dma": 1}, OutOfMemory, "memlock", ("sysfs",), source="mlock(2)"),
    call("open proc/self/pagemap", _E.EACCES, {"dma": 1}, HostError, "run as root", ("sysfs",),
         source="Linux Documentation/admin-guide/mm/pagemap.rst"),
    call("open .../config", _E.EMFILE, {"open": 4}, OutOfMemory, "ulimit -n", ("sysfs",),
         source=_SYSFS),
    call("write .../enable", _E.EIO, {"open": 1}, TransportError, "", ("sysfs",), source=_SYSFS),
    call("open .../enable", _E.EACCES, {"open": 1}, AccessDenied, "run as root", ("sysfs",),
         source=_SYSFS),
    call("write .../reset", _E.ENOTTY, {"reset": 1}, TransportError, "", ("sysfs",),
         source=_SYSFS),
    call("open .../reset", _E.EACCES, {"reset": 1}, AccessDenied, "run as root", ("sysfs",),
         source=_SYSFS),
    call("pwrite", _E.EIO, {"config": 1}, DeviceLost, "", _ALL,
         source="Linux pci_user_write_config"),
]  # fmt: skip


# ---- machines that refuse ------------------------------------------------------------------------


def refusal(
    name: str, change: Callable[[Any], object], error: type[Exception], remedy: str,
    layer: Layer = Layer.HOST,
) -> Kind:  # fmt: skip
    """What is wrong with a machine before the device is opened. It stays wrong: another machine
    shows that nothing was left behind."""

    def cure(stand: Any) -> None:
        again = type(stand)(0)
        stand.stop()
        stand.__dict__.update(again.__dict__)

    return Kind(
        name=name, layer=layer, planted="the simulated kernel", devices=("vfio",), stages=("open",),
        plant=lambda stand: change(stand.machine), error=error, remedy=remedy, source=_VFIO,
        recovery=Recovery.REOPEN, cure=cure,
    )  # fmt: skip


def _no_bar(machine: Any) -> None:
    path = machine.folder(GPU) / "resource"
    lines = path.read_text().splitlines()
    lines[0] = "0x0000000000000000 0x000000000fffffff 0x000000002014220c"
    path.write_text("\n".join(lines))


def _taken(machine: Any) -> None:
    machine.load("amdgpu")
    machine.write_text(machine.folder(GPU) / "driver/unbind", GPU)
    machine.write_text(machine.root / "sys/bus/pci/drivers/amdgpu/bind", GPU)


def _in_d3(machine: Any) -> None:
    machine.functions[GPU].config[0x54] = 3
    machine.functions[GPU].config[6] = 0x10


def _ones(machine: Any) -> None:
    machine.functions[GPU].config[:] = b"\xff" * 4096


REFUSALS = [
    refusal("VFIO is not loaded", lambda m: (m.root / "dev/vfio/vfio").unlink(), ModuleMissing,
            "modprobe vfio"),
    refusal("VFIO has no IOMMU driver", lambda m: setattr(m, "extensions", set()), ModuleMissing,
            "modprobe vfio_iommu_type1"),
    refusal("no IOMMU", lambda m: (m.folder(GPU) / "iommu_group").unlink(), IommuOff,
            "intel_iommu=on"),
    refusal("kernel driver holds the card", _taken, DeviceBusy, "ugpu bind"),
    refusal("kernel driver holds another function of the IOMMU group",
            lambda m: m.add(AUDIO, kind=0x040300, driver="snd_hda_intel", bars={}), GroupNotViable,
            "snd_hda_intel"),
    refusal("card sleeps in D3cold",
            lambda m: (m.folder(GPU) / "power_state").write_text("D3cold\n"), DeviceAsleep,
            "power/control", Layer.POWER),
    refusal("card does not leave D3hot", _in_d3, DeviceAsleep, "power/control", Layer.POWER),
    refusal("link is down", lambda m: (m.folder(GPU) / "current_link_width").write_text("0\n"),
            LinkDown, "rescan", Layer.LINK),
    refusal("configuration space reads as ones", _ones, DeviceLost, "", Layer.LINK),
    refusal("BAR without an address", _no_bar, BarUnassigned, "pci=realloc"),
    refusal("VFIO of another version", lambda m: setattr(m, "api", 5), NotSupported, ""),
]  # fmt: skip


# ---- at any line, at any call --------------------------------------------------------------------


class Raiser(Interrupter):
    """Raises `what` in place of Interrupted."""

    def __init__(self, number: int, what: type[BaseException]) -> None:
        super().__init__(number)
        self.what = what

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        try:
            return super()._line(frame, event, argument)
        except Interrupted as cut:
            raise self.what(*cut.args) from None


def at_a_line(what: type[BaseException]) -> Callable[[Any], None]:
    """Raise `what` at a line of the driver that this thread is about to run, drawn by the seed."""

    def plant(stand: Any) -> None:
        number = random.Random(f"{stand.seed} {stand.variant}").randrange(stand.lines)
        sys.settrace(Raiser(number, what))

    return plant


def _stop(_stand: Any) -> None:
    sys.settrace(None)


def lines(name: str, what: type[BaseException]) -> Kind:
    return Kind(
        name=name, layer=Layer.HOST, planted=f"{what.__name__} at a line, by `sys.settrace`",
        devices=("navi31", "gh100"), stages=("launch", "copy", "reset", "close"), error=what,
        plant=at_a_line(what), cure=_stop, may_cope=True, variants=4, recovery=Recovery.GO_ON,
        # A close that is cut off takes DMA from engines that still run.
        objections=("the IOMMU refuses", "bus mastering off"),
        source="signal(7)" if what is KeyboardInterrupt else "Python, MemoryError",
    )  # fmt: skip


LINES = [
    lines("Ctrl-C at a line of the driver", KeyboardInterrupt),
    lines("memory of the process runs out at a line of the driver", MemoryError),
    Kind(
        name="Ctrl-C at a system call", layer=Layer.HOST, planted="the simulated kernel",
        devices=_ALL, stages=("open", "dma", "config", "reset", "close"), error=KeyboardInterrupt,
        plant=lambda s: s.machine.fail_at("*", KeyboardInterrupt(), s.variant), may_cope=True,
        cure=lambda s: setattr(s.machine, "plan", None),
        variants={"open": 24, "dma": 3, "config": 3, "reset": 2, "close": 2},
        recovery=Recovery.GO_ON, source="signal(7)",
    ),
]  # fmt: skip

KINDS = [*CALLS, *REFUSALS, *LINES]
