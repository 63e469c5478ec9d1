"""Errors of libusb: each that a request or a transfer can end with, and what opening meets."""

from __future__ import annotations

from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.libusb import LibUsbStand
from tests.support.usb import fake_usb1
from tests.support.usb.fake_usb1 import Usb1, USBError
from ugpu.hcq.errors import (
    AccessDenied,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    EndpointStalled,
    TransferOverrun,
    TransferTimeout,
    TransportError,
    UgpuError,
)

DEVICES = ("libusb",)
_LIBUSB = "libusb-1.0 API, libusb_error and libusb_transfer_status"
_CONTROL, _BULK = ("control",), ("bulk in", "bulk out")


def kind(
    name: str, planted: str, error: type[UgpuError] | None, stages: tuple[str, ...],
    **fields: Any,
) -> Kind:  # fmt: skip
    made: dict[str, Any] = {
        "layer": Layer.LINK, "recovery": Recovery.GO_ON, "source": _LIBUSB,
        "struck": lambda stand: stand.struck,
    }  # fmt: skip
    return Kind(
        name=f"{name} (libusb)", devices=DEVICES, stages=stages, planted=planted, error=error,
        **(made | fields),
    )  # fmt: skip


def raised(which: type[USBError], error: type[UgpuError], *stages: str, **fields: Any) -> Kind:
    """A call of the library that raises."""
    name = which.__name__
    return kind(
        f"{name} of a call", f"the library raises `{name}`", error, stages,
        plant=lambda stand: setattr(stand, "error", which), **fields,
    )  # fmt: skip


def ended(
    name: str, status: int, error: type[UgpuError], stages: tuple[str, ...] = _BULK, count: int = 0,
    **fields: Any,
) -> Kind:  # fmt: skip
    """A bulk transfer that ends with a status."""
    return kind(
        name, f"a transfer ends with status {status} after {count} bytes", error, stages,
        plant=lambda stand: setattr(stand, "end", (status, count)), **fields,
    )  # fmt: skip


def _flag(name: str) -> dict[str, Any]:
    """Of the bus, while the device is opened."""
    return {
        "plant": lambda stand: setattr(stand.bus, name, True),
        "cure": lambda stand: setattr(stand.bus, name, False),
    }


def _unplug(stand: LibUsbStand) -> None:
    stand.struck = True
    stand.bus.unplug()


_LOST: dict[str, Any] = {"recovery": Recovery.REOPEN, "cure": LibUsbStand.again}
_U = Usb1
KINDS = [
    raised(fake_usb1.USBErrorPipe, EndpointStalled, *_CONTROL),
    raised(fake_usb1.USBErrorTimeout, TransferTimeout, *_CONTROL),
    raised(fake_usb1.USBErrorOverflow, TransferOverrun, *_CONTROL),
    raised(fake_usb1.USBErrorIO, TransportError, *_CONTROL, *_BULK),
    raised(fake_usb1.USBErrorBusy, DeviceBusy, *_BULK),
    raised(fake_usb1.USBErrorNotSupported, TransportError, *_BULK),
    raised(fake_usb1.USBErrorNoDevice, DeviceLost, *_CONTROL, *_BULK, **_LOST),
    ended("transfer fails", _U.TRANSFER_ERROR, TransportError),
    ended("transfer is cancelled by the host", _U.TRANSFER_CANCELLED, TransportError),
    ended("endpoint halts", _U.TRANSFER_STALL, EndpointStalled),
    ended("device sends more data than requested", _U.TRANSFER_OVERFLOW, TransferOverrun,
          ("bulk in",)),
    ended("device is unplugged when a transfer ends", _U.TRANSFER_NO_DEVICE, DeviceLost, **_LOST),
    ended("transfer moves part of the data", _U.TRANSFER_COMPLETED, TransportError,
          ("bulk out",), count=100),
    kind("control request moves part of the data", "the device accepts one byte less",
         TransportError, _CONTROL, plant=lambda stand: setattr(stand, "short", True)),
    kind("transfer never ends", "the transfer stays in flight", TransferTimeout, _BULK,
         plant=LibUsbStand.hasty),
    kind("cable is pulled", "`bus.unplug()`", DeviceLost,
         ("control", *_BULK, "settings", "reset", "close"), plant=_unplug,
         errors={"close": None}, source="Universal Serial Bus 3.2, 10.16", **_LOST),
    kind("device may not be opened", "`bus.denied`", AccessDenied, ("open",), remedy="udev",
         layer=Layer.HOST, **_flag("denied")),
    kind("interface is claimed by another program", "`bus.busy`", DeviceBusy, ("open",),
         layer=Layer.HOST, **_flag("busy")),
    kind("device is unplugged before it is opened", "`bus.gone`", DeviceNotFound, ("open",),
         **_flag("gone")),
]  # fmt: skip
