"""The way to a card in a Thunderbolt or USB4 enclosure: authorisation, tunnel, ports, BARs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.thunderbolt import AUDIO, GPU, ID, PORT, SOCKET, SWITCH
from ugpu.hcq.errors import (
    AccessDenied,
    BarTooSmall,
    BarUnassigned,
    DecodingOff,
    DeviceAsleep,
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    GroupNotViable,
    IommuOff,
    LinkDegraded,
    LinkDown,
    UgpuError,
)

_BUS = "Linux Documentation/ABI/testing/sysfs-bus-thunderbolt"
_PCI = "Linux Documentation/ABI/testing/sysfs-bus-pci"
_SPEC = "PCI Express Base Specification 6.0, 7.5"
_REPLUG = "rescan the bus"


def way(
    name: str, change: Callable[[Any], object], error: type[UgpuError], remedy: str,
    **fields: Any,
) -> Kind:  # fmt: skip
    """Something on the way, before the card is opened or while it is. Another host shows that
    nothing was left behind."""

    def cure(stand: Any) -> None:
        stand.close()  # ORDER: what is open holds its host's files
        again = type(stand)(stand.seed)
        stand.stop()
        stand.__dict__.update(again.__dict__)

    made: dict[str, Any] = {
        "layer": Layer.LINK, "planted": "a simulated host", "devices": ("thunderbolt",),
        "stages": ("open",), "source": _PCI, "recovery": Recovery.REOPEN, "cure": cure,
    }  # fmt: skip
    return Kind(name=name, plant=change, error=error, remedy=remedy, **(made | fields))


def _attribute(address: str, name: str, text: str) -> Callable[[Any], object]:
    return lambda stand: stand.tree.write(address, name, text)


def _resource(first: int, last: int, flags: int) -> Callable[[Any], object]:
    def change(stand: Any) -> None:
        lines = (stand.machine.folder(GPU) / "resource").read_text().splitlines()
        lines[0] = f"{first:#018x} {last:#018x} {flags:#018x}"
        stand.tree.write(GPU, "resource", "\n".join(lines))

    return change


def _security(level: str) -> Callable[[Any], object]:
    """A level under which the firmware does not create a tunnel: the enclosure has no functions."""

    def change(stand: Any) -> None:
        bus = stand.machine.root / "sys/bus/thunderbolt/devices"
        (bus / "domain0/security").write_text(f"{level}\n")
        stand.drop()

    return change


def _bolt(stand: Any) -> None:
    (stand.machine.root / "run/boltd").mkdir(parents=True)
    stand.router("authorized", "0")
    stand.drop()


def _not_authorised(stand: Any) -> None:
    stand.router("authorized", "0")
    stand.drop()


def _asleep(address: str) -> Callable[[Any], object]:
    def change(stand: Any) -> None:
        stand.tree.write(address, "power_state", "D3cold")
        stand.tree.write(address, "power/runtime_status", "active")

    return change


def _config(address: str, place: int, data: bytes) -> Callable[[Any], object]:
    def change(stand: Any) -> None:
        stand.machine.functions[address].config[place : place + len(data)] = data

    return change


def _held(stand: Any) -> None:
    stand.bind(stand.machine, "snd_hda_intel", AUDIO)


def _taken(stand: Any) -> None:
    stand.machine.load("amdgpu")
    stand.machine.write_text(stand.machine.folder(GPU) / "driver/unbind", GPU)
    stand.bind(stand.machine, "amdgpu", GPU)


def _open_elsewhere(stand: Any) -> None:
    stand.machine.fail["dev/vfio/7"] = 16  # EBUSY


def _other_card(stand: Any) -> None:
    """An unsupported card: its identity is another one."""
    stand.tree.write(GPU, "vendor", "0x8086")
    stand.tree.write(GPU, "device", "0x56a0")


def _command(address: str, value: int) -> Callable[[Any], object]:
    return _config(address, 4, struct.pack("<H", value))


KINDS = [
    way("enclosure is not plugged in", lambda s: s.unplug(), DeviceNotFound, "", source=_BUS,
        facts={}),
    way("enclosure is not authorised", _not_authorised, AccessDenied,
        "echo 1 | sudo tee /sys/bus/thunderbolt/devices/0-1/authorized", source=_BUS,
        layer=Layer.HOST, facts={"security": "user"}),
    way("enclosure is not authorised, bolt runs", _bolt, AccessDenied,
        f"boltctl enroll --policy auto {ID}", source="man boltctl", layer=Layer.HOST),
    *(way(f"security level {level} does not create a tunnel", _security(level), AccessDenied,
          "firmware setup", source=_BUS, layer=Layer.HOST, facts={"security": level})
      for level in ("dponly", "usbonly", "nopcie")),
    way("tunnel to the enclosure is lost", lambda s: s.drop(), DeviceNotFound,
        "switch the enclosure's power supply on", source=_BUS),
    way("enclosure holds an unsupported card", _other_card, DeviceNotFound,
        "seat the card", source=_BUS, layer=Layer.HOST, facts={"present": True}),
    way("host's port sleeps in D3cold", _asleep(PORT), DeviceAsleep, "power/control",
        layer=Layer.POWER, facts={"step": "ports", "port": PORT, "state": "D3cold"}),
    way("enclosure's port sleeps in D3cold", _asleep(SOCKET), DeviceAsleep, "power/control",
        layer=Layer.POWER, facts={"step": "ports", "port": SOCKET}),
    way("card in the enclosure sleeps in D3cold", _asleep(GPU), DeviceAsleep, "power/control",
        layer=Layer.POWER, facts={"state": "D3cold"}),
    way("card's link has one lane", _attribute(SWITCH, "current_link_width", "1"), LinkDegraded,
        "narrow_link=True", facts={"step": "link", "expected": "8 GT/s x4", "found": "8 GT/s x1"}),
    way("card's link is down", _attribute(SWITCH, "current_link_width", "0"), LinkDown, _REPLUG,
        facts={"step": "link"}),
    way("port of the enclosure reads as ones", _config(SOCKET, 0, b"\xff" * 64), DeviceLost,
        _REPLUG, source=_SPEC, facts={"step": "configuration space"}),
    way("card in the enclosure reads as ones", _config(GPU, 0, b"\xff" * 64), DeviceLost, _REPLUG,
        source=_SPEC, facts={"step": "configuration space"}),
    way("header type of the card is 0x7f", _config(GPU, 14, b"\x7f"), DeviceLost, _REPLUG,
        source=_SPEC, facts={"step": "header type"}),
    way("header type of the card's switch is an endpoint's", _config(SWITCH, 14, b"\0"),
        DeviceLost, _REPLUG, source=_SPEC, facts={"step": "header type"}),
    way("port does not forward memory accesses", _command(SOCKET, 4), DecodingOff, "rescan",
        source=_SPEC, facts={"step": "memory decoding", "command": 4}),
    way("port is not a bus master", _command(SOCKET, 2), DecodingOff, "rescan", source=_SPEC,
        facts={"step": "memory decoding", "command": 2}),
    way("card's audio function is held by its driver", _held, GroupNotViable, "snd_hda_intel",
        layer=Layer.HOST, source="Linux Documentation/driver-api/vfio.rst"),
    way("kernel driver holds the card in the enclosure", _taken, DeviceBusy, "ugpu bind",
        layer=Layer.HOST, source="Linux Documentation/driver-api/vfio.rst",
        facts={"holder": "amdgpu"}),
    way("another program has the card in the enclosure open", _open_elsewhere, DeviceBusy,
        "end that process", layer=Layer.HOST, source="Linux Documentation/driver-api/vfio.rst"),
    way("no IOMMU confines the enclosure",
        lambda s: (s.machine.folder(GPU) / "iommu_group").unlink(), IommuOff, "intel_iommu=on",
        layer=Layer.HOST, source="Linux Documentation/driver-api/vfio.rst"),
    way("card's BAR is too small", _resource(8 << 36, (8 << 36) + (64 << 20) - 1, 0x14_220C),
        BarTooSmall, "Resizable BAR", layer=Layer.HOST,
        facts={"bar": 0, "size": 64 << 20, "needed": 256 << 20}),
    way("card's BAR has no address", _resource(0, (256 << 20) - 1, 0x2014_220C), BarUnassigned,
        "pci=realloc", layer=Layer.HOST, facts={"bar": 0}),
    way("kernel released the card's BAR", _resource(0, 0, 0), BarUnassigned, "pci=realloc",
        layer=Layer.HOST, facts={"bar": 0}),
    way("cable of the enclosure is pulled", lambda s: s.unplug(), DeviceLost, "",
        stages=("config",), source=_BUS),
    way("tunnel is lost while the card is open", lambda s: s.drop(), DeviceLost, "",
        stages=("config",), source=_BUS),
    way("system requests the release of the card in the enclosure", lambda s: s.ask_back(),
        DeviceLost, "", stages=("config",), layer=Layer.HOST,
        source="Linux include/uapi/linux/vfio.h, VFIO_PCI_REQ_IRQ_INDEX",
        facts={"reason": "the system asks for it back: it is being unplugged or unbound"}),
]  # fmt: skip
