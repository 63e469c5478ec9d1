"""The firmware's logs, in buffers of the host: LOGINIT, LOGINTR, LOGRM.

Source: open-gpu-kernel-modules 570.144 src/common/uproc/os/common/include/liblogdecode.h,
liblogdecode.c. Word 0 is the put index; the others are a ring. A record is its arguments, the
address of its metadata in an ELF file that is not published, and the time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_WORD = 8
SIZE = 0x10000
METADATA = 0x5_0000_0000  # where the synthetic firmware's metadata would be


class Log:
    """One buffer, at an address of the host."""

    def __init__(self, board: Card, address: int) -> None:
        self._board = board
        self._address = address
        self._put = 0

    def record(self, number: int, *arguments: int) -> None:
        """Write a record: the message's number, and its arguments."""
        write = self._board.bus_write
        for word in (*arguments, METADATA + 0x40 * number, self._board.gpu.time_ns()):
            place = self._address + _WORD * (1 + self._put % (SIZE // _WORD - 1))
            write(place, struct.pack("<Q", word))
            self._put += 1
        write(self._address, struct.pack("<Q", self._put))
