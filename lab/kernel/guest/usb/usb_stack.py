"""What the guest tests of the USB bridge share: the device through the system's own libusb."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import libusb_package
import usb1

from lab.kernel.guest.host import Host, within

IDS = (0xADD1, 0x0001)
APPEARS_LIMIT_S = 20
usb1.loadLibrary(ctypes.CDLL(str(libusb_package.get_library_path())))
#: what libusb raises once the cable is out; EIO and EPIPE are for what was under way
GONE = (usb1.USBErrorNoDevice, usb1.USBErrorIO, usb1.USBErrorPipe, usb1.USBErrorNotFound)


class Bridge:
    """The vendor requests, over libusb. See asm2464pd-firmware handmade/src/main.c."""

    def __init__(self, handle: usb1.USBDeviceHandle) -> None:
        self.handle = handle

    def xdata(self, address: int, size: int = 1, limit_s: float = 1) -> bytes:
        return bytes(self.handle.controlRead(0xC0, 0xE4, address, 0, size, ms(limit_s)))

    def poke(self, address: int, value: int) -> None:
        self.handle.controlWrite(0x40, 0xE5, address, value, b"", ms(1))

    def power(self, on: bool) -> None:
        self.handle.controlWrite(0x40, 0xF3, int(on), 0, b"", ms(10))

    def arm(self, size: int) -> None:
        self.handle.controlWrite(0x40, 0xF2, size // 512, -(-size // 16384) << 8, b"", ms(1))

    def config(self, bus: int, offset: int) -> int | None:
        address = (bus << 24 | offset).to_bytes(8, "little") + bytes(4)
        self.handle.controlWrite(0x40, 0xF0, 4 | int(bus > 0) | 0x0F00, 0, address, ms(5))
        found = bytes(self.handle.controlRead(0xC0, 0xF0, 0, 0, 8, ms(5)))
        return int.from_bytes(found[:4], "little") if not found[4] >> 5 | found[7] else None

    def out(self, data: bytes, limit_s: float = 5) -> int:
        sent: int = self.handle.bulkWrite(0x02, data, ms(limit_s))
        return sent

    def sent_to_us(self, size: int, limit_s: float = 5) -> bytes:
        return bytes(self.handle.bulkRead(0x81, size, ms(limit_s)))


def ms(seconds: float) -> int:
    """libusb's limits, at this machine's pace."""
    return int(within(seconds) * 1000)


@contextmanager
def opened() -> Iterator[Bridge]:
    """The bridge, once it is on the bus; interface 0 is claimed."""
    with usb1.USBContext() as context, closing(_claimed(context)) as handle:
        yield Bridge(handle)


def _claimed(context: usb1.USBContext) -> usb1.USBDeviceHandle:
    """Wait until the bridge is on the bus and configured; closing gives the interface back."""
    end = time.monotonic() + within(APPEARS_LIMIT_S)
    while time.monotonic() < end:
        handle = None
        try:
            handle = context.openByVendorIDAndProductID(*IDS)
            if handle is not None:
                handle.claimInterface(0)
                return handle
        except GONE:  # it is being enumerated
            if handle is not None:
                handle.close()
        time.sleep(0.01)
    raise LookupError("the bridge is not on the bus")


def speed() -> int:
    """What the kernel says of the link, in Mbit/s."""
    for folder in Path("/sys/bus/usb/devices").iterdir():
        vendor = folder / "idVendor"
        if vendor.exists() and vendor.read_text().strip() == f"{IDS[0]:04x}":
            return int((folder / "speed").read_text())
    raise LookupError("the bridge is not on the bus")


@contextmanager
def hand() -> Iterator[Host]:
    host = Host()
    try:
        yield host
    finally:
        host.close()
