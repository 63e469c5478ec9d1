"""Firmwares of the bridge: which one runs, by its product name, and its protocol."""

from __future__ import annotations

import time
from collections.abc import Callable

from ugpu.hcq.errors import NotSupported
from ugpu.usbgpu.bridge import asm24, stock
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.interface import Bridge
from ugpu.usbgpu.bridge.stock import StockBridge
from ugpu.usbgpu.link.usb import UsbDevice, UsbIdentity

_PRODUCTS = (*asm24.PRODUCTS, *stock.PRODUCTS)


def protocol(identity: UsbIdentity) -> str:
    """Return the name of a bridge's protocol, for display."""
    if identity.name.startswith(asm24.PRODUCTS):
        return "vendor requests (open firmware)"
    return "UAS (vendor's firmware, patched)" if known(identity) else "unknown"


def known(identity: UsbIdentity) -> bool:
    """Return whether the protocol of the bridge's firmware is known."""
    return identity.name.startswith(_PRODUCTS)


def check_firmware(identity: UsbIdentity) -> None:
    """Raise NotSupported unless the protocol of the bridge's firmware is known."""
    if not known(identity):
        raise NotSupported(
            f"the bridge runs unknown firmware: expected a product name that begins with "
            f"{' or '.join(_PRODUCTS)}, got {identity.name!r}",
            product=identity.name, release=identity.release,
        )  # fmt: skip


def open_bridge(usb: UsbDevice, *, sleep: Callable[[float], None] = time.sleep) -> Bridge:
    """Return a bridge for the protocol of its firmware, on an opened device. The bridge then owns
    the device."""
    check_firmware(usb.identity)
    if usb.identity.name.startswith(stock.PRODUCTS):
        return StockBridge(usb, sleep=sleep)
    return CustomBridge(usb, sleep=sleep)
