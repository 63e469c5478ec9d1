"""Conditions for opening a function; each has its own error with a remedy.

Nothing here changes anything; it reads sysfs and, once a function is open, its first words.
"""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.hcq.errors import (
    BadArgument,
    BarTooSmall,
    BarUnassigned,
    DeviceAsleep,
    DeviceBusy,
    DeviceLost,
    GroupNotViable,
    IommuOff,
    LinkDown,
    ModuleMissing,
)
from ugpu.hcq.transport.base import PciIdentity
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.function import BRIDGE, DRIVERS, PciFunction

VFIO_DRIVER = "vfio-pci"
BAR_REMEDY = (
    "add pci=realloc to the kernel command line, or plug the card in before booting; "
    "the bridge above it has no room"
)
IOMMU_REMEDY = (
    "add intel_iommu=on (Intel) to the kernel command line, or enable the IOMMU (AMD-Vi, VT-d) in "
    "the firmware setup, and reboot"
)
RESIZE_REMEDY = "enable Resizable BAR and Above 4G decoding in the firmware setup"


def check_iommu(function: PciFunction) -> None:
    """Raise IommuOff unless an IOMMU translates for the function."""
    if not function.translated:
        raise IommuOff(
            f"{function.address} has no IOMMU: it is off or absent",
            remedy=IOMMU_REMEDY,
        )


def check_module(function: PciFunction) -> None:
    """Raise ModuleMissing unless vfio-pci is loaded."""
    if not function.system.path(f"{DRIVERS}/{VFIO_DRIVER}").is_dir():
        raise ModuleMissing(
            "the vfio-pci driver is not loaded",
            module="vfio-pci",
            remedy="sudo modprobe vfio-pci",
        )


def check_kind(function: PciFunction) -> None:
    """Raise BadArgument for a bridge, which is not a device to drive."""
    if function.base_class == BRIDGE:
        raise BadArgument(
            "the function is a bridge, expected an endpoint", address=function.address
        )


def check_link(function: PciFunction) -> None:
    """Raise LinkDown if no PCIe lanes are up or the link status does not respond, in which case it
    reads as all ones (6 bits of width). Raise DeviceLost if the kernel itself has read all ones as
    identity."""
    if function.attribute("current_link_width") in ("0", "63"):
        raise LinkDown(
            f"the PCIe link of {function.address} is down",
            remedy="seat the card and its cable and power; then: echo 1 | sudo tee "
            "/sys/bus/pci/rescan",
        )
    if function.identity().vendor == 0xFFFF:
        raise DeviceLost(
            f"{function.address} reads all ones",
            remedy=f"ugpu eject pci:{function.address}, then replug or power-cycle it",
        )


def check_power(function: PciFunction, *, runtime_managed: bool) -> None:
    """Raise DeviceAsleep for a function without power.

    runtime_managed: opening it, or taking it from its driver, wakes it if the kernel itself put it
    to sleep (Linux Documentation/power/runtime_pm.rst).
    """
    state = function.power_state
    asleep = ("D3cold",) if runtime_managed else ("D1", "D2", "D3hot", "D3cold")
    wakes = runtime_managed and function.attribute("power/runtime_status") == "suspended"
    if state in asleep and not wakes:
        # The kernel does not wake a function that it did not put to sleep itself; a reset begins
        # with D0 (Linux drivers/pci/pci.c, pci_dev_save_and_disable).
        by_hand = function.attribute("power/control") == "on"
        remedy = "echo 1 | sudo tee {}/reset" if by_hand else "echo on | sudo tee {}/power/control"
        raise DeviceAsleep(
            f"{function.address} is powered down",
            state=state,
            remedy=remedy.format(function.folder),
        )


def check_openable(function: PciFunction, *, no_iommu: bool = False) -> None:
    """Check all conditions of VFIO, in the order in which a user would fix them."""
    check_kind(function)
    check_link(function)
    if not no_iommu:
        check_iommu(function)
    check_module(function)
    driver = function.driver
    if driver != VFIO_DRIVER:
        raise DeviceBusy(
            f"{function.address} is not bound to vfio-pci",
            holder=driver or "no driver",
            remedy=f"sudo ugpu bind pci:{function.address}   # or open it with bind=True",
        )
    check_siblings(function)
    check_power(function, runtime_managed=True)


def check_siblings(function: PciFunction) -> None:
    """Raise GroupNotViable while a kernel driver holds another function of the group."""
    for member in function.group_members():
        if member.driver in (None, VFIO_DRIVER, "pci-stub") or member.base_class == BRIDGE:
            continue
        raise not_viable(function)


def check_bars(function: PciFunction, least: Mapping[int, int]) -> None:
    """Raise BarUnassigned or BarTooSmall unless each BAR named in `least` has its bytes.

    A BAR that exists but has no address is rejected even if it is not named.
    """
    bars = {bar.index: bar for bar in function.bars()}
    for index, bar in bars.items():
        if bar.size and bar.memory and not bar.assigned:
            raise BarUnassigned(
                f"BAR {index} of {function.address} has no address", bar=index, remedy=BAR_REMEDY
            )
    for index, needed in least.items():
        size = bars[index].size if index in bars else 0
        if not size:
            raise BarUnassigned(
                f"BAR {index} of {function.address} has no address", bar=index, remedy=BAR_REMEDY
            )
        if size < needed:
            raise BarTooSmall(
                f"BAR {index} of {function.address} is too small",
                bar=index,
                size=size,
                needed=needed,
                remedy=RESIZE_REMEDY,
            )


def read_identity(name: str, read: pci_config.Read) -> PciIdentity:
    """Return the identity in configuration space; DeviceLost when it reads all ones."""
    if not pci_config.answers(read):
        raise DeviceLost(f"{name} reads all ones in configuration space")
    return PciIdentity(
        vendor=read(0x00, 2),
        device=read(0x02, 2),
        revision=read(0x08, 1),
        subsystem_vendor=read(0x2C, 2),
        subsystem_device=read(0x2E, 2),
        class_code=read(0x08, 4) >> 8,
    )


def not_viable(function: PciFunction) -> GroupNotViable:
    """Return the error that names the functions and drivers that block a group."""
    others = [
        f"{member.address} ({member.driver})"
        for member in function.group_members()
        if member.driver not in (None, "vfio-pci", "pci-stub") and member.base_class != BRIDGE
    ]
    return GroupNotViable(
        f"IOMMU group {function.group} is not whole: kernel drivers hold functions of it",
        holder=", ".join(others) or "unknown",
        remedy=f"sudo ugpu bind pci:{function.address}   # takes the group's other functions along",
    )
