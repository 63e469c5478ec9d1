"""Memory of the host behind three levels of tables of 512 addresses: an image of the firmware, or
what is saved of it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon.core import Refused, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

PAGE = 4096
LARGEST = 512 << 20


def need(board: Card, address: int, size: int, error: int) -> bytes:
    """Read memory of the host. Raises Refused with `error`."""
    raw = board.bus_read(address, size) if 0 < size <= LARGEST else None
    if raw is None:
        raise Refused(error, f"cannot read {size} bytes at {address:#x}")
    return raw


def pages(board: Card, root: int, size: int, error: int = 0x0C) -> list[int]:
    """Return the addresses of the pages of `size` bytes. Raises Refused with `error`."""
    require(0 < size <= LARGEST, error, f"an image of {size} bytes")
    count, addresses = -(-size // PAGE), [root]
    for level in range(3):
        following: list[int] = []
        for address in addresses:
            following += struct.unpack("<512Q", need(board, address, PAGE, error))
        addresses = following[: -(-count // 512 ** (2 - level))]
        valid = all(address and not address % PAGE for address in addresses)
        require(valid, error, f"level {level} of its tables has a bad address")
    return addresses


def read(board: Card, root: int, size: int, error: int = 0x0C) -> bytes:
    """Read `size` bytes. Raises Refused with `error`."""
    parts = [
        need(board, address, min(PAGE, size - PAGE * index), error)
        for index, address in enumerate(pages(board, root, size, error))
    ]
    return b"".join(parts)
