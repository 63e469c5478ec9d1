"""Firmware images for the bridge: inspected before they are written.

Source: asm2464pd-firmware handmade/Makefile and firmware/split.py (wrapper), handmade/src/usb.h
(descriptors), handmade/BOOT_ABI.md (images for its boot stub, which are refused here).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ugpu.hcq.errors import FirmwareInvalid
from ugpu.usbgpu.link.usb import UsbIdentity

_HEADER, _TRAILER, _MARK = 4, 6, 0xA5
_LONGEST = 0x1_0000  # the 8051's code space; banked images are the vendor's
_LONG_JUMP = 0x02  # the instruction at the reset vector
_DEVICE_DESCRIPTOR = b"\x12\x01"  # length, type (USB 3.2 specification, 9.6.1)
_STUB_IMAGE = b"A24F"


@dataclass(frozen=True)
class FirmwareImage:
    """A complete image. data: as stored in flash. ids: vendor and product of the USB device that it
    presents."""

    data: bytes
    ids: tuple[int, int]

    @property
    def crc(self) -> int:
        """Return the CRC-32 of the body."""
        return int.from_bytes(self.data[-4:], "little")


def wrapped(data: bytes) -> bytes:
    """Return the image at the start of `data`, after checking its length, mark, sum and CRC-32.
    FirmwareInvalid reports which check failed."""
    if data.startswith(_STUB_IMAGE):
        raise FirmwareInvalid("expected an image for the boot ROM, got one for a boot stub (A24F)")
    if len(data) < _HEADER + _TRAILER:
        raise FirmwareInvalid(f"expected at least {_HEADER + _TRAILER} bytes, got {len(data)}")
    size = int.from_bytes(data[:_HEADER], "little")
    end = _HEADER + size + _TRAILER
    if end > len(data):
        raise FirmwareInvalid(
            f"image is truncated: expected {end} bytes by its header, got {len(data)}", expected=end
        )
    body, tail = data[_HEADER : end - _TRAILER], data[end - _TRAILER : end]
    stated = (tail[0], tail[1], int.from_bytes(tail[2:], "little"))
    expected = (_MARK, sum(body) & 0xFF, zlib.crc32(body))
    for name, want, got in zip(("mark", "sum of bytes", "CRC-32"), expected, stated, strict=True):
        if want != got:
            raise FirmwareInvalid(f"{name} of the image: expected {want:#x}, got {got:#x}")
    return data[:end]


def inspect(data: bytes, bridge: UsbIdentity) -> FirmwareImage:
    """Check an image for the bridge that is plugged in; FirmwareInvalid for another bridge's."""
    whole = wrapped(data)
    if len(whole) != len(data):
        raise FirmwareInvalid(f"expected {len(whole)} bytes by its header, got {len(data)}")
    body = whole[_HEADER:-_TRAILER]
    if not 0 < len(body) <= _LONGEST:
        raise FirmwareInvalid(f"body must be 1 to {_LONGEST} bytes, got {len(body)}")
    if body[0] != _LONG_JUMP:
        raise FirmwareInvalid(
            f"reset vector must hold a jump ({_LONG_JUMP:#04x}), got {body[0]:#04x}"
        )
    expected = (bridge.vendor, bridge.product)
    named = _ids(body)
    if named != {expected}:
        names = ", ".join(f"{vendor:04x}:{product:04x}" for vendor, product in sorted(named))
        raise FirmwareInvalid(
            "the image is not for this bridge: "
            f"expected USB ids {expected[0]:04x}:{expected[1]:04x} in it, got {names or 'none'}"
        )
    return FirmwareImage(whole, expected)


def _ids(body: bytes) -> set[tuple[int, int]]:
    """Return vendor and product of every device descriptor: one with class 0, a packet size of
    endpoint 0 that USB allows, and one configuration."""
    ids = set()
    at = body.find(_DEVICE_DESCRIPTOR)
    while at >= 0:
        descriptor = body[at : at + 18]
        packet = {2: 64, 3: 9}.get(descriptor[3]) if len(descriptor) == 18 else None
        if packet is not None and descriptor[7] == packet and descriptor[17] == 1:
            fields = (descriptor[8:10], descriptor[10:12])
            vendor, product = (int.from_bytes(field, "little") for field in fields)
            ids.add((vendor, product))
        at = body.find(_DEVICE_DESCRIPTOR, at + 1)
    return ids
