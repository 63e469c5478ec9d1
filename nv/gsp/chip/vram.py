"""VRAM through BAR 1 and, beyond it, through the window of 1 MiB in BAR 0 (PRAMIN).

BAR 1 shows VRAM from its first byte in physical mode: after a reset, and again once its block
register is cleared after the firmware's start (open-gpu-kernel-modules 570.144 kern_bus_gm107.c;
tinygrad 0.14 does the same on boards). The window: Linux 7.3 nouveau subdev/instmem/nv50.c.
"""

from __future__ import annotations

import struct

from ugpu.hcq.bare.vram import WindowVram
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.transport.base import Window
from ugpu.nv.chips.boot import BootFacts

_PRAMIN, _SPAN = 0x70_0000, 1 << 20
_SHIFT = 16


class FbVram(WindowVram):
    """See the module. One thread at a time uses the window beyond BAR 1."""

    def __init__(self, window: Window, size: int, nv: RegisterBlock, boot: BootFacts) -> None:
        super().__init__(window, size)
        self._nv = nv
        self._boot = boot
        self._aimed: int | None = None

    def forget(self) -> None:
        """The window may be aimed elsewhere: the chip was reset."""
        self._aimed = None

    def _aim(self, address: int) -> int:
        """Aim the window; return the address's place in BAR 0."""
        base = address >> _SHIFT << _SHIFT
        if self._aimed != base:
            if self._boot.wide_window:
                self._nv.NV_XAL_EP_BAR0_WINDOW_BASE.write(base >> _SHIFT)
            else:
                self._nv.NV_PBUS_BAR0_WINDOW.write(base >> _SHIFT)
            self._aimed = base
        return _PRAMIN + address - base

    def read_beyond(self, address: int, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            place = self._aim(address + len(out))
            count = min(size - len(out), _PRAMIN + _SPAN - place)
            words = (self._nv.bus.read32(place + 4 * n >> 2) for n in range(count // 4))
            out += b"".join(struct.pack("<I", word) for word in words)
        return bytes(out)

    def write_beyond(self, address: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            place = self._aim(address + done)
            count = min(len(data) - done, _PRAMIN + _SPAN - place)
            for number, (word,) in enumerate(struct.iter_unpack("<I", data[done : done + count])):
                self._nv.bus.write32(place + 4 * number >> 2, word)
            done += count
