"""Device names to drivers, lazily: only what a name needs is imported.

auto             UGPU_DEVICE if set, the first real device, else cpu
cpu              host threads
virtual:<chip>   a register-level model of a chip, with the real driver on it
pci:<address>    bare metal
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hcq import trace
from hcq.config import config
from hcq.errors import BadArgument, DeviceNotFound, NotSupported

if TYPE_CHECKING:
    from hcq.device import Device
    from hcq.transport.base import Transport

SYSFS_PCI = Path("/sys/bus/pci/devices")

# chip -> "module:function" that makes an Attachment; its keywords are the model's options
VIRTUAL_CHIPS = {"navi31": "am.virtual.gpu:attach"}
# (PCI vendor, device) -> (what it is, "module:function" called with name, attachment, driver
# options)
PCI_DRIVERS = {(0x1002, 0x744C): ("AMD Navi31", "am.device:open_device")}
PLANNED = ("usb", "nvrm", "kfd", "kgsl", "vfio-user", "tcp")


@dataclass(frozen=True)
class Attachment:
    """A way to a chip, handed to a driver, which then owns it.

    firmware: images by file name, in place of those on this machine. chip: the model behind a
    virtual transport, for those who want to look inside or plug it in again; None for hardware.
    """

    transport: Transport
    firmware: Mapping[str, bytes] | None = None
    chip: object = None


@dataclass(frozen=True)
class DeviceEntry:
    """A device that `open` would find. facts: what is known without touching it."""

    name: str
    description: str
    facts: dict[str, object] = field(default_factory=dict)


def open(name: str = "auto", **options: object) -> Device:
    """Open a device by name; the caller closes it.

    Options are the driver's, and for virtual chips also the model's (`chip=` plugs in a chip again
    that stayed powered). Every driver takes `on_stage`: called with the name of each step of coming
    up and the seconds it took. DeviceNotFound for an unknown name, BadArgument for an unknown
    option.
    """
    if name == "auto":
        found = config().device or next((e.name for e in _pci_devices(SYSFS_PCI)), "cpu")
        return open(found if found != "auto" else "cpu", **options)
    _start_tracing()
    with trace.step("open", device=name):
        device = _open_named(name, options)
    device.limit_s = config().wait_limit_s
    return device


def _open_named(name: str, options: dict[str, object]) -> Device:
    kind, _, rest = name.partition(":")
    if name == "cpu":
        make = _load("hcq.cpu.device:open_device")
        _check_options(name, make, options, given=1)
        return _device(make(name, **options))
    if kind == "virtual":
        return _open_virtual(name, rest, options)
    if kind == "pci":
        return _open_pci(name, rest)
    if kind in PLANNED:
        raise NotSupported(f"{name}: devices of kind {kind!r} are not built yet")
    have = ", ".join(entry.name for entry in list_devices())
    raise DeviceNotFound(f"no device {name!r}; there are: {have}")


@functools.cache
def _start_tracing() -> None:
    """Send the event bus to the file of UGPU_TRACE, once per process."""
    path = config().trace_file
    if path is not None:
        trace.subscribe(trace.JsonLines(path))


def list_devices(sysfs: Path = SYSFS_PCI) -> list[DeviceEntry]:
    """What `open` would find on this machine: real devices first. Touches no hardware."""
    virtual = [DeviceEntry(f"virtual:{chip}", f"model of {chip}") for chip in sorted(VIRTUAL_CHIPS)]
    return [*_pci_devices(sysfs), DeviceEntry("cpu", "host threads"), *virtual]


def _open_virtual(name: str, chip: str, options: dict[str, object]) -> Device:
    if chip not in VIRTUAL_CHIPS:
        have = ", ".join(f"virtual:{known}" for known in sorted(VIRTUAL_CHIPS))
        raise DeviceNotFound(f"no virtual chip {chip!r}; there are: {have}")
    attach = _load(VIRTUAL_CHIPS[chip])
    for_model = set(inspect.signature(attach).parameters) & set(options)
    attachment = attach(**{key: options.pop(key) for key in for_model})
    if not isinstance(attachment, Attachment):
        raise TypeError(f"{VIRTUAL_CHIPS[chip]} returned {attachment!r}")
    try:
        identity = attachment.transport.identity
        known = PCI_DRIVERS.get((identity.vendor, identity.device))
        if known is None:
            raise DeviceNotFound(f"{name}: no driver for PCI id {identity}")
        make = _load(known[1])
        _check_options(name, make, options, given=2)
        return _device(make(name, attachment, **options))
    except BaseException:
        attachment.transport.close()
        raise


def _open_pci(name: str, address: str) -> Device:
    found = [entry for entry in _pci_devices(SYSFS_PCI) if entry.name == name]
    if not found:
        have = ", ".join(entry.name for entry in _pci_devices(SYSFS_PCI)) or "none"
        raise DeviceNotFound(
            f"no PCI function {address!r} that a driver of ours knows; there are: {have}"
        )
    raise NotSupported(
        f"{name} is an {found[0].description}, but the VFIO transport to reach it is not built yet"
    )


def _pci_devices(sysfs: Path) -> list[DeviceEntry]:
    if not sysfs.is_dir():
        return []
    entries = []
    for function in sorted(sysfs.iterdir()):
        try:
            identity = tuple(int((function / key).read_text(), 16) for key in ("vendor", "device"))
        except (OSError, ValueError):
            continue  # vanished while we looked, or not a PCI function
        if identity not in PCI_DRIVERS:
            continue
        driver, group = function / "driver", function / "iommu_group"
        facts: dict[str, object] = {
            "pci_id": f"{identity[0]:04x}:{identity[1]:04x}",
            "driver": driver.resolve().name if driver.exists() else None,
            "iommu_group": group.resolve().name if group.exists() else None,
        }
        entries.append(DeviceEntry(f"pci:{function.name}", PCI_DRIVERS[identity][0], facts))
    return entries


def _load(path: str) -> Callable[..., Any]:  # a driver's entry point; _device checks its result
    module, _, function = path.partition(":")
    entry: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return entry


def _check_options(
    name: str, entry: Callable[..., Any], options: Mapping[str, object], *, given: int
) -> None:
    """Raise BadArgument for options that `entry` does not take after its first `given`
    arguments."""
    parameters = list(inspect.signature(entry).parameters.values())[given:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = sorted(parameter.name for parameter in parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadArgument(f"{name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")


def _device(made: Any) -> Device:  # Any: it comes from a lazily imported function
    device: Device = made
    return device
