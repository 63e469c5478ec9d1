"""The devices that `hcq.open` finds on this machine. Touches no hardware."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.hcq.find.catalogue import ChipSummary, load, pci_drivers, virtual_chips
from ugpu.hcq.find.node_drivers import NODE_DRIVERS, nodes_of

SYSFS_PCI = Path("/sys/bus/pci/devices")
SYSFS_USB = Path("/sys/bus/usb/devices")
NODES = Path("/dev")


@dataclass(frozen=True)
class DeviceEntry:
    """A device that `open` would find.

    Attributes:
        name: for `open`.
        description: for people.
        facts: what is known without touching it.
    """

    name: str
    description: str
    facts: dict[str, object] = field(default_factory=dict)


def list_devices(sysfs: Path = SYSFS_PCI) -> list[DeviceEntry]:
    """List the devices that `open` accepts, real ones first. Touches no hardware."""
    virtual = []
    for chip, vendor in sorted(virtual_chips().items()):
        summary: ChipSummary = load(f"ugpu.{vendor}.chips:summary")(chip)
        virtual.append(DeviceEntry(f"virtual:{chip}", f"model of {summary.title}", summary.facts))
    cpu = DeviceEntry("cpu", "host threads")
    return [*pci_devices(sysfs), *_usb_devices(), *_node_devices(), cpu, *virtual]


def ready() -> list[str]:
    """Return the names of the real devices that can be opened as they are: bound to vfio-pci, with
    a node that this user may open, or behind a bridge whose node this user may open."""
    names = [entry.name for entry in pci_devices(SYSFS_PCI) if entry.facts["driver"] == "vfio-pci"]
    names += [entry.name for entry in _node_devices() if entry.facts["usable"]]
    usb = [entry for entry in _usb_devices() if entry.facts["usable"] and entry.facts["accessible"]]
    return names + [entry.name for entry in usb]


def pci_devices(sysfs: Path) -> list[DeviceEntry]:
    """List the PCI functions that ugpu supports. sysfs: a folder of such functions."""
    if not sysfs.is_dir():
        return []
    entries = []
    drivers = pci_drivers()
    for function in sorted(sysfs.iterdir()):
        try:
            identity = tuple(int((function / key).read_text(), 16) for key in ("vendor", "device"))
        except (OSError, ValueError):
            continue  # removed meanwhile, or not a PCI function
        if identity not in drivers:
            continue
        driver, group = function / "driver", function / "iommu_group"
        facts: dict[str, object] = {
            "pci_id": f"{identity[0]:04x}:{identity[1]:04x}",
            "driver": driver.resolve().name if driver.exists() else None,
            "iommu_group": group.resolve().name if group.exists() else None,
        }
        supported = drivers[identity]
        if supported.chip is not None:
            facts |= supported.chip.facts
        entries.append(DeviceEntry(f"pci:{function.name}", supported.description, facts))
    return entries


def _usb_devices() -> list[DeviceEntry]:
    """List USB bridges; the card behind a bridge is known only after it is opened."""
    if not SYSFS_USB.is_dir():
        return []
    listed = load("ugpu.usbgpu.bridge.discovery:listed")
    return [DeviceEntry(name, "USB bridge", facts) for name, facts in listed(SYSFS_USB)]


def _node_devices() -> list[DeviceEntry]:
    """List devices that have a node of a stock kernel driver; usable: this user may open it."""
    entries = []
    for kind, driver in NODE_DRIVERS.items():
        for number, path in nodes_of(driver, NODES, load):
            facts: dict[str, object] = {
                "node": str(path),
                "usable": os.access(path, os.R_OK | os.W_OK),
            }
            entries.append(DeviceEntry(f"{kind}:{number}", driver.description, facts))
    return entries
