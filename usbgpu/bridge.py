"""Interface of a bridge between USB and PCI Express, independent of its firmware.

A bridge sends PCI Express requests for us, has SRAM that the card behind it reaches by DMA, and
shows its own registers (XDATA). Addresses and sizes are bytes, data is little-endian.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hcq.transport.bulk import Data
from usbgpu.usb import UsbDevice

SRAM_BUS_ADDRESS = 0x20_0000  # where the card sees the SRAM
SRAM_SIZE = 512 << 10
SLOT = 16 << 10  # SRAM is transferred from the start of a slot on
SECTOR = 512  # and in whole sectors
PIECE = 1024  # bytes: whole packets at each speed
LTSSM = 0xB450  # XDATA: state of the link below
LINK_UP = 0x78  # L0


class Ability(enum.Enum):
    """Feature that not every bridge firmware has; calls that need a missing one raise NotSupported.

    POWER: it switches the card's supply (`power`); else the card has power while the bridge has.
    SLOTS: `read_sram` and `write_sram` from the start of any slot. FILL: `fill_sram`; of what it
    writes XDATA shows the first page.
    FLASH: it hands the flash controller data (`stage`). PINS: its general-purpose pins are ours.
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
    """The answer to a request. value: the dword that was read, 0 for writes and failures."""

    status: Status
    value: int = 0


class Bridge(Protocol):
    """One bridge. Thread-safe: each call is one unit. All raise DeviceLost once it is unplugged,
    and TransportError (EndpointStalled, TransferTimeout, TransferOverrun) for transfers that fail.
    """

    usb: UsbDevice
    firmware: str  # its name and version, for people
    abilities: frozenset[Ability]

    @property
    def transfers(self) -> int:
        """USB transfers so far."""
        ...

    def read_xdata(self, address: int, size: int, bank: int = 0) -> bytes:
        """Read registers of the bridge. bank 1: those of PHY and switch."""
        ...

    def write_xdata(self, address: int, data: bytes, bank: int = 0) -> None:
        """Write registers of the bridge, one byte after the other."""
        ...

    def power(self, on: bool) -> None:
        """Switch the card's supply; on: returns when its link is up, or will not come up."""
        ...

    def request(self, kind: Tlp, address: int, value: int = 0, enable: int = 0xF) -> Completion:
        """Send one request for the dword at `address`. enable: which of its bytes count."""
        ...

    def post(self, kind: Tlp, address: int, value: int, enable: int = 0xF) -> None:
        """Send one write without asking how it ends. The request after it may ask."""
        ...

    def read_block(self, kind: Tlp, address: int, size: int) -> bytes | None:
        """Read whole dwords, ascending, by requests of one kind; None where the last of them was
        not completed. A failure of another one does not show."""
        ...

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write whole dwords, ascending, in their order."""
        ...

    def read_sram(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """Read SRAM from the start of a slot on, in pieces of these sizes, each but the last a
        multiple of `PIECE`. The data goes out once the card writes a completion (0x82200C on its
        bus) after `begun` was called. arrived: called with each piece's position and data, while
        later ones are under way. Neither streams reads."""
        ...

    def write_sram(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """Write `size` bytes of SRAM from the start of a slot on, in pieces, each but the last a
        multiple of `PIECE`. A piece is asked for while the one before is under way, and must not
        stream anything. They may land after this has returned. The rest of the last sector is
        zeroed."""
        ...

    def fill_sram(self, data: bytes | bytearray | memoryview) -> None:
        """Write SRAM from its start on; the data is there when this returns. What follows it, up to
        a multiple of 64 KiB, may become zero."""
        ...

    def stage(self, data: bytes) -> None:
        """Put up to `stage_limit` bytes into the flash controller's buffer, from its start on."""
        ...

    @property
    def stage_limit(self) -> int:
        """Bytes that reach the flash controller's buffer in one call."""
        ...

    def close(self) -> None:
        """Let go of the USB device; idempotent."""
        ...
