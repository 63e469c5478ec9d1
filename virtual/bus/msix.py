"""Messages by a table (MSI-X): capability, table and pending bits, kept by the device.

Source: PCI Local Bus Specification 3.0, 6.8.2 and 6.8.3.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

CAPABILITY = 0x11
ENABLE, MASK_ALL = 1 << 15, 1 << 14  # of the control word
_ENTRY, _CONTROL = 16, 12  # bytes of an entry, offset of its control dword
_MASKED = 1
_ADDRESS = 0xFEE0_0000  # of x86's local interrupt controllers; the bus model delivers by number


@dataclass(frozen=True)
class MsixFacts:
    """Where a function has its table. at: of the capability in configuration space. bar: of table
    and pending bits. table, pending: their offsets in it, multiples of 8."""

    at: int
    vectors: int
    bar: int
    table: int
    pending: int

    def capability(self, following: int) -> bytes:
        """Return the capability as after a reset. following: offset of the next one."""
        return struct.pack(
            "<BBHII", CAPABILITY, following, self.vectors - 1, self.table | self.bar,
            self.pending | self.bar,
        )  # fmt: skip


class MsixTable:
    """Table and pending bits. Any thread may call; `send` is called with no lock held.

    send: transmits the message of a vector. A masked vector's message becomes pending, and is sent
    once the vector is unmasked.
    """

    def __init__(self, facts: MsixFacts, send: Callable[[int], object]) -> None:
        self.facts = facts
        self._send = send
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Enter the state after a reset: off, all vectors masked."""
        with self._lock:
            self._control = 0
            self._entries = [0, 0, 0, _MASKED] * self.facts.vectors
            self._pending = 0

    @property
    def enabled(self) -> bool:
        """Whether messages are sent by this table."""
        return bool(self._control & ENABLE)

    @property
    def control(self) -> int:
        """The writable bits of the capability's control word."""
        return self._control

    @control.setter
    def control(self, value: int) -> None:
        with self._lock:
            self._control = value & (ENABLE | MASK_ALL)
        self._send_pending()

    def assign(self, vectors: Collection[int]) -> None:
        """Program the table as an operating system does: these vectors are unmasked, the others
        masked; without any the capability is disabled."""
        with self._lock:
            for vector in range(self.facts.vectors):
                masked = 0 if vector in vectors else _MASKED
                self._entries[4 * vector : 4 * vector + 4] = [_ADDRESS, 0, vector, masked]
        self.control = ENABLE if vectors else 0

    def signal(self, vector: int) -> None:
        """Send a message, or make it pending. Only while enabled."""
        with self._lock:
            self._pending |= 1 << vector
        self._send_pending()

    def _masked(self, vector: int) -> bool:
        masked = self._entries[4 * vector + _CONTROL // 4] & _MASKED
        return bool(masked or self._control & MASK_ALL)

    def _send_pending(self) -> None:
        with self._lock:
            due = [
                vector
                for vector in range(self.facts.vectors)
                if self.enabled and self._pending >> vector & 1 and not self._masked(vector)
            ]
            for vector in due:
                self._pending &= ~(1 << vector)
        for vector in due:
            self._send(vector)

    def read_table(self, offset: int) -> int | None:
        """Read a dword of the table; None past its end."""
        index = offset // 4
        return self._entries[index] if index < len(self._entries) else None

    def write_table(self, offset: int, value: int) -> bool:
        """Write a dword of the table; return whether it is one."""
        index = offset // 4
        if index >= len(self._entries):
            return False
        kind = offset % _ENTRY
        with self._lock:
            self._entries[index] = value & (_MASKED if kind == _CONTROL else -1 if kind else ~3)
        self._send_pending()
        return True

    def read_pending(self, offset: int) -> int | None:
        """Read a dword of the pending bits, which are read-only; None past their end."""
        if offset >= 8 * (-(-self.facts.vectors // 64)):
            return None
        return self._pending >> 8 * offset & 0xFFFF_FFFF
