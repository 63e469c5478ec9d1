"""Planted faults of the GSP's messages: what is wrong in the next element, or in its index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.virtual.nvidia.gsp.faults import CardFault


@dataclass
class Element:
    """What an element states. checksum: bits of it to flip; number, count, length: to be added."""

    function: int
    signature: int
    checksum: int = 0
    number: int = 0
    count: int = 0
    length: int | None = None


def _checksum(element: Element) -> None:
    element.checksum = 1


def _old(element: Element) -> None:
    element.number = -1


def _ahead(element: Element) -> None:
    element.number = 5


def _signature(element: Element) -> None:
    element.signature ^= 1 << 31


def _length(element: Element) -> None:
    element.length = 16


def _pages(element: Element) -> None:
    element.count = 1


def _other(element: Element) -> None:
    element.function += 1


def _continuation(element: Element) -> None:
    element.function = 71


DAMAGES: dict[CardFault, Callable[[Element], None]] = {
    CardFault.REPLY_CHECKSUM: _checksum,
    CardFault.REPLY_NUMBER: _old,
    CardFault.REPLY_AHEAD: _ahead,
    CardFault.REPLY_SIGNATURE: _signature,
    CardFault.REPLY_LENGTH: _length,
    CardFault.REPLY_PAGES: _pages,
    CardFault.REPLY_OTHER: _other,
    CardFault.CONTINUATION_ALONE: _continuation,
}
