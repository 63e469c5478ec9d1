"""Linux's sysfs files of one PCI function: identity, driver, IOMMU group, BARs, power.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups. Reads only;
touches neither the device nor its driver.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import BadArgument, DeviceNotFound, TransportError
from ugpu.hcq.transport.base import PciIdentity
from ugpu.hcq.transport.system import System

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
DEVICES = "sys/bus/pci/devices"
DRIVERS = "sys/bus/pci/drivers"
GROUPS = "sys/kernel/iommu_groups"
# Flags in the `resource` file: Linux include/linux/ioport.h.
_RESOURCE_MEMORY, _RESOURCE_IO, _RESOURCE_UNSET = 0x200, 0x100, 0x2000_0000
_BAR_COUNT = 6
STORAGE, NETWORK, BRIDGE = 0x01, 0x02, 0x06  # base classes, PCI Code and ID Assignment


@dataclass(frozen=True)
class Bar:
    """A BAR on the bus.

    Attributes:
        index: of the BAR.
        start: bus address.
        size: in bytes; 0 if there is none.
        memory: otherwise I/O ports.
        assigned: whether it has an address.
    """

    index: int
    start: int
    size: int
    memory: bool
    assigned: bool


def is_address(text: str) -> bool:
    """Return whether a name in sysfs is a function's full address."""
    return bool(_ADDRESS.fullmatch(text))


def arriving(system: System, address: str) -> bool:
    """Return whether the kernel is still adding the function to the bus: its BARs may have no
    addresses yet, and no driver is bound to it. Its folder in sysfs appears before that, its entry
    in procfs after (Linux pci_device_add, pci_bus_add_device). False if there is no such procfs."""
    folder = system.path("proc/bus/pci")
    domain, _, rest = address.partition(":")
    bus, _, slot = rest.partition(":")
    entries = (folder / bus / slot, folder / f"{domain}:{bus}" / slot)
    return folder.is_dir() and not any(entry.exists() for entry in entries)


def normal_address(text: str) -> str:
    """Return the full address, "0000:03:00.0"; BadArgument for any other text."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise BadArgument("not a PCI address; one looks like 0000:03:00.0", address=text)
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        raise BadArgument("a PCI device number must be 00 to 1f", address=text)
    return f"{(domain or '0000').lower()}:{bus.lower()}:{device.lower()}.{function}"


class PciFunction:
    """One function below `system`'s sysfs. Each property is read again on every access."""

    def __init__(self, system: System, address: str) -> None:
        self.system = system
        self.address = normal_address(address)

    @classmethod
    def find(cls, system: System, address: str) -> PciFunction:
        """Return the function at an address; DeviceNotFound if the bus has none there."""
        function = cls(system, address)
        if not function.folder.is_dir():
            raise DeviceNotFound(
                "no PCI function at this address; `ugpu ls` and `lspci -nn` list those present",
                address=function.address,
            )
        if arriving(system, function.address):
            raise DeviceNotFound(
                "the kernel is still adding this PCI function to the bus; repeat the command",
                address=function.address,
            )
        return function

    @property
    def folder(self) -> Path:
        return self.system.path(f"{DEVICES}/{self.address}")

    def attribute(self, name: str) -> str | None:
        """Return the text of an attribute file; None if there is none."""
        return self.system.read_text(f"{DEVICES}/{self.address}/{name}")

    def _number(self, name: str, default: int | None = None) -> int:
        text = self.attribute(name)
        if text is None and default is not None:
            return default
        try:
            return int(text or "", 0)
        except ValueError:
            raise DeviceNotFound(
                f"the function disappeared while its {name} was read", address=self.address
            ) from None

    def identity(self) -> PciIdentity:
        return PciIdentity(
            vendor=self._number("vendor"),
            device=self._number("device"),
            revision=self._number("revision", 0),
            subsystem_vendor=self._number("subsystem_vendor", 0),
            subsystem_device=self._number("subsystem_device", 0),
            class_code=self._number("class"),
        )

    @property
    def base_class(self) -> int:
        return self._number("class") >> 16

    def _link(self, name: str) -> str | None:
        link = self.folder / name
        return link.resolve().name if link.is_symlink() else None

    def card(self) -> list[PciFunction]:
        """Return the functions of the same card: equal addresses except for the function number."""
        slot = self.address.rpartition(".")[0]
        names = sorted(entry.name for entry in self.folder.parent.glob(f"{slot}.*"))
        return [PciFunction(self.system, name) for name in names]

    @property
    def driver(self) -> str | None:
        """The kernel driver that holds the function."""
        return self._link("driver")

    @property
    def group(self) -> str | None:
        """The number of its IOMMU group; None if no IOMMU translates for it."""
        return self._link("iommu_group")

    @property
    def translated(self) -> bool:
        """Return whether an IOMMU translates for it. VFIO's no-IOMMU mode makes separate groups,
        named "vfio-noiommu" (Linux drivers/vfio/group.c)."""
        name = self.system.read_text(f"{GROUPS}/{self.group}/name")
        return self.group is not None and name != "vfio-noiommu"

    @property
    def group_type(self) -> str | None:
        """Return the default IOMMU mode of the group: "DMA", "DMA-FQ", "identity"."""
        return self.system.read_text(f"{GROUPS}/{self.group}/type")

    @property
    def override(self) -> str | None:
        """The driver in `driver_override`, or None."""
        text = self.attribute("driver_override")
        return None if text in (None, "", "(null)") else text

    def group_members(self) -> list[PciFunction]:
        """Return all functions of the IOMMU group, including this one; only this one if there is no
        group."""
        folder = self.system.path(f"{GROUPS}/{self.group}/devices")
        if self.group is None or not folder.is_dir():
            return [self]
        names = sorted(entry.name for entry in folder.iterdir())
        return [PciFunction(self.system, name) for name in names if _ADDRESS.fullmatch(name)]

    def bars(self) -> list[Bar]:
        """Its six BARs; the upper half of a 64-bit BAR has size 0."""
        lines = (self.attribute("resource") or "").splitlines()[:_BAR_COUNT]
        bars = []
        for index, line in enumerate(lines):
            try:
                start, end, flags = (int(word, 16) for word in line.split()[:3])
            except ValueError:
                raise TransportError(
                    f"{self.address}: expected start, end and flags of BAR {index} in hexadecimal, "
                    f"got {line[:80]!r}"
                ) from None
            typed = bool(flags & (_RESOURCE_MEMORY | _RESOURCE_IO))
            size = end - start + 1 if typed and end >= start else 0
            assigned = size > 0 and start != 0 and not flags & _RESOURCE_UNSET
            bars.append(Bar(index, start, size, bool(flags & _RESOURCE_MEMORY), assigned))
        return bars

    @property
    def power_state(self) -> str:
        """ "D0", "D3hot", "D3cold"...; "unknown" where the kernel does not say."""
        return self.attribute("power_state") or "unknown"

    @property
    def parent(self) -> PciFunction | None:
        """The bridge above it; None on a root bus."""
        name = self.folder.resolve().parent.name
        return PciFunction(self.system, name) if _ADDRESS.fullmatch(name) else None

    def device_nodes(self) -> list[Path]:
        """Return the nodes in /dev through which processes use the function (DRM, sound,
        disks...)."""
        nodes = []
        # Does not follow links: they lead to the bus, the group and the firmware's tables.
        for folder, _, files in os.walk(self.folder.resolve()):
            if "dev" not in files or "uevent" not in files:
                continue
            for line in (self.system.read_text(f"{folder}/uevent") or "").splitlines():
                if line.startswith("DEVNAME="):
                    nodes.append(self.system.path("dev") / line.removeprefix("DEVNAME="))
        if self.driver == "vfio-pci" and self.group is not None:
            nodes.append(self.system.path(f"dev/vfio/{self.group}"))
        return nodes

    def __repr__(self) -> str:
        return f"<PciFunction {self.address} driver={self.driver} group={self.group}>"


def holders(system: System, nodes: list[Path]) -> list[str]:
    """Return the processes that have one of `nodes` open, as "name (pid 123)"; only those that this
    process may inspect."""
    paths = {str(Path("/") / node.relative_to(system.root)) for node in nodes}
    processes: list[str] = []
    folder = system.path("proc")
    for entry in sorted(folder.iterdir()) if paths and folder.is_dir() else ():
        if not entry.name.isdigit():
            continue
        links = _open_files(entry)
        if paths.intersection(links):
            name = system.read_text(f"proc/{entry.name}/comm") or "?"
            processes.append(f"{name} (pid {entry.name})")
    return processes


def _open_files(process: Path) -> list[str]:
    """Return the open files of a process; none if it has ended or belongs to another user."""
    files = []
    try:
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                files.append(str(link.readlink()))
    except OSError:
        return files
    return files
