"""The recovery service: recovers a failed card by policy, and proves that the card works.

Each round goes one step further. It starts with the ladder at the mildest rung that can help
(hcq.state.ladder). Then come rungs harsher than the one that succeeded but left the card faulty,
and finally closing and booting the device. After each round the self-test decides. A card that
fails too often within a time is not tried again (circuit breaker) until an operator requests it.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.errors import ChipError, FirmwareError, FirmwareNotFound, LinkError, UgpuError
from ugpu.hcq.state.ladder import Level
from ugpu.tools.base.events import REBOOT, RECOVERED, ROUND_FAILED, tell

log = logging.getLogger(__name__)

# TIMEOUT: of the command that reboots the machine; it only has to start the reboot
REBOOT_LIMIT_S = 60.0


@dataclass(frozen=True)
class RecoveryPolicy:
    """rounds: attempts at one failure. pause_s: before the second attempt, doubled before each
    further one. trips: failures within `window_s` after which the circuit breaker opens. reboot: a
    command that reboots the machine when nothing else helps, run at most every `reboot_every_s` and
    only when no lease is held; empty: not allowed."""

    rounds: int = 3
    pause_s: float = 5.0
    trips: int = 5
    window_s: float = 3600.0
    reboot: str = ""
    reboot_every_s: float = 86400.0


class Patient(Protocol):
    """A card as the service treats it. All methods raise UgpuError on failure."""

    @property
    def name(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def gone(self) -> bool:
        """Return whether the device has left the bus."""
        ...

    def reset(self, to: Level | None) -> Level:
        """Climb the ladder, or take the rungs of one level; return the level that worked."""
        ...

    def harsher(self, than: Level) -> list[Level]:
        """Return levels above `than` whose precondition holds, the mildest first."""
        ...

    def reopen(self) -> None:
        """Close the device and boot it."""
        ...

    def prove(self) -> None:
        """Raise unless the self-test passes."""
        ...


def can_help(error: UgpuError) -> bool:
    """Return whether a reset may fix the failure of a device to boot. It cannot fix a missing file,
    a wrong name or another owner."""
    kinds = (ChipError, LinkError, FirmwareError)
    return isinstance(error, kinds) and not isinstance(error, FirmwareNotFound)


class Breaker:
    """Count the failures of one card; `open` is True if there are too many."""

    def __init__(self, policy: RecoveryPolicy, now: Callable[[], float]) -> None:
        self._policy = policy
        self._now = now
        self._times: deque[float] = deque(maxlen=policy.trips + 1)

    def failed(self) -> None:
        """Count a failure."""
        self._times.append(self._now())

    @property
    def open(self) -> bool:
        """Return whether more than `trips` failures occurred within `window_s`."""
        many = len(self._times) > self._policy.trips
        return many and self._times[0] > self._now() - self._policy.window_s

    def forgive(self) -> None:
        """Forget the failures: an operator has requested another attempt."""
        self._times.clear()


class Incidents(Protocol):
    """Where failures are recorded: CardHistory, Scribe."""

    def failed(self, device: str, reason: str) -> int | None: ...

    def ended(self, number: int | None, outcome: str, tried: str) -> None: ...


class Healing:
    """The treatment of one failure of one card."""

    def __init__(
        self,
        patient: Patient,
        policy: RecoveryPolicy,
        history: Incidents,
        pause: Callable[[float], bool],
    ) -> None:
        """pause: waits for the given seconds; returns False if the daemon stops meanwhile."""
        self._patient = patient
        self._policy = policy
        self._history = history
        self._pause = pause
        self._tried: list[str] = []
        self._reached: Level | None = None

    def run(self, reason: str, breaker: Breaker, *, failed: bool = True) -> str:
        """Treat the card; return an empty string if it is healthy, else the reason. failed: whether
        this counts as a failure of the card; False if an operator had only taken it out of use."""
        number = None
        if failed:
            breaker.failed()
            number = self._history.failed(self._patient.name, reason)
        trouble = "ugpud failed; its log has the cause"
        try:
            trouble = self._treat(reason, breaker)
        finally:
            outcome = "quarantined" if trouble else "recovered"
            self._history.ended(number, outcome, ", ".join(self._tried))
        return trouble

    def _treat(self, reason: str, breaker: Breaker) -> str:
        policy, name = self._policy, self._patient.name
        if breaker.open:
            return (
                f"{reason} (circuit breaker: more than {policy.trips} failures within "
                f"{policy.window_s:.0f} s; see to the card, then ugpu lease recover '{name}')"
            )
        for turn in range(policy.rounds):
            if turn and not self._pause(policy.pause_s * 2 ** (turn - 1)):
                return f"{reason} (ugpud stops)"
            if self._patient.gone:
                return f"{reason} (the card is not on the bus)"
            try:
                self._bring_back(last=turn == policy.rounds - 1)
                self._patient.prove()
            except UgpuError as error:
                text = f"{name}: round {turn + 1} of its recovery failed: {error}"
                rung = self._tried[-1] if self._tried else ""
                tell(log, ROUND_FAILED, text, device=name, error=error, rung=rung, round=turn + 1)
                self._tried.append(f"round {turn + 1} failed")
                reason = str(error)
                continue
            tried = ", ".join(self._tried)
            tell(log, RECOVERED, f"{name} is healthy again: {tried}", device=name,
                 rung=self._tried[-1], tried=tried)  # fmt: skip
            return ""
        return f"{reason} (after {', '.join(self._tried)})"

    def _bring_back(self, *, last: bool) -> None:
        patient = self._patient
        if last or not patient.is_open:
            self._tried.append("boot")
            patient.reopen()
            return
        if self._reached is None:
            self._tried.append("reset")
            self._reset(None)
            return
        failure: UgpuError | None = None
        for level in patient.harsher(self._reached):
            self._tried.append(level.label)
            try:
                self._reset(level)
                return
            except UgpuError as error:
                failure = error
                self._reached = level
        if failure is not None:
            raise failure
        self._tried.append("boot")
        patient.reopen()

    def _reset(self, to: Level | None) -> None:
        try:
            self._reached = self._patient.reset(to)
        except UgpuError:
            self._reached = self._reached or Level.POWER  # the ladder was climbed to its end
            raise


def reboot(command: str, device: str, reason: str) -> None:
    """Run the command that reboots the machine; failures are logged."""
    text = f"{device} cannot be recovered ({reason}): the machine is rebooted"
    tell(log, REBOOT, text, device=device, reason=reason)
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, timeout=REBOOT_LIMIT_S
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.error("the machine was not rebooted: %s", error)
        return
    if done.returncode:
        log.error("the machine was not rebooted: %s: %s", command, done.stderr.strip())
