"""Rest: the graphics core of a card without work may lose its power (GFXOFF).

While a card rests, the SMU may switch the graphics core off, and the copy engines with it; see
hcq.bare.rest. A register that no other block has counts as the core's. Registers of other blocks,
device memory, the interrupt ring and the SMU's table can be accessed without the core.

Source: Linux 6.12 amdgpu_gfx.c (amdgpu_gfx_off_ctrl: GFXOFF is disallowed around each access),
amdgpu_amdkfd.c (amdgpu_amdkfd_set_compute_idle: on GC 11 for as long as compute is in use),
smu_v13_0.c (smu_v13_0_gfx_off_control); its register headers (registers of the copy engines are the
core's). The kernel waits only for the answer to DisallowGfxOff: SMU 13.0.0 has no register that
shows the state, as those of APUs do (SMUIO_GFX_MISC_CNTL of smu_v12_0.c and yellow_carp_ppt.c).
UNSURE: whether the core has its power when the message is answered, on every board; for that
reason, a register that reads all ones is read again. A board that is allowed GFXOFF would show it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ugpu.am.boot import boot
from ugpu.am.boot.units import Units
from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.bare.card import Member
from ugpu.hcq.bare.rest import Rest
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import FirmwareRejected, FirmwareSilent
from ugpu.hcq.registers.fields import BoundRegister

log = logging.getLogger(__name__)

# In a register of MMHUB's last context, which is unused and cleared by every reset (like
# am.units.psp.psp's note). A process that dies leaves the note for the next one, which cannot read
# the core's own registers then.
_NOTE = 0x75470FFF
# TIMEOUT: the kernel waits 0.5 s where a register shows the state (smu_v12_0_gfx_off_control)
POWER_LIMIT_S = 0.5


class GraphicsOff(Rest):
    """GFXOFF of one card."""

    def __init__(self, units: Units, lock: threading.RLock, holders: Sequence[Member]) -> None:
        super().__init__(units.chip, lock, holders)
        self._units = units

    def noted(self) -> bool:
        return noted(self._units.chip)

    def note_rest(self) -> None:
        # ORDER: a process that finds the mark without the note assumes that the engines are halted.
        _note(self._units.chip).write(_NOTE)
        boot.mark(self._units.chip, boot.LEFT_CLEAN)

    def note_awake(self) -> None:
        boot.mark(self._units.chip, boot.IN_USE)
        _note(self._units.chip).write(0)

    def allow(self) -> None:
        self._units.smu.tell("AllowGfxOff")

    def wake(self) -> None:
        give_power(self._units.chip, self._units.smu)

    def wake_found(self) -> None:
        _wake_found(self._units.chip, self._units.smu)
        boot.stop(self._units)
        _note(self._units.chip).write(0)

    def needs_power(self, index: int) -> bool:
        # A register that is in no block may be the core's, except for the place that HDP's flush
        # was moved to.
        units = self._units
        return index != units.nbio.flush_index and not units.chip.outside_graphics(index)


def give_power(chip: Chip, smu: Smu) -> None:
    """Disallow GFXOFF, and wait until the core has its power. FirmwareSilent, FirmwareRejected."""
    smu.tell("DisallowGfxOff")
    text = "the SMU has answered DisallowGfxOff, and the graphics core's registers read all ones"
    with or_silent(text, smu.state, unit="SMU", limit_s=POWER_LIMIT_S, remedy=advice.MODE1):
        chip.wait(
            chip.gc.GRBM_STATUS,
            lambda _: True,
            unit="GFX",
            waiting_for="power of the graphics core",
            limit_s=POWER_LIMIT_S,
        )


def _wake_found(chip: Chip, smu: Smu) -> None:
    if not smu.running():
        raise FirmwareSilent("the SMU's firmware does not run", unit="SMU")
    give_power(chip, smu)


def look_into(chip: Chip, make_smu: Callable[[], Smu]) -> None:
    """Prepare to read registers of a card that no process drives: wake it if a process died while
    it rested. If it does not wake, its core's registers read as ones. The card stays marked for the
    process that takes it over."""
    if not noted(chip):
        return
    smu = make_smu()
    try:
        _wake_found(chip, smu)
    except (FirmwareSilent, FirmwareRejected) as error:
        log.warning("the card rests and does not wake: %s", error)
        chip.dark = True
        chip.bus.rouse = lambda index: index is not None and chip.outside_graphics(index)


def noted(chip: Chip) -> bool:
    """Return whether a process has left the card at rest, with a core that may have no power."""
    return int(_note(chip).read()) == _NOTE


def _note(chip: Chip) -> BoundRegister:
    return chip.mmhub.MMVM_CONTEXT15_PAGE_TABLE_END_ADDR_LO32
