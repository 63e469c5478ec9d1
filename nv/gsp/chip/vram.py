"""VRAM through BAR 1 and, beyond it, through the window of 1 MiB in BAR 0 (PRAMIN).

BAR 1 shows VRAM from its first byte in physical mode: after a reset, and again once its block
register is cleared after the firmware's start (open-gpu-kernel-modules 570.144 kern_bus_gm107.c;
tinygrad 0.14 does the same on boards). The window: Linux 7.3 nouveau subdev/instmem/nv50.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
            name = "NV_XAL_EP_BAR0_WINDOW_BASE" if self._boot.wide_window else "NV_PBUS_BAR0_WINDOW"
            self._nv[name].write(base >> _SHIFT)
            self._aimed = base
        return _PRAMIN + address - base

    def _places(self, address: int, size: int) -> Iterator[int]:
        """Aim the window along a range; yield the register index of each word."""
        while size:
            place = self._aim(address)
            count = min(size, _PRAMIN + _SPAN - place)
            yield from range(place // 4, (place + count) // 4)
            address, size = address + count, size - count

    def read_beyond(self, address: int, size: int) -> bytes:
        words = [self._nv.bus.read32(place) for place in self._places(address, size)]
        return struct.pack(f"<{len(words)}I", *words)

    def write_beyond(self, address: int, data: memoryview) -> None:
        words = struct.iter_unpack("<I", data)
        for place, (word,) in zip(self._places(address, len(data)), words, strict=True):
            self._nv.bus.write32(place, word)
