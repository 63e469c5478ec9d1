"""GFXOFF: the SMU powers down the idle graphics core while the driver allows it.

Facts: Linux 6.12 amdgpu_gfx.c (amdgpu_gfx_off_ctrl: the core may be off between AllowGfxOff and
DisallowGfxOff, so the kernel disallows GFXOFF before it reads registers there), smu_v13_0.c
(smu_v13_0_gfx_off_control: the kernel waits only for the answer to DisallowGfxOff), the
kernel's documentation of amdgpu ("GFXOFF": firmware switches the core off when no pipe has work).
The copy engines are in the same power domain: their registers are in gc_11_0_0_offset.h. Memory,
MMHUB, IH, HDP and the firmware of PSP and SMU keep running. The core's state is kept: RLC saves and
restores it.

UNSURE: how long the core must be idle, and how long it takes to power up: AMD publishes neither.
Also the value read from a register without power, here all ones. Boards tolerate such accesses, as
the kernel's driver shows: when it is unloaded, it reads and writes interrupt enables of the core
(amdgpu_irq_disable_all) before it disallows GFXOFF. A board with GFXOFF allowed would show all
three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.am.regs import constants

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

_AGAIN_S = 0.2  # delay before a busy core is checked again; our choice
_BLOCK = "gc"


class GraphicsPower:
    """Power of the graphics core and the copy engines. Called under the chip's lock."""

    def __init__(self, chip: Board) -> None:
        self._chip = chip
        self._allowed = False
        self._feature = 1 << constants(chip.facts.smu.tables).FEATURE_GFXOFF_BIT
        self._turn = 0  # grows with each change, which invalidates checks scheduled before it
        self.entries = 0  # number of times the core was switched off

    @property
    def off(self) -> bool:
        """Return whether the core has no power."""
        return _BLOCK in self._chip.space.unpowered

    def allow(self) -> None:
        """Handle AllowGfxOff: switch the core off once it has been idle for a while."""
        if not self._allowed:
            self._allowed = True
            self._await_idle(self._chip.options.delays.gfxoff)

    def disallow(self) -> None:
        """Handle DisallowGfxOff: power the core before the message is answered."""
        self._allowed = False
        if not self._chip.faults.gfxoff_stuck:
            self.switch_on()

    def switch_on(self) -> None:
        """Power the core, as a reset also does. While GFXOFF is allowed, it may go off again."""
        self._turn += 1
        self._chip.space.unpowered.discard(_BLOCK)
        if self._allowed:
            self._await_idle(_AGAIN_S)

    def forbid(self) -> None:
        """Enter the power-on state: GFXOFF is not allowed."""
        self._allowed = False
        self.switch_on()

    def ring(self, unit: str) -> None:
        """Wake the core, as firmware does, for a doorbell of a unit in its power domain."""
        if self.off:
            self._chip.note(
                f"doorbell of {unit} rung in GFXOFF: it wakes the core, as for the kernel's own "
                "rings; for compute on GC 11 Linux 6.12 disallows GFXOFF before "
                "(amdgpu_amdkfd_set_compute_idle)"
            )
            self.switch_on()

    def _await_idle(self, delay_s: float) -> None:
        self._turn += 1
        turn = self._turn
        self._chip.scheduler.after(delay_s, lambda: self._enter(turn))

    def _enter(self, turn: int) -> None:
        if turn != self._turn or not self._allowed:
            return
        if not self._chip.smu.features & self._feature or self._busy():
            self._await_idle(_AGAIN_S)
            return
        self.entries += 1
        self._chip.space.unpowered.add(_BLOCK)

    def _busy(self) -> bool:
        gfx = self._chip.gfx
        up = _BLOCK not in self._chip.space.closed and gfx is not None
        return not up or any(unit.busy() for unit in (gfx, *self._chip.sdma) if unit is not None)
