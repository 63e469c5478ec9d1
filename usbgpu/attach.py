"""From a name to a card behind a bridge: `usb:0`, `usb:<serial>` or `usb:<port>`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hcq.errors import NotSupported
from hcq.transport.base import PciIdentity
from usbgpu import asm24
from usbgpu.asm24 import CustomBridge
from usbgpu.bridge import Bridge
from usbgpu.found import SYSFS_USB, choose
from usbgpu.libusb import LibUsbDevice
from usbgpu.transport import UsbTransport
from usbgpu.usb import UsbDevice, UsbIdentity


def attach(
    wanted: str, accept: Callable[[PciIdentity], object], *, sysfs: Path = SYSFS_USB
) -> UsbTransport:
    """Open the card behind a bridge. accept: raises for a card that no driver takes; its power is
    then left as it was."""
    bridge = by_name(wanted, sysfs)
    identity = bridge.usb.identity
    return UsbTransport(bridge, f"usb:{identity.serial or identity.port}", accept=accept)


def by_name(wanted: str, sysfs: Path = SYSFS_USB) -> Bridge:
    """Open a bridge alone; the caller closes it."""
    identity = choose(wanted, sysfs)
    check_firmware(identity)
    usb = LibUsbDevice(identity, sysfs=sysfs)
    try:
        return open_bridge(usb)
    except BaseException:
        usb.close()
        raise


def check_firmware(identity: UsbIdentity) -> None:
    """NotSupported unless we know how the bridge's firmware is talked to."""
    if not identity.name.startswith(asm24.PRODUCTS):
        raise NotSupported(
            f"the bridge runs unknown firmware: expected a product name that begins with "
            f"{' or '.join(asm24.PRODUCTS)}, got {identity.name!r}",
            product=identity.name, release=identity.release,
        )  # fmt: skip


def open_bridge(usb: UsbDevice) -> Bridge:
    """The protocol that a bridge's firmware speaks."""
    check_firmware(usb.identity)
    return CustomBridge(usb)
