"""Rest: a card without work may lose the power of its cores; the next access wakes it.

Every access that needs the cores wakes the card first: registers are reached through the bus, which
calls `rouse` before each access to a register that may have no power, and doorbells through a guard
around their window. Registers of other blocks, device memory and interrupts can be accessed without
the cores.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from ugpu.hcq.bare.card import Member
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.errors import FirmwareRejected, FirmwareSilent, UgpuError
from ugpu.hcq.transport.base import Window

log = logging.getLogger(__name__)


class Rest(ABC):
    """Rest of one card. holders: the card's list of drivers; lock: theirs.

    resting: the firmware has accepted the message that allows the cores to go off. able: whether
    it can be asked to. rests: how often the card was put to rest.
    """

    def __init__(self, chip: BareChip, lock: threading.RLock, holders: Sequence[Member]) -> None:
        self.chip = chip
        self._lock = lock
        self._holders = holders
        self._changing = False  # the accesses are this object's own
        self._asleep = False  # the guard is on: the cores may have no power
        self._in_core: dict[int, bool] = {}  # by register
        self.resting = False
        self.able = True
        self.rests = 0

    # ---- what the vendor does ----------------------------------------------------------------

    @abstractmethod
    def noted(self) -> bool:
        """Return whether a process has left the card at rest. Reads nothing of the cores."""

    @abstractmethod
    def note_rest(self) -> None:
        """Note for the next process that the card rests, and that its engines are halted."""

    @abstractmethod
    def note_awake(self) -> None:
        """Remove the note, of a card that has its power."""

    @abstractmethod
    def allow(self) -> None:
        """Allow the cores to go off. FirmwareRejected where the firmware does not know that."""

    @abstractmethod
    def wake(self) -> None:
        """Wait until the cores have their power. FirmwareSilent, FirmwareRejected."""

    @abstractmethod
    def wake_found(self) -> None:
        """Wake a card that another process has left at rest, stop its engines and remove the note.
        FirmwareSilent, FirmwareRejected."""

    @abstractmethod
    def needs_power(self, index: int) -> bool:
        """Return whether the register at dword `index` may be a core's."""

    def begin(self) -> bool:
        """Let the cores go off; False where a holder has work or has failed, or where the firmware
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
                self.note_rest()
                self.allow()
                self.resting = True
            except FirmwareRejected as error:
                log.warning("the card does not rest: %s", error)
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
        """Make sure that the cores have their power; idempotent. FirmwareSilent, FirmwareRejected
        and LinkError are failures of all holders. Any other exception leaves the card at rest."""
        with self._lock:
            if not self._asleep or self._changing:
                return
            self._changing, self.resting = True, False
            try:
                self.wake()
                self._leave()
            except UgpuError as error:
                self._give_up(error)
                raise
            finally:
                self._changing = False

    def take_over(self) -> bool:
        """Wake a card whose process died while the card rested, and stop its engines. False if it
        does not wake: its cores are then left alone until a reset. True for any other card whose
        firmware runs."""
        if not self.noted():
            return True
        try:
            self.wake_found()
        except (FirmwareSilent, FirmwareRejected) as error:
            log.warning("the card rests and does not wake: %s", error)
            self._lose()
            return False
        return True

    def forget(self) -> None:
        """Note that the chip was reset: its cores have power."""
        with self._lock:
            self._open()

    # ---- how ---------------------------------------------------------------------------------

    def _leave(self) -> None:
        """End the rest: the cores have their power, and may be used."""
        self._changing = True
        try:
            self.note_awake()
            self._open()
        finally:
            self._changing = False

    def _guard(self) -> None:
        chip = self.chip
        self._asleep = True
        chip.bus.rouse = self._rouse
        if not isinstance(chip.doorbells, _Guarded):
            chip.doorbells = cast(Window, _Guarded(chip.doorbells, self))

    def _open(self) -> None:
        chip = self.chip
        if isinstance(chip.doorbells, _Guarded):
            chip.doorbells = chip.doorbells.window
        chip.bus.rouse = None
        self.resting = self._asleep = False

    def _give_up(self, error: UgpuError) -> None:
        """Fail all holders: the cores do not come back without a reset."""
        self._changing = False
        self._lose()
        for holder in self._holders:
            holder.core.fail(type(error)(error.message, **error.facts))

    def _lose(self) -> None:
        """Leave the cores alone until a reset."""
        self._open()
        chip = self.chip
        chip.dark, chip.bus.rouse = True, self._rouse

    def _rouse(self, index: int | None) -> bool:
        """Wake the card before an access to the register at `index`, None: to several. Returns
        whether the access can be made: cores that do not come back are left alone."""
        if index is not None and not self._needs_core(index):
            return True
        self.end()
        return self._changing or not self.chip.dark

    def _needs_core(self, index: int) -> bool:
        found = self._in_core.get(index)
        if found is None:
            found = self._in_core[index] = self.needs_power(index)
        return found


class _Guarded:
    """Doorbells of a card at rest. Ringing one first wakes the card, which puts the window back."""

    def __init__(self, window: Window, rest: Rest) -> None:
        self.window = window
        self._rest = rest

    def __getattr__(self, name: str) -> object:
        self._rest.end()
        return getattr(self.window, name)
