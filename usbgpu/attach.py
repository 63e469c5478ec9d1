"""Open the card behind a bridge by name: `usb:0`, `usb:<serial>` or `usb:<port>`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ugpu.hcq.transport.base import PciIdentity
from ugpu.usbgpu.bridge.discovery import choose
from ugpu.usbgpu.bridge.firmwares import check_firmware, open_bridge
from ugpu.usbgpu.bridge.interface import Bridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.usbgpu.link.libusb import LibUsbDevice
from ugpu.usbgpu.link.usb import SYSFS_USB


def attach(
    place: str, accept: Callable[[PciIdentity], object], *, sysfs: Path = SYSFS_USB
) -> UsbTransport:
    """Open the card behind a bridge. accept: raises for a card that no driver takes; the card's
    power is then left unchanged."""
    bridge = by_name(place, sysfs)
    identity = bridge.usb.identity
    return UsbTransport(bridge, f"usb:{identity.serial or identity.port}", accept=accept)


def by_name(place: str, sysfs: Path = SYSFS_USB) -> Bridge:
    """Open a bridge only; the caller closes it."""
    identity = choose(place, sysfs)
    check_firmware(identity)
    usb = LibUsbDevice(identity, sysfs=sysfs)
    try:
        return open_bridge(usb)
    except BaseException:
        usb.close()
        raise
