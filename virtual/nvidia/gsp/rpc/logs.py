"""The firmware's logs, in buffers of the host: LOGINIT, LOGINTR, LOGRM.

Source: open-gpu-kernel-modules 570.144 src/common/uproc/os/common/include/liblogdecode.h,
liblogdecode.c. Word 0 is the put index; the others are a ring. A record is its arguments, the
address of its metadata in an ELF file that is not published, and the time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

_WORD = 8
METADATA = 0x5_0000_0000  # where the synthetic firmware's metadata would be


class Log:
    """One buffer. write: to memory of the host; False if that is refused."""

    def __init__(
        self, write: Callable[[int, bytes], bool], address: int, size: int, now: Callable[[], int]
    ) -> None:
        self._write = write
        self._address = address
        self._room = size // _WORD - 1
        self._now = now
        self._put = 0

    def record(self, number: int, *arguments: int) -> None:
        """Write a record: the message's number, and its arguments."""
        for word in (*arguments, METADATA + 0x40 * number, self._now()):
            place = self._address + _WORD * (1 + self._put % self._room)
            self._write(place, struct.pack("<Q", word))
            self._put += 1
        self._write(self._address, struct.pack("<Q", self._put))
