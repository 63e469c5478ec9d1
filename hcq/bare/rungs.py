"""Rungs: the ladder (hcq.state.ladder) of an open card, whose holders it tells and restores.

What each rung does to the chip is the vendor's. A rung counts only when every queue that it set up
again has worked correctly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.card import BareCard, Member
from ugpu.hcq.errors import DeviceLost, NotSupported
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Ladder, Level, PlainRung, Planned
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.pci.config import capability
from ugpu.hcq.uapi import constants
from ugpu.hcq.work.queue import HardwareQueue
from ugpu.hcq.work.recovery import Recovery

_MEMORY = "work of all queues and the content of device memory; programs are loaded again"

Q = TypeVar("Q", bound=HardwareQueue)


class ResetHolder(Member, Protocol):
    """What a reset uses of a holder; see hcq.bare.holder.BareHolder."""

    vram_lost: bool
    spoiled: bool
    reset_report: list[Attempt]

    @property
    def card(self) -> BareCard[Any]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...
    def rewrite(self) -> None: ...


D = TypeVar("D", bound=ResetHolder)


class Rungs(ABC, Generic[D, Q]):
    """The rungs of one reset. failed: the queues whose work failed; those and `restarted` are of
    `holder`. restarted: the queues that the last rung to act set up again. concerned: the failed
    ones, empty if all or unknown."""

    def __init__(self, holder: D, queues: Sequence[Q], failed: Sequence[Q]) -> None:
        """queues: all of the holder. failed: those whose work failed."""
        self.holder = holder
        self.restarted: list[Q] = []
        # Nothing is known about an interrupted reset: all queues are set up again.
        self.failed = [*(queues if holder.unfinished is not None else failed)]
        every = len(self.failed) == len(queues)
        self.concerned: tuple[Q, ...] = () if every else tuple(self.failed)

    # ---- what the vendor does ----------------------------------------------------------------

    @abstractmethod
    def all(self) -> list[PlainRung]:
        """Every rung, mildest first."""

    @abstractmethod
    def diagnose(self) -> Diagnosis:
        """Return the mildest level that can help, and why. The card is present."""

    @abstractmethod
    def quiet(self) -> None:
        """Stop the queues of all holders that can be stopped, if the chip responds: none should use
        host memory when it is cut off."""

    @abstractmethod
    def restart_all(self) -> None:
        """Set all queues of the holder up again, on a card that was booted; see `restarted`."""

    @abstractmethod
    def prove(self, level: Level) -> dict[str, object]:
        """Have the restarted queues work; return what showed that they do. ChipError."""

    # ---- for the vendor's list ---------------------------------------------------------------

    def rung(
        self,
        name: str,
        level: Level,
        cost: str,
        act: Callable[[], object],
        check: Callable[[], object] = lambda: None,
    ) -> PlainRung:
        """Return a rung that does `act`. From a whole block of the chip on, it concerns all holders
        of the card."""
        whole, holder, card = level > Level.QUEUE, self.holder, self.holder.card

        def noted() -> None:
            """Act. ORDER: the note is first, so that the next reset detects an interrupted one."""
            former = holder.unfinished
            holder.unfinished = level if former is None else max(level, former)
            if whole:
                card.fail_others(holder)
            act()
            if whole:
                card.release_stuck()

        def allowed() -> None:
            if whole:
                card.check_whole_reset(holder)
            check()

        return PlainRung(name, level, cost, noted, partial(self.prove, level), allowed)

    def boot_rung(
        self,
        name: str,
        level: Level,
        strike: Callable[[], object],
        check: Callable[[], object],
    ) -> PlainRung:
        """Return a rung that resets everything by `strike`, and boots."""
        return self.rung(name, level, _MEMORY, partial(self._boot_again, strike), check)

    def power_rung(self, level: Level, strike: Callable[[], object]) -> PlainRung:
        """Return the rung that takes up a chip without power by `strike`, and boots."""
        return self.boot_rung("boot after power loss", level, strike, self._check_dark)

    def _check_dark(self) -> None:
        if not self.holder.card.lost():
            raise NotSupported("the chip has power")

    def slot_rungs(self, reset: Callable[[ResetKind], object]) -> list[PlainRung]:
        """Return the rungs that reset the chip from its slot. reset: makes such a reset, and waits
        until the chip can be booted."""
        transport = self.holder.transport
        return [
            self.boot_rung(name, level, partial(reset, kind), partial(check_kind, transport, kind))
            for name, level, kind in (
                ("function-level reset", Level.FLR, ResetKind.FUNCTION),
                ("bus reset", Level.BUS, ResetKind.BUS),
                ("power cycle", Level.POWER, ResetKind.POWER),
            )
        ]

    def _boot_again(self, strike: Callable[[], object]) -> None:
        """Boot after a reset of everything. DEVICE memory is lost; page tables and programs are
        restored. ORDER: firmware must be found before the chip is reset."""
        holder, card = self.holder, self.holder.card
        card.find_firmware()
        self.quiet()
        for other in card.holders:
            other.vram_lost = True
            other.spoiled = other is not holder
        strike()
        card.boot_again()
        for other in card.holders:
            other.rewrite()
        self.restart_all()

    def settle(self) -> None:
        """Check the device after a rung worked; an error here is the reset's."""


def plan(rungs: Rungs[D, Q], only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
    """Return what `recover` would do; changes nothing, apart from what `diagnose` does."""
    holder, diagnosis = rungs.holder, rungs.diagnose()
    return diagnosis, Ladder(holder.name, rungs.all(), holder.clock).plan(diagnosis, only)


def recover(rungs: Rungs[D, Q], only: Level | None = None) -> Recovery:
    """Bring the device back by the mildest rung that can help and works, or by the rungs of level
    `only`; raises the error of the last one."""
    holder = rungs.holder
    ladder = Ladder(holder.name, rungs.all(), holder.clock)
    if not holder.transport.present():
        raise DeviceLost(
            f"{holder.name} does not respond, so it cannot be reset",
            device=holder.name,
            remedy=remedies.LINK,
        )
    if holder.unfinished is None and not holder.core.healer.repeated:
        holder.vram_lost = holder.spoiled
    diagnosis = rungs.diagnose()
    try:
        ladder.climb(diagnosis, only, give_up=lambda: not holder.transport.present())
    finally:
        holder.reset_report = [attempt for attempt in ladder.attempts if not attempt.refused]
    holder.unfinished = None
    holder.spoiled = False
    rungs.settle()
    lost: frozenset[Placement] = frozenset()
    if holder.vram_lost:
        host = holder.transport.traits.host_memory
        lost = frozenset({Placement.DEVICE} if host else Placement)
    attempts, restarted = tuple(ladder.attempts), tuple(rungs.restarted)
    return Recovery(diagnosis, attempts, restarted, rungs.concerned, lost)


def check_kind(transport: Transport, kind: ResetKind) -> None:
    """Raise NotSupported if the transport cannot make such a reset, or the function cannot take
    it."""
    if kind not in transport.traits.resets:
        raise NotSupported(f"{transport.name} offers no {kind.value} reset")
    if kind is not ResetKind.FUNCTION:
        return
    regs, read = constants("pci_regs"), transport.config_read
    place = capability(read, regs.PCI_CAP_ID_EXP)
    if place is None or not read(place + regs.PCI_EXP_DEVCAP, 4) & regs.PCI_EXP_DEVCAP_FLR:
        raise NotSupported("the function has no function-level reset (Device Capabilities)")
