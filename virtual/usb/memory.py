"""The bridge chip's memory: XDATA of its 8051, and the parts that the card reaches by DMA.

Facts: the windows of tinygrad runtime/ops_amd.py (F000, A000, B800) and asm2464pd-firmware
pcie/test_sram_verify.py (512 KiB of SRAM at 0x200000 verified), pcie/dma_probe.py (0xF000 is RAM of
its own under the open firmware: the window to SRAM needs the vendor's storage mode). All other
addresses of the card are not backed.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable
from dataclasses import dataclass

XDATA_SIZE = 0x10000
SRAM_SIZE = 512 << 10
SLOT_SIZE = 16 << 10
SLOTS = SRAM_SIZE // SLOT_SIZE
SECTOR = 512
FLASH_BUFFER, FLASH_BUFFER_SIZE = 0x7000, 0x1000  # the 8051 does not write it (registers.h)
_PAGE = 4096
_COMPLETION = 12  # DW3 of a completion entry: the write to it completes the entry
_ENTRY = 16
_SUBMISSIONS = 0x200  # bytes of the submission queue that the SRAM engine overwrites


@dataclass(frozen=True)
class Region:
    """Memory visible to both sides. offset: in the backing; xdata_size 0: not in XDATA at all."""

    bus: int
    size: int
    offset: int
    xdata: int
    xdata_size: int


# UNSURE: how much of the completion queue shows from 0xB800 on; a dump of 0xB800 to 0xBFFF after
# the card wrote a pattern to 0x822000 settles it.
SRAM = Region(0x20_0000, SRAM_SIZE, 0, 0xF000, 0x1000)
SUBMISSION = Region(0x82_0000, _PAGE, SRAM_SIZE, 0xA000, 0x1000)
COMPLETION = Region(0x82_2000, _PAGE, SRAM_SIZE + _PAGE, 0xB800, 0x800)
REGIONS = (SRAM, SUBMISSION, COMPLETION)
_BACKING = SRAM_SIZE + 2 * _PAGE

ReadHook = Callable[[], int]
WriteHook = Callable[[int], None]


class Memory:
    """XDATA (bank 0 and 1) and the regions shared with the card. `close` frees it."""

    def __init__(self, seed: int) -> None:
        self.window = False  # XDATA from 0xF000 on shows SRAM: the firmware's doing
        self._random = random.Random(seed)
        self._map = mmap.mmap(-1, _BACKING)
        self.shared = memoryview(self._map)
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._banks = (bytearray(XDATA_SIZE), bytearray(XDATA_SIZE))
        self.flash_buffer = bytearray(FLASH_BUFFER_SIZE)
        self._reads: dict[int, ReadHook] = {}
        self._writes: dict[int, WriteHook] = {}
        self._mark = b""  # marks the completion entry while waiting for its write
        self._hidden = b""  # the entry's contents before

    def reset(self) -> None:
        """Reset as at power-on: XDATA is zero, the shared memory holds random data."""
        for bank in self._banks:
            bank[:] = bytes(XDATA_SIZE)
        self.shared[:] = self._random.randbytes(_BACKING)
        self._mark = b""

    def hook(
        self, address: int, read: ReadHook | None = None, write: WriteHook | None = None
    ) -> None:
        """Install functions that handle reads or writes of a register at an XDATA address."""
        if read is not None:
            self._reads[address] = read
        if write is not None:
            self._writes[address] = write

    def read(self, address: int, size: int, bank: int = 0) -> bytes:
        """Read XDATA; the 16-bit address wraps."""
        return bytes(self._read((address + at) % XDATA_SIZE, bank) for at in range(size))

    def _read(self, address: int, bank: int) -> int:
        if bank:
            return self._banks[1][address]
        if address in self._reads:
            return self._reads[address]()
        if FLASH_BUFFER <= address < FLASH_BUFFER + FLASH_BUFFER_SIZE:
            return self.flash_buffer[address - FLASH_BUFFER]
        for region in self._regions():
            if region.xdata <= address < region.xdata + region.xdata_size:
                at = address - region.xdata
                if region is COMPLETION and self._mark and at < _ENTRY:
                    return self._entry()[at]
                return self.shared[region.offset + at]
        return self._banks[0][address]

    def _regions(self) -> tuple[Region, ...]:
        """Return the regions that XDATA shows."""
        return REGIONS if self.window else (SUBMISSION, COMPLETION)

    def write(self, address: int, value: int, bank: int = 0) -> None:
        """Write one byte of XDATA."""
        if bank:
            self._banks[1][address] = value
        elif address in self._writes:
            self._writes[address](value)
        elif not FLASH_BUFFER <= address < FLASH_BUFFER + FLASH_BUFFER_SIZE:
            for region in self._regions():
                if region.xdata <= address < region.xdata + region.xdata_size:
                    at = address - region.xdata
                    if region is COMPLETION and self._mark and at < _ENTRY:
                        self._write_entry(at, value)
                    else:
                        self.shared[region.offset + at] = value
                    return
            self._banks[0][address] = value

    # ---- the completion entry -----------------------------------------------------------------

    def watch_completion(self) -> None:
        """Watch the entry's last dword: `completed` then reports whether the card wrote it.

        The card writes this memory without our code running, so the entry contains a mark of random
        bytes during the watch; XDATA shows the previous contents.
        """
        self._hidden = self._entry() if self._mark else self._raw_entry()
        self._mark = self._random.randbytes(_ENTRY)
        self.shared[COMPLETION.offset : COMPLETION.offset + _ENTRY] = self._mark

    def completed(self) -> bool:
        """Return whether the card wrote DW3 since `watch_completion`; ends the watch if so."""
        if not self._mark or self._raw_entry()[_COMPLETION:] == self._mark[_COMPLETION:]:
            return False
        self.end_watch()
        return True

    def end_watch(self) -> None:
        """End the watch and show the entry as the card left it."""
        if self._mark:
            self.shared[COMPLETION.offset : COMPLETION.offset + _ENTRY] = self._entry()
            self._mark = b""

    def _raw_entry(self) -> bytes:
        return bytes(self.shared[COMPLETION.offset : COMPLETION.offset + _ENTRY])

    def _entry(self) -> bytes:
        """Return the entry without the mark, by dwords."""
        raw = self._raw_entry()
        dwords = (slice(at, at + 4) for at in range(0, _ENTRY, 4))
        return b"".join(
            self._hidden[part] if raw[part] == self._mark[part] else raw[part] for part in dwords
        )

    def _write_entry(self, at: int, value: int) -> None:
        """Write a byte of the entry from XDATA. Only the card's writes count as completions."""
        part = slice(at & ~3, (at & ~3) + 4)
        if self._raw_entry()[part] != self._mark[part]:
            self.shared[COMPLETION.offset + at] = value
            return
        hidden = bytearray(self._hidden)
        hidden[at] = value
        self._hidden = bytes(hidden)

    def scribble_submission(self, size: int = _SUBMISSIONS) -> None:
        """Overwrite the queue entries that the SRAM engine writes when it starts.

        tinygrad 0.14 keeps signals out of this page because they were overwritten, and uses it from
        0x200 on for data that it reads between transfers.
        """
        start = SUBMISSION.offset
        self.shared[start : start + size] = self._random.randbytes(size)

    def close(self) -> None:
        """Release the memory. The mapping is removed with its last view."""
        self.shared.release()
