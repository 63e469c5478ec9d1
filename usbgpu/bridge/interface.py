"""Interface of a bridge between USB and PCI Express, independent of its firmware.

A bridge sends PCI Express requests for us, has SRAM that the card behind it accesses by DMA, and
exposes its own registers (XDATA). Addresses and sizes are bytes, data is little-endian.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.transport.bulk import Data
from ugpu.usbgpu.link.usb import UsbDevice

SRAM_BUS_ADDRESS = 0x20_0000  # the SRAM's address for the card
SRAM_SIZE = 512 << 10
SLOT = 16 << 10  # a transfer of SRAM begins at the start of a slot
SECTOR = 512  # and consists of whole sectors
PIECE = 1024  # bytes: whole packets at each speed
LTSSM = 0xB450  # XDATA: state of the link below
LINK_UP = 0x78  # L0


class Ability(enum.Enum):
    """Feature that not every bridge firmware has. Calls that need a missing one raise NotSupported.

    POWER: the bridge switches the card's supply (`power`); without it the card is powered whenever
    the bridge is. SLOTS: `read_sram` and `write_sram` from the start of any slot. FILL:
    `fill_sram`; only the first page that it writes is visible in XDATA. FLASH: the bridge passes
    data to the flash controller (`stage`). PINS: we may use its general-purpose pins.
    """

    POWER = enum.auto()
    SLOTS = enum.auto()
    FILL = enum.auto()
    FLASH = enum.auto()
    PINS = enum.auto()


class Tlp(enum.IntEnum):
    """Format and type of a request (PCI Express Base Specification 5.0, table 2-3)."""

    CONFIG_READ_0 = 0x04
    CONFIG_READ_1 = 0x05
    CONFIG_WRITE_0 = 0x44
    CONFIG_WRITE_1 = 0x45
    MEMORY_READ = 0x20  # with a 64-bit address
    MEMORY_WRITE = 0x60

    @property
    def posted(self) -> bool:
        """Return whether the request has no completion."""
        return self is Tlp.MEMORY_WRITE


class Status(enum.IntEnum):
    """Result of a request: completion status (PCI Express Base Specification 5.0, 2.2.9), or
    TIMEOUT where no completion came."""

    OK = 0
    UNSUPPORTED = 1
    RETRY = 2
    ABORT = 4
    TIMEOUT = 0xFF


@dataclass(frozen=True)
class Completion:
    """The answer to a request. value: the dword that was read; 0 for writes and failures."""

    status: Status
    value: int = 0


class Bridge(Protocol):
    """One bridge. Thread-safe: each call is atomic. All calls raise DeviceLost after the bridge is
    unplugged, and TransportError (EndpointStalled, TransferTimeout, TransferOverrun) for failed
    transfers."""

    usb: UsbDevice
    firmware: str  # its name and version, for display
    abilities: frozenset[Ability]

    @property
    def transfers(self) -> int:
        """Return the number of USB transfers so far."""
        ...

    def read_xdata(self, address: int, size: int, bank: int = 0) -> bytes:
        """Read registers of the bridge. bank 1: registers of PHY and switch."""
        ...

    def write_xdata(self, address: int, data: bytes, bank: int = 0) -> None:
        """Write registers of the bridge, one byte at a time."""
        ...

    def power(self, on: bool) -> None:
        """Switch the card's supply. on: return when its link is up, or will not come up."""
        ...

    def request(self, kind: Tlp, address: int, value: int = 0, enable: int = 0xF) -> Completion:
        """Send one request for the dword at `address`. enable: byte enables."""
        ...

    def post(self, kind: Tlp, address: int, value: int, enable: int = 0xF) -> None:
        """Send one write without checking its result. The next request may check it."""
        ...

    def read_block(self, kind: Tlp, address: int, size: int) -> bytes | None:
        """Read whole dwords, ascending, by requests of one kind; None where the last request was
        not completed. A failure of an earlier one is not detected."""
        ...

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write whole dwords to ascending addresses, in order."""
        ...

    def read_sram(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """Read SRAM from the start of a slot, in pieces of these sizes. Each size but the last is a
        multiple of `PIECE`. The bridge sends the data once the card writes a completion (0x82200C
        on its bus) after `begun` was called. arrived: called with each piece's position and data
        while later pieces are in flight. Neither callback may stream reads."""
        ...

    def write_sram(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """Write `size` bytes of SRAM from the start of a slot, in pieces. Each piece but the last
        is a multiple of `PIECE`. The next piece is taken from `pieces` while the one before is in
        flight; producing it must not stream anything. Data may arrive after this returns. The rest
        of the last sector is zeroed."""
        ...

    def fill_sram(self, data: bytes | bytearray | memoryview) -> None:
        """Write SRAM from its start; the data has arrived when this returns. The bytes after it, up
        to a multiple of 64 KiB, may become zero."""
        ...

    def stage(self, data: bytes) -> None:
        """Put up to `stage_limit` bytes at the start of the flash controller's buffer."""
        ...

    @property
    def stage_limit(self) -> int:
        """Return the most bytes that one call puts into the flash controller's buffer."""
        ...

    def close(self) -> None:
        """Release the USB device; idempotent."""
        ...
