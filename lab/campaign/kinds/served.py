"""Faults of vfio-user: of the served device, of its server, and of what crosses the socket."""

from __future__ import annotations

import struct
from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery
from lab.campaign.stands.served import Damage, ServedStand
from ugpu.hcq.errors import (
    DeviceBusy,
    DeviceLost,
    DeviceNotFound,
    NotSupported,
    OutOfMemory,
    TransportError,
    UgpuError,
)

DEVICES = ("vfio-user",)
_SOURCE = "QEMU docs/interop/vfio-user.rst"
_TALK = ("open", "window", "config", "dma", "reset")
_HEADER = struct.Struct("<HHIII")  # number, command, size, flags, error


def _cure(stand: ServedStand) -> None:
    stand.machine.cure()


def refused(
    request: str, reason: UgpuError, stages: tuple[str, ...], error: type[UgpuError], **fields: Any
) -> Kind:
    """A request that the device refuses; the server answers with an errno."""

    def plant(stand: ServedStand) -> None:
        stand.machine.device.refuses[request] = reason

    made: dict[str, Any] = {
        "layer": Layer.HARDWARE, "recovery": Recovery.GO_ON, "source": _SOURCE, "cure": _cure,
        "planted": f"the device's `{request}` raises {type(reason).__name__}", "plant": plant,
        "struck": lambda stand: stand.machine.device.struck,
    }  # fmt: skip
    name = f"served device refuses {request} with {type(reason).__name__} (vfio-user)"
    return Kind(name=name, devices=DEVICES, stages=stages, error=error, **(made | fields))


def damaged(
    name: str, damage: Damage, error: type[UgpuError], stages: tuple[str, ...] = _TALK,
    **fields: Any,
) -> Kind:  # fmt: skip
    """A reply that does not arrive as it was sent. Nothing after it makes sense: the client gives
    the connection up."""
    made: dict[str, Any] = {
        "layer": Layer.LINK, "recovery": Recovery.REOPEN, "source": _SOURCE, "cure": _cure,
        "planted": "the next reply, on its way", "struck": lambda stand: stand.machine.hit,
        "plant": lambda stand: stand.machine.damage(damage),
    }  # fmt: skip
    return Kind(
        name=f"{name} (vfio-user)", devices=DEVICES, stages=stages, error=error, **(made | fields)
    )


def _changed(**fields: int) -> Damage:
    """A reply whose header has other fields."""

    def damage(message: bytes) -> bytes:
        names = ("number", "command", "size", "flags", "error")
        head = dict(zip(names, _HEADER.unpack_from(message), strict=True))
        return _HEADER.pack(*(head | fields).values()) + message[_HEADER.size :]

    return damage


def _another(message: bytes) -> bytes:
    number, *rest = _HEADER.unpack_from(message)
    return _HEADER.pack(number ^ 0x8000, *rest) + message[_HEADER.size :]


def _shorter(message: bytes) -> bytes:
    """A whole message without a byte of its payload."""
    number, command, size, flags, error = _HEADER.unpack_from(message)
    return _HEADER.pack(number, command, size - 1, flags, error) + message[_HEADER.size : -1]


def _silent(stand: ServedStand) -> None:
    stand.machine.damage(lambda message: b"")
    stand.impatient()


KINDS = [
    Kind("no server at the socket (vfio-user)", Layer.HOST, "the server ended", DEVICES,
         ("open",), lambda stand: stand.machine.end(), DeviceNotFound, _SOURCE,
         remedy="ugpu serve", cure=_cure, recovery=Recovery.REOPEN),
    Kind("another client holds the served device (vfio-user)", Layer.HOST, "a second client",
         DEVICES, ("open",), ServedStand.take_up, DeviceBusy, _SOURCE, cure=ServedStand.leave,
         recovery=Recovery.REOPEN),
    Kind("server ends (vfio-user)", Layer.HOST, "the server ended", DEVICES,
         ("window", "config", "dma", "interrupts", "reset", "close"),
         lambda stand: stand.machine.end(), DeviceLost, _SOURCE, errors={"close": None},
         cure=_cure, recovery=Recovery.REOPEN),
    refused("attach", DeviceLost("gone"), ("open",), DeviceLost),
    refused("map_dma", OutOfMemory("full"), ("dma",), OutOfMemory, layer=Layer.MEMORY),
    refused("map_dma", NotSupported("no DMA"), ("dma",), NotSupported),
    refused("map_dma", DeviceLost("gone"), ("dma",), DeviceLost),
    refused("config_read", DeviceLost("gone"), ("open", "config"), DeviceLost),
    refused("reset", NotSupported("no reset"), ("reset",), NotSupported),
    refused("reset", DeviceBusy("a neighbour", holder="its server"), ("reset",), DeviceBusy),
    refused("reset", DeviceLost("gone"), ("reset",), DeviceLost),
    damaged("reply is cut off by the connection's end", lambda message: None, TransportError),
    damaged("reply has another number", _another, TransportError),
    damaged("reply is to another command", _changed(command=12), TransportError),
    damaged("reply has an impossible size", _changed(size=1 << 31), TransportError),
    damaged("reply is smaller than its header", _changed(size=8), TransportError),
    damaged("reply is neither command nor reply", _changed(flags=7), TransportError),
    damaged("reply has an unknown errno", _changed(flags=0x21, error=9999), TransportError),
    damaged("reply lacks a byte", _shorter, TransportError, ("open", "window", "config")),
    damaged("reply never comes", lambda message: b"", TransportError,
            ("window", "config", "dma", "reset"), plant=_silent,
            planted="the next reply, dropped"),
]  # fmt: skip
