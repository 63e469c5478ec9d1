"""Rest: the graphics core of a card without work may lose its power (GFXOFF).

While a card rests, the SMU may switch the graphics core off, and the copy engines with it. Every
access that needs the core wakes the card first: registers and doorbells are reached through `Chip`,
which calls `rouse` before each access to a register of the core, or to a register that no other
block has, and before each doorbell. Registers of other blocks, device memory, the interrupt ring
and the SMU's table can be accessed without the core.

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
from typing import TYPE_CHECKING, cast

from ugpu.am.boot import boot
from ugpu.am.boot.units import Units
from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import FirmwareRejected, FirmwareSilent, UgpuError
from ugpu.hcq.registers.fields import BoundRegister
from ugpu.hcq.transport.base import Window

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder

log = logging.getLogger(__name__)

# In a register of MMHUB's last context, which is unused and cleared by every reset (like
# am.units.psp.psp's note). A process that dies leaves the note for the next one, which cannot read
# the core's own registers then.
_NOTE = 0x75470FFF
# TIMEOUT: the kernel waits 0.5 s where a register shows the state (smu_v12_0_gfx_off_control)
POWER_LIMIT_S = 0.5


class Rest:
    """Rest of one card. holders: the card's list of drivers; lock: theirs.

    resting: the SMU has accepted the message that allows the core to go off. able: whether its
    firmware knows GFXOFF. rests: how often the card was put to rest.
    """

    def __init__(self, units: Units, lock: threading.RLock, holders: Sequence[Holder]) -> None:
        self._units = units
        self._lock = lock
        self._holders = holders
        self._changing = False  # the accesses are this object's own
        self._asleep = False  # the guard is on: the core may have no power
        self._in_core: dict[int, bool] = {}  # by register
        self.resting = False
        self.able = True
        self.rests = 0

    def begin(self) -> bool:
        """Let the core go off; False where a holder has work or has failed, or where the firmware
        refuses. After an exception, the card is at rest or ready for work."""
        with self._lock:
            if self.resting or not self.able:
                return self.resting
            self.end()  # an exception may have interrupted an earlier call
            cores = [holder.core for holder in self._holders]
            if not all(core.idle and core.failure is None for core in cores):
                return False
            self._guard()
            self._changing = True
            try:
                # ORDER: a process that finds the mark without the note assumes that the engines are
                # halted.
                _note(self._units.chip).write(_NOTE)
                boot.mark(self._units.chip, boot.LEFT_CLEAN)
                self._units.smu.tell("AllowGfxOff")
                self.resting = True
            except FirmwareRejected as error:
                log.warning("GFXOFF is not used: %s", error)
                self.able = False
            except UgpuError as error:
                self._give_up(error)
                raise
            finally:
                self._changing = False
            if not self.able:
                self._leave()
                return False
            self.rests += 1
            return True

    def end(self) -> None:
        """Make sure that the core has its power; idempotent. FirmwareSilent, FirmwareRejected and
        LinkError are failures of all holders. Any other exception leaves the card at rest."""
        with self._lock:
            if not self._asleep or self._changing:
                return
            self._changing, self.resting = True, False
            try:
                give_power(self._units.chip, self._units.smu)
                self._leave()
            except UgpuError as error:
                self._give_up(error)
                raise
            finally:
                self._changing = False

    def take_over(self) -> bool:
        """Wake a card whose process died while the card rested, and stop its engines. False if the
        SMU does not wake it: the core is then left alone until a reset. True for any other card
        whose secure OS runs."""
        units = self._units
        if not noted(units.chip):
            return True
        try:
            if not units.smu.running():
                raise FirmwareSilent("the SMU's firmware does not run", unit="SMU")
            give_power(units.chip, units.smu)
            boot.stop(units)
            _note(units.chip).write(0)
        except (FirmwareSilent, FirmwareRejected) as error:
            log.warning("the card rests and does not wake: %s", error)
            self._lose()
            return False
        return True

    def forget(self) -> None:
        """Note that the chip was reset: its core has power."""
        with self._lock:
            self._open()

    # ---- how ---------------------------------------------------------------------------------

    def _leave(self) -> None:
        """End the rest: the core has its power, and may be used."""
        self._changing = True
        try:
            boot.mark(self._units.chip, boot.IN_USE)
            _note(self._units.chip).write(0)
            self._open()
        finally:
            self._changing = False

    def _guard(self) -> None:
        chip = self._units.chip
        self._asleep = True
        chip.bus.rouse = self._rouse
        if not isinstance(chip.doorbells, _Guarded):
            chip.doorbells = cast(Window, _Guarded(chip.doorbells, self))

    def _open(self) -> None:
        chip = self._units.chip
        if isinstance(chip.doorbells, _Guarded):
            chip.doorbells = chip.doorbells.window
        chip.bus.rouse = None
        self.resting = self._asleep = False

    def _give_up(self, error: UgpuError) -> None:
        """Fail all holders: the core does not come back without a reset."""
        self._changing = False
        self._lose()
        for holder in self._holders:
            holder.core.fail(type(error)(error.message, **error.facts))

    def _lose(self) -> None:
        """Leave the core alone until a reset."""
        self._open()
        chip = self._units.chip
        chip.dark, chip.bus.rouse = True, self._rouse

    def _rouse(self, index: int | None) -> bool:
        """Wake the card before an access to the register at `index`, None: to several. Returns
        whether the access can be made: a core that does not come back is left alone."""
        if index is not None and not self._needs_core(index):
            return True
        self.end()
        return self._changing or not self._units.chip.dark

    def _needs_core(self, index: int) -> bool:
        """Return whether the register may be the core's. A register that is in no block may be,
        except for the place that HDP's flush was moved to."""
        if index == self._units.nbio.flush_index:
            return False
        found = self._in_core.get(index)
        if found is None:
            found = self._in_core[index] = not self._units.chip.outside_graphics(index)
        return found


class _Guarded:
    """Doorbells of a card at rest. Ringing one first wakes the card, which puts the window back."""

    def __init__(self, window: Window, rest: Rest) -> None:
        self.window = window
        self._rest = rest

    def __getattr__(self, name: str) -> object:
        self._rest.end()
        return getattr(self.window, name)


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


def look_into(chip: Chip, make_smu: Callable[[], Smu]) -> None:
    """Prepare to read registers of a card that no process drives: wake it if a process died while
    it rested. If it does not wake, its core's registers read as ones. The card stays marked for the
    process that takes it over."""
    if not noted(chip):
        return
    smu = make_smu()
    try:
        if not smu.running():
            raise FirmwareSilent("the SMU's firmware does not run", unit="SMU")
        give_power(chip, smu)
    except (FirmwareSilent, FirmwareRejected) as error:
        log.warning("the card rests and does not wake: %s", error)
        chip.dark = True
        chip.bus.rouse = lambda index: index is not None and chip.outside_graphics(index)


def noted(chip: Chip) -> bool:
    """Return whether a process has left the card at rest, with a core that may have no power."""
    return int(_note(chip).read()) == _NOTE


def _note(chip: Chip) -> BoundRegister:
    return chip.mmhub.MMVM_CONTEXT15_PAGE_TABLE_END_ADDR_LO32
