"""The card's ways to memory, as its parts use them."""

from __future__ import annotations

from typing import Protocol


class BusMaster(Protocol):
    """The card's accesses to memory. bus_read: of the host, None if it is refused. bus_write:
    whether it was allowed. bus_address: in this process, None if it is refused or not contiguous.
    falcon_memory: of the card, as its programs and firmware access it. violation: records a use
    that a board would punish silently."""

    def bus_read(self, address: int, size: int) -> bytes | None: ...
    def bus_write(self, address: int, content: bytes) -> bool: ...
    def bus_address(self, address: int, size: int) -> int | None: ...
    def falcon_memory(self, address: int, size: int) -> memoryview: ...
    def violation(self, text: str) -> None: ...
