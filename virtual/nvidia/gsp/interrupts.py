"""The interrupt tree of Turing and later: leaves of 32 vectors below one top register.

Source: Linux 7.3.4 nouveau nvkm/subdev/vfn/tu102.c, subdev/pci/{gp100,gh100}.c;
open-gpu-kernel-modules 570.144 dev_vm.h (NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_*); 550.163.01
kernel_bif.c.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAVES = 8
LEAF, ENABLE_SET, ENABLE_CLEAR = 0xB81000, 0xB81200, 0xB81400
TOP, TOP_SET, TOP_CLEAR, TRIGGER = 0xB81600, 0xB81608, 0xB81610, 0xB81640
_ONES = 0xFFFF_FFFF


class InterruptTree:
    """The tree. Any thread may call; `send` is called for each message, with no lock held.

    rearms: whether a message is now the last until the host rearms it: MSI of Turing to Ada. With
    MSI-X the host switches top enables off and on instead (kbifCheckAndRearmMSI).
    """

    def __init__(self, send: Callable[[], object], *, rearms: Callable[[], bool]) -> None:
        self._send = send
        self._rearms = rearms
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Enter the state after a reset: nothing is pending or enabled."""
        with self._lock:
            self._pending = [0] * LEAVES
            self._enabled = [0] * LEAVES
            self._top = 0
            self._armed = True
            self._sent = False

    def rearm(self) -> None:
        """Handle the host's write that allows the next message."""
        with self._lock:
            self._armed = True
            self._sent = False
        self._update()

    def post(self, vector: int) -> None:
        """Make a vector pending."""
        with self._lock:
            self._pending[vector // 32] |= 1 << vector % 32
        self._update(again=True)

    def _tops(self) -> int:
        tops = 0
        for leaf in range(LEAVES):
            if self._pending[leaf] & self._enabled[leaf]:
                tops |= 1 << leaf // 2
        return tops

    def _update(self, *, again: bool = False) -> None:
        """Send a message if an enabled vector is pending and no message is on its way."""
        with self._lock:
            active = bool(self._tops() & self._top)
            if not active:
                self._sent = False
            rearms = self._rearms()
            due = active and (self._armed or not rearms) and (again or not self._sent)
            if due:
                self._sent = True
                self._armed = not rearms
        if due:
            self._send()

    def read(self, offset: int) -> int | None:
        """Read a register of the tree; None if it is none."""
        with self._lock:
            bank = self._bank(offset)
            if bank is not None:
                return bank[1][bank[2]]
            if offset == TOP:
                return self._tops()
            if offset in (TOP_SET, TOP_CLEAR):
                return self._top
        return None

    def write(self, offset: int, value: int) -> bool:
        """Write a register of the tree; return whether it is one."""
        if offset == TRIGGER:
            if value < 32 * LEAVES:
                self.post(value)
            return True
        with self._lock:
            found = self._set(offset, value)
        if found:
            self._update()
        return found

    def _bank(self, offset: int) -> tuple[int, list[int], int] | None:
        """Return base and values of the bank that a register belongs to, and its index there."""
        for base, values in (
            (LEAF, self._pending), (ENABLE_SET, self._enabled), (ENABLE_CLEAR, self._enabled)
        ):  # fmt: skip
            if base <= offset < base + 4 * LEAVES:
                return base, values, (offset - base) // 4
        return None

    def _set(self, offset: int, value: int) -> bool:
        bank = self._bank(offset)
        if bank is not None:
            base, values, index = bank
            kept = values[index]
            values[index] = kept | value if base == ENABLE_SET else kept & ~value & _ONES
        elif offset == TOP_SET:
            self._top |= value
            self._sent = False
        elif offset == TOP_CLEAR:
            self._top &= ~value & _ONES
        else:
            return offset == TOP
        return True
