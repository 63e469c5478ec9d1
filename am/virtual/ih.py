"""The interrupt handler: a ring of 32-byte entries in memory, byte pointers, and the MSI.

Facts: Linux 6.12 ih_v6_0.c, amdgpu_ih.c; osssys_6_0_0 register header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from am.virtual.block import Block, Reset

if TYPE_CHECKING:
    from am.virtual.chip import Chip

ENTRY = 32
_OSSSYS = 15  # client of MMHUB (Linux 6.12 mmhub_v3_0.c)
_SPACE_BUS, _SPACE_MC = 2, 4
_XCLK = 100e6  # ticks per second of the time stamp


class InterruptHandler(Block):
    """Ring 0 (ring 1 takes only what a driver routes to it, which ours never does)."""

    def __init__(self, chip: Chip) -> None:
        super().__init__(chip, "osssys")
        self.lost = 0  # entries that found no room or no ring
        self._wptr = 0
        self._overflow = False
        self.on_write("IH_RB_CNTL", self._control)
        self.on_write("IH_RB_RPTR", self._read_pointer)
        self.on_write("IH_RB_WPTR", self._write_pointer)

    def reset(self, scope: Reset) -> None:
        """Forget the ring."""
        self._wptr = 0
        self._overflow = False

    def _control(self, value: int) -> None:
        control = self.fields("IH_RB_CNTL")
        if control.WPTR_OVERFLOW_CLEAR:
            self._overflow = False
            self._show()
        if control.RB_ENABLE and control.MC_SPACE not in (_SPACE_BUS, _SPACE_MC):
            self.chip.violation(f"IH_RB_CNTL.MC_SPACE is {control.MC_SPACE}")

    def _write_pointer(self, value: int) -> None:
        if self.fields("IH_RB_CNTL").RB_ENABLE:
            self.chip.violation("IH_RB_WPTR written while the ring is on")
        self._wptr = value & 0x3FFFC
        self._show()

    def _read_pointer(self, value: int) -> None:
        if value % ENTRY or value >= self._size():
            self.chip.violation(
                f"IH_RB_RPTR set to {value:#x}: bytes, multiples of {ENTRY}, inside the ring"
            )
        # With RPTR_REARM a ring that is not empty interrupts again.
        if self.fields("IH_RB_CNTL").RPTR_REARM and value & 0x3FFFC != self._wptr:
            self._interrupt()

    def _size(self) -> int:
        return 4 << self.fields("IH_RB_CNTL").RB_SIZE

    def _show(self) -> None:
        self.set("IH_RB_WPTR", self._wptr | int(self._overflow))

    def raise_interrupt(
        self,
        client: int,
        source: int,
        ring_id: int = 0,
        vmid: int = 0,
        data: Sequence[int] = (0, 0, 0, 0),
        *,
        pasid: int = 0,
        vmid_source: int = 0,
    ) -> None:
        """Write an entry, then the pointer, then interrupt. `data`: up to four dwords."""
        with self.chip.lock:
            control = self.fields("IH_RB_CNTL")
            if self.chip.lost or not control.RB_ENABLE:
                self.lost += 1
                return
            size = self._size()
            after = (self._wptr + ENTRY) % size
            if after == self.get("IH_RB_RPTR"):
                if not control.WPTR_OVERFLOW_ENABLE:
                    self.lost += 1
                    return
                # While CLEAR is held the flag cannot rise: the driver has to toggle the bit.
                self._overflow = not control.WPTR_OVERFLOW_CLEAR
            stamp = int(self.chip.scheduler.now() * _XCLK)
            words = [int(word) for word in data][:4]
            entry = struct.pack(
                "<8I",
                client | source << 8 | ring_id << 16 | vmid << 24 | vmid_source << 31,
                stamp & 0xFFFF_FFFF,
                stamp >> 32 & 0xFFFF,
                pasid,
                *words,
                *[0] * (4 - len(words)),
            )
            base = self.get("IH_RB_BASE") << 8 | self.get("IH_RB_BASE_HI") << 40
            self._store(base + self._wptr, entry)
            self._wptr = after
            self._show()
            if control.WPTR_WRITEBACK_ENABLE:
                shadow = self.get("IH_RB_WPTR_ADDR_LO") | self.get("IH_RB_WPTR_ADDR_HI") << 32
                self._store(shadow, struct.pack("<I", self.get("IH_RB_WPTR")))
            self._interrupt()

    def _store(self, address: int, data: bytes) -> None:
        if self.fields("IH_RB_CNTL").MC_SPACE == _SPACE_BUS:
            self.chip.dma_write(address, data)
        else:
            self.chip.mm.write(0, address, data, _OSSSYS)

    def _interrupt(self) -> None:
        if self.fields("IH_RB_CNTL").ENABLE_INTR:
            self.chip.signal_msi()
