"""The interrupt handler: a ring of 32-byte entries in memory, byte pointers, and the MSI.

Facts: Linux 6.12 ih_v6_0.c, amdgpu_ih.c; osssys_6_0_0 register header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ugpu.virtual.amd.block import Block, Reset

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

ENTRY = 32
_OSSSYS = 15  # client of MMHUB (Linux 6.12 mmhub_v3_0.c)
_SPACE_BUS, _SPACE_MC = 2, 4
_XCLK = 100e6  # ticks per second of the time stamp
_OFFSET = 0x3FFFC  # mask of the byte pointer in RPTR and WPTR
_LAYOUT = struct.Struct("<8I")


class _Ring(NamedTuple):
    """The ring configuration decoded from the registers. Addresses and sizes are bytes."""

    enabled: bool
    size: int
    base: int
    on_bus: bool
    shadow: int | None  # write-back address of the write pointer
    overflow_enabled: bool
    overflow_cleared: bool
    interrupts: bool
    rearmed: bool


class InterruptHandler(Block):
    """Ring 0 of the interrupt handler.

    Ring 1 receives only interrupts that a driver routes to it, which our driver never does.
    """

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "osssys")
        self.lost = 0  # entries dropped because the ring was full or not enabled
        self._wptr = 0
        self._overflow = False
        self._ring: _Ring | None = None
        self._rptr_index = self.index("IH_RB_RPTR")
        self._wptr_index = self.index("IH_RB_WPTR")
        self.on_write("IH_RB_CNTL", self._control)
        self.on_write("IH_RB_RPTR", self._read_pointer)
        self.on_write("IH_RB_WPTR", self._write_pointer)
        for name in ("BASE", "BASE_HI", "WPTR_ADDR_LO", "WPTR_ADDR_HI"):
            self.on_write(f"IH_RB_{name}", self._forget_ring)

    def reset(self, scope: Reset) -> None:
        """Clear the ring state."""
        self._wptr = 0
        self._overflow = False
        self._ring = None

    def _forget_ring(self, _value: int) -> None:
        self._ring = None

    def _look(self) -> _Ring:
        control = self.fields("IH_RB_CNTL")
        shadow = self.get("IH_RB_WPTR_ADDR_LO") | self.get("IH_RB_WPTR_ADDR_HI") << 32
        self._ring = _Ring(
            enabled=bool(control.RB_ENABLE),
            size=4 << control.RB_SIZE,
            base=self.get("IH_RB_BASE") << 8 | self.get("IH_RB_BASE_HI") << 40,
            on_bus=control.MC_SPACE == _SPACE_BUS,
            shadow=shadow if control.WPTR_WRITEBACK_ENABLE else None,
            overflow_enabled=bool(control.WPTR_OVERFLOW_ENABLE),
            overflow_cleared=bool(control.WPTR_OVERFLOW_CLEAR),
            interrupts=bool(control.ENABLE_INTR),
            rearmed=bool(control.RPTR_REARM),
        )
        return self._ring

    def _control(self, _value: int) -> None:
        control = self.fields("IH_RB_CNTL")
        if control.RB_ENABLE and control.MC_SPACE not in (_SPACE_BUS, _SPACE_MC):
            self.chip.violation(f"IH_RB_CNTL.MC_SPACE is {control.MC_SPACE}")
        if self._look().overflow_cleared:
            self._overflow = False
            self._show()

    def _write_pointer(self, value: int) -> None:
        if (self._ring or self._look()).enabled:
            self.chip.violation("IH_RB_WPTR written while the ring is on")
        self._wptr = value & _OFFSET
        self._show()

    def doorbell(self, dword: int, value: int) -> bool:
        """Take the read pointer from a doorbell; see board.DoorbellTarget."""
        wanted = self.fields("IH_DOORBELL_RPTR")
        if not wanted.ENABLE or dword != wanted.OFFSET:
            return False
        self.chip.space.poke(self._rptr_index, value & 0xFFFF_FFFF)
        self._read_pointer(value & 0xFFFF_FFFF)
        return True

    def _read_pointer(self, value: int) -> None:
        ring = self._ring or self._look()
        if value % ENTRY or value >= ring.size:
            self.chip.violation(
                f"IH_RB_RPTR set to {value:#x}: bytes, multiples of {ENTRY}, inside the ring"
            )
        # With RPTR_REARM a ring that is not empty interrupts again.
        if ring.rearmed and ring.interrupts and value & _OFFSET != self._wptr:
            self.chip.signal_msi()

    def _show(self) -> int:
        """Latch the write pointer with its overflow flag; return it."""
        value = self._wptr | int(self._overflow)
        self.chip.space.poke(self._wptr_index, value)
        return value

    def raise_interrupt(
        self,
        client: int,
        source: int,
        ring_id: int = 0,
        vmid: int = 0,
        data: Sequence[int] = (0, 0, 0, 0),
        *,
        vmid_source: int = 0,
    ) -> None:
        """Write an entry and the write pointer, then raise the interrupt. data: up to four dwords.

        `vmid_source` 1 means a VMID of the MMHUB. The table IH_VMID_n_LUT maps a VMID to its
        process.
        """
        with self.chip.lock:
            ring = self._ring or self._look()
            if self.chip.lost or not ring.enabled:
                self.lost += 1
                return
            after = (self._wptr + ENTRY) % ring.size
            if after == self.chip.space.peek(self._rptr_index):
                if not ring.overflow_enabled:
                    self.lost += 1
                    return
                # While CLEAR stays set, the flag cannot be set: the driver has to toggle the bit.
                self._overflow = not ring.overflow_cleared
            stamp = int(self.chip.scheduler.now() * _XCLK)
            words = [int(word) for word in data][:4]
            entry = _LAYOUT.pack(
                client | source << 8 | ring_id << 16 | vmid << 24 | vmid_source << 31,
                stamp & 0xFFFF_FFFF,
                stamp >> 32 & 0xFFFF,
                self.get(f"IH_VMID_{vmid}_LUT" + ("_MM" if vmid_source else "")),
                *words,
                *[0] * (4 - len(words)),
            )
            self._store(ring, ring.base + self._wptr, entry)
            self._wptr = after
            value = self._show()
            if ring.shadow is not None:
                self._store(ring, ring.shadow, value.to_bytes(4, "little"))
            if ring.interrupts:
                self.chip.signal_msi()

    def _store(self, ring: _Ring, address: int, data: bytes) -> None:
        if ring.on_bus:
            self.chip.dma_write(address, data)
        else:
            self.chip.mm.write(0, address, data, _OSSSYS)
