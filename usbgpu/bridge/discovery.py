"""Bridges that are plugged in, read from sysfs: no device is opened, no library is needed.

Source: Linux Documentation/ABI/stable/sysfs-bus-usb and testing/sysfs-bus-usb.
"""

from __future__ import annotations

import os
from pathlib import Path

from ugpu.hcq.errors import DeviceNotFound
from ugpu.usbgpu.bridge import asm24, firmwares
from ugpu.usbgpu.link.usb import SYSFS_USB, Speed, UsbIdentity

NODES = Path("/dev/bus/usb")


def bridges(sysfs: Path = SYSFS_USB) -> list[UsbIdentity]:
    """Return the bridges, ordered by port, whatever firmware they run."""
    if not sysfs.is_dir():
        return []
    devices = (identity_at(folder) for folder in sysfs.iterdir() if ":" not in folder.name)
    supported = [
        identity
        for identity in devices
        if identity is not None and (identity.vendor, identity.product) in asm24.IDS
    ]
    return sorted(supported, key=lambda identity: _order(identity.port))


def identity_at(folder: Path) -> UsbIdentity | None:
    """Return the identity of the device at a folder of sysfs; None if it has been unplugged."""
    try:
        return UsbIdentity(
            vendor=int(_text(folder, "idVendor"), 16),
            product=int(_text(folder, "idProduct"), 16),
            release=int(_text(folder, "bcdDevice"), 16),
            manufacturer=_text(folder, "manufacturer", ""),
            name=_text(folder, "product", ""),
            serial=_text(folder, "serial", ""),
            speed=_speed(_text(folder, "speed")),
            port=folder.name,
            address=int(_text(folder, "devnum")),
        )
    except (OSError, ValueError):
        return None


def choose(place: str, sysfs: Path = SYSFS_USB) -> UsbIdentity:
    """Return the bridge with a serial number, at a port ("2-1.4"), or with an index by port.

    DeviceNotFound for none, and for several with the same serial, with their ports.
    """
    plugged = bridges(sysfs)
    same = [identity for identity in plugged if place and identity.serial == place]
    if len(same) > 1:
        ports = ", ".join(f"usb:{identity.port}" for identity in same)
        raise DeviceNotFound(
            f"{len(same)} bridges have serial {place}; name the port instead: {ports}"
        )
    at_port = [identity for identity in plugged if identity.port == place]
    by_index = plugged[int(place) :][:1] if place.isdecimal() and len(place) < 4 else []
    chosen = next(iter([*same, *at_port, *by_index]), None)
    if chosen is None:
        have = (
            ", ".join(f"usb:{identity.serial or identity.port}" for identity in plugged) or "none"
        )
        raise DeviceNotFound(f"no bridge usb:{place}; plugged in: {have}")
    return chosen


def _text(folder: Path, name: str, default: str | None = None) -> str:
    try:
        return (folder / name).read_text(errors="replace").strip()
    except OSError:
        if default is None:
            raise
        return default


def _node(identity: UsbIdentity) -> Path:
    """Return the node that libusb opens, from the bus (a port's first number) and the device's
    number."""
    bus = identity.port.partition("-")[0]
    return NODES / bus.zfill(3) / f"{identity.address:03}"


def _speed(text: str) -> Speed:
    """Parse a speed of sysfs, which may also be 1.5 or 12; no bridge works at those."""
    rate = int(float(text))
    return max((speed for speed in Speed if speed <= rate), default=Speed.FULL)


def _order(port: str) -> tuple[int, ...]:
    return tuple(int(part) for part in port.replace("-", ".").split(".") if part.isdecimal())


def listed(sysfs: Path = SYSFS_USB) -> list[tuple[str, dict[str, object]]]:
    """Return the name of each bridge, and the facts known without opening it. usable: the protocol
    of its firmware is supported; accessible: this user may open its USB node."""
    plugged = bridges(sysfs)
    serials = [identity.serial for identity in plugged if identity.serial]
    return [
        (
            f"usb:{identity.serial if serials.count(identity.serial) == 1 else identity.port}",
            {
                "port": identity.port,
                "serial": identity.serial,
                "firmware": identity.name,
                "protocol": firmwares.protocol(identity),
                "link_mbit_s": int(identity.speed),
                "usable": firmwares.known(identity),
                "accessible": os.access(_node(identity), os.R_OK | os.W_OK),
            },
        )
        for identity in plugged
    ]
