"""The version message, by which two peers negotiate. Source: vfio-user.rst, "VFIO_USER_VERSION"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ugpu.hcq.errors import TransportError
from ugpu.hcq.transport.vfio_user import wire

PAGE_SIZES = 4096
MOST_DMA_MAPS = 65535
_LARGEST_JSON = 4096


@dataclass(frozen=True)
class Capabilities:
    """A peer's limits; the protocol's defaults if it states none.

    Attributes:
        transfer: bytes of one read or write.
        descriptors: per message.
        dma_maps: the most mappings at a time.
        write_multiple: whether one message may have several writes.
        twin_socket: whether a second socket may carry the server's commands.
        model_work: the command of that name, which is ugpu's own.
        twin_index: index of the second socket among the message's descriptors.
        named: the names in its message, since an answer may only repeat those.
    """

    transfer: int = wire.DEFAULT_TRANSFER
    descriptors: int = wire.DEFAULT_DESCRIPTORS
    dma_maps: int = MOST_DMA_MAPS
    write_multiple: bool = False
    twin_socket: bool = False
    model_work: bool = False
    twin_index: int | None = None
    named: frozenset[str] = frozenset()


def parse(payload: bytes) -> tuple[int, int, Capabilities]:
    """Return (major, minor, capabilities); TransportError for a malformed message."""
    major, minor = wire.unpack(wire.VERSION, payload)
    text = payload[wire.VERSION.size :]
    if not text:
        return major, minor, Capabilities()
    if len(text) > _LARGEST_JSON or not text.endswith(b"\0"):
        raise TransportError("version data is too long, or does not end in NUL", size=len(text))
    try:
        data = json.loads(text[:-1].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TransportError("version data is not JSON") from error
    offered = data.get("capabilities", {}) if isinstance(data, dict) else None
    if not isinstance(offered, dict):
        raise TransportError("version data does not contain an object of capabilities")
    twin = offered.get("twin_socket", {})
    if not isinstance(twin, dict):
        raise TransportError("twin_socket is not an object")
    index = _number(twin, "fd_index", -1, 0, wire.LARGEST_DESCRIPTORS)
    return major, minor, Capabilities(
        transfer=_number(offered, "max_data_xfer_size", wire.DEFAULT_TRANSFER, 1, 1 << 63),
        descriptors=_number(offered, "max_msg_fds", wire.DEFAULT_DESCRIPTORS, 0, 1 << 31),
        dma_maps=_number(offered, "max_dma_maps", MOST_DMA_MAPS, 1, 1 << 63),
        write_multiple=_truth(offered, "write_multiple"),
        twin_socket=_truth(twin, "supported"),
        model_work=_truth(offered, "model_work"),
        twin_index=None if index < 0 else index,
        named=frozenset(offered),
    )  # fmt: skip


def build(capabilities: Mapping[str, Any]) -> bytes:  # Any: JSON values
    """Return the payload of our version message."""
    text = json.dumps({"capabilities": dict(capabilities)}).encode() + b"\0"
    return wire.VERSION.pack(wire.MAJOR, wire.MINOR) + text


def _number(offered: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = offered.get(name, default)
    if name not in offered:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TransportError(f"{name} is out of range", value=str(value)[:40])
    return value


def _truth(offered: Mapping[str, Any], name: str) -> bool:
    value = offered.get(name, False)
    if not isinstance(value, bool):
        raise TransportError(f"{name} must be true or false", value=str(value)[:40])
    return value
