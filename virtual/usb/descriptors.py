"""Descriptors that the firmware reports, built for the link's speed.

Facts: asm2464pd-firmware handmade/src/usb.h (ids, packet sizes, settings, streams, pipe usage);
layouts: USB 3.2 specification, 9.6.
"""

from __future__ import annotations

import struct
from typing import Protocol

from ugpu.usbgpu.link.usb import Kind, Recipient, UsbIdentity
from ugpu.virtual.usb.custom import CustomFirmware, Setup
from ugpu.virtual.usb.hardware import Hardware
from ugpu.virtual.usb.uas import UasFirmware

_GET_DESCRIPTOR = 6
_DEVICE, _CONFIGURATION, _STRING, _BOS = 1, 2, 3, 0x0F
_STREAMS = 5  # 2 ** 5 of them
_PIPES = {0x04: 1, 0x83: 2, 0x81: 3, 0x02: 4}  # command, status, data in, data out
_ENGLISH = 0x0409


class Described(Protocol):
    """An enclosure, as its descriptors describe it."""

    hardware: Hardware
    firmware: CustomFirmware | UasFirmware

    @property
    def identity(self) -> UsbIdentity:
        """The identity that a host reads from the descriptors."""
        ...

    @property
    def alternates(self) -> tuple[tuple[int, ...], ...]:
        """The bulk endpoints of each alternate setting at the current speed."""
        ...


def get_descriptor(box: Described, setup: Setup) -> bytes | None:
    """Answer GET_DESCRIPTOR; None for any other request and for a descriptor that does not
    exist."""
    if (setup.kind, setup.recipient, setup.request, setup.inward) != (
        Kind.STANDARD, Recipient.DEVICE, _GET_DESCRIPTOR, True,
    ):  # fmt: skip
        return None
    index = setup.value & 0xFF
    match setup.value >> 8:
        case 1:
            return device_descriptor(box)
        case 2:
            return configuration_descriptor(box)
        case 3:
            return _string(box, index)
        case 0x0F:
            return bos_descriptor()
    return None


def device_descriptor(box: Described) -> bytes:
    """Return the 18 bytes of the device descriptor (USB 3.2, section 9.6.1)."""
    identity = box.identity
    fast = box.hardware.super_speed
    return struct.pack(
        "<BBHBBBBHHHBBBB", 18, _DEVICE, 0x0320 if fast else 0x0200, 0, 0, 0, 9 if fast else 64,
        identity.vendor, identity.product, identity.release, 1, 2, 3, 1,
    )  # fmt: skip


def configuration_descriptor(box: Described) -> bytes:
    """Return the configuration with its interface's settings."""
    parts = []
    for setting, endpoints in enumerate(box.alternates):
        kind = box.firmware.interface_classes[setting]
        parts.append(bytes((9, 4, 0, setting, len(endpoints), *kind, 0)))
        for endpoint in endpoints:
            parts.append(_endpoint(box, setting, endpoint))
    body = b"".join(parts)
    return struct.pack("<BBHBBBBB", 9, _CONFIGURATION, 9 + len(body), 1, 1, 0, 0xC0, 0) + body


def _endpoint(box: Described, setting: int, endpoint: int) -> bytes:
    found = struct.pack("<BBBBHB", 7, 5, endpoint, 2, box.hardware.packet_size, 0)
    if not box.hardware.super_speed:
        return found
    uas = setting == 1
    command = endpoint == 0x04
    burst, attributes = (0, 0) if uas and command else (15, _STREAMS if uas else 0)
    found += struct.pack("<BBBBH", 6, 0x30, burst, attributes, 0)
    if uas:
        found += bytes((4, 0x24, _PIPES[endpoint], 0))
    return found


def bos_descriptor() -> bytes:
    """Return the capabilities: USB 2.0 extension, SuperSpeed."""
    return (
        struct.pack("<BBHB", 5, _BOS, 22, 2)
        + struct.pack("<BBBI", 7, 0x10, 2, 0)
        + struct.pack("<BBBBHBBH", 10, 0x10, 3, 0, 0x000E, 3, 0, 0)
    )


def _string(box: Described, index: int) -> bytes:
    identity = box.identity
    if index == 0:
        return struct.pack("<BBH", 4, _STRING, _ENGLISH)
    texts = {1: identity.manufacturer, 2: identity.name, 3: identity.serial}
    text = texts.get(index, "").encode("utf-16-le")
    return bytes((2 + len(text), _STRING)) + text
