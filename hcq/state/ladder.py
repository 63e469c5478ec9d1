"""The recovery ladder: rungs from one queue to the power supply, of driver and transport.

A rung has a precondition (`check`, which changes nothing), an action, a proof and a cost. A
diagnosis names the mildest level that can help; the ladder climbs from there, one rung at a time,
until one proves that the device works. Every rung that was tried or refused is in the report.

    queue       take queues off the hardware and set them up again      work of these queues
    pipe        reset one pipe of a command processor                   work of the pipe's queues
    block       reset the command processors and copy engines           all work
    warm        set everything up again below running firmware          all work
    mode2       reset graphics core and copy engines by firmware        all work
    mode1       reset the chip, except its bus interface                all work, device memory
    flr         function-level reset                                    all work, device memory
    bus         secondary bus reset at the card's port                  the same of the whole card
    rescan      take the card off the bus and find it again             its addresses on the bus
    d3cold      have the platform cycle the port's power                everything
    power       cycle the supply: a bridge's, or a configured command   everything
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.hcq.state import trace
from ugpu.hcq.state.clock import Clock

log = logging.getLogger(__name__)


class Level(enum.IntEnum):
    """Scope of a rung, the mildest first. `Level.named("mode1")` returns one by its name."""

    QUEUE = 1
    PIPE = 2
    BLOCK = 3
    WARM = 4
    MODE2 = 5
    MODE1 = 6
    FLR = 7
    BUS = 8
    RESCAN = 9
    D3COLD = 10
    POWER = 11

    @property
    def label(self) -> str:
        """The name that users write."""
        return self.name.lower()

    @classmethod
    def named(cls, text: str) -> Level:
        """Return the level of that name; BadArgument lists the names."""
        try:
            return cls[text.upper()]
        except KeyError:
            labels = ", ".join(level.label for level in cls)
            raise BadArgument(f"expected a rung ({labels}), got {text!r}") from None


class Rung(Protocol):
    """One way to recover a device.

    Attributes:
        cost: text that states which state it loses.
    """

    @property
    def name(self) -> str: ...
    @property
    def level(self) -> Level: ...
    @property
    def cost(self) -> str: ...

    def check(self) -> None:
        """Raise unless the precondition holds; changes nothing. NotSupported if this device or
        machine cannot do it, DeviceBusy if other users would be affected, AccessDenied without
        permission."""
        ...

    def act(self) -> None:
        """Carry out the rung. After an exception this rung, or a harsher one, can be tried again;
        everything else that it touched is restored."""
        ...

    def prove(self) -> dict[str, object]:
        """Return the proof that it worked; raise (DeviceLost, ChipError...) if it did not."""
        ...


@dataclass(frozen=True)
class Climbed:
    """A successful rung.

    Attributes:
        rung: its name.
        seconds: its duration.
        proof: what showed that it worked.
    """

    rung: str
    seconds: float
    proof: dict[str, object] = field(default_factory=dict)


def climb(rung: Rung, clock: Clock | None = None) -> Climbed:
    """Check, act, prove. Errors carry the facts `rung` and `phase` (check, act or prove)."""
    clock = clock if clock is not None else Clock()
    begin, phase = clock.now(), "check"
    try:
        rung.check()
        phase = "act"
        rung.act()
        phase = "prove"
        return Climbed(rung.name, clock.now() - begin, rung.prove())
    except UgpuError as error:
        error.add_facts(rung=rung.name, phase=phase)
        raise


@dataclass(frozen=True)
class Diagnosis:
    """The result of analysing a failure.

    Attributes:
        first: the mildest level that can help.
        reason: text for people: the failure, or the named state of a unit.
    """

    first: Level
    reason: str


@dataclass(frozen=True)
class Attempt:
    """A rung in a report.

    Attributes:
        name: what it resets.
        level: of the ladder.
        worked: whether its proof succeeded.
        seconds: its duration.
        detail: the error's text if it did not work.
        refused: whether its precondition does not hold, so that nothing was done.
        proof: what showed that it worked.
    """

    name: str
    level: Level
    worked: bool
    seconds: float
    detail: str = ""
    refused: bool = False
    proof: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.worked:
            return f"{self.name} worked"
        return f"{self.name} {'not possible' if self.refused else 'failed'}: {self.detail}"


@dataclass(frozen=True)
class Planned:
    """A rung in a plan.

    Attributes:
        name: what it resets.
        level: of the ladder.
        cost: what is lost by it.
        refusal: why its precondition does not hold; empty if it does.
        taken: whether the ladder would reach it, if no milder rung works.
    """

    name: str
    level: Level
    cost: str
    refusal: str
    taken: bool


def outcome(attempts: Sequence[Attempt]) -> str:
    """Return a report as one line."""
    tried = [attempt for attempt in attempts if not attempt.refused]
    return ", ".join(
        f"{attempt.name} {'worked' if attempt.worked else 'failed'}" for attempt in tried
    )


class Ladder:
    """The rungs of one device, mildest first; several may share a level.

    Attributes:
        attempts: the report of the last `climb`, even if an exception ended it.
    """

    def __init__(self, device: str, rungs: Sequence[Rung], clock: Clock | None = None) -> None:
        assert [rung.level for rung in rungs] == sorted(rung.level for rung in rungs)
        self.device = device
        self.rungs = tuple(rungs)
        self.attempts: list[Attempt] = []
        self._clock = clock if clock is not None else Clock()

    def _chosen(self, first: Level, only: Level | None) -> list[Rung]:
        if only is None:
            return [rung for rung in self.rungs if rung.level >= first]
        chosen = [rung for rung in self.rungs if rung.level == only]
        if not chosen:
            have = ", ".join(dict.fromkeys(rung.level.label for rung in self.rungs))
            raise BadArgument(f"{self.device} has no rung {only.label!r}; it has: {have}")
        return chosen

    def plan(self, diagnosis: Diagnosis, only: Level | None = None) -> list[Planned]:
        """Return what `climb` would do, judged by preconditions; changes nothing."""
        chosen = self._chosen(diagnosis.first, only)
        planned = []
        for rung in self.rungs:
            refusal = ""
            try:
                rung.check()
            except UgpuError as error:
                refusal = str(error)
            taken = rung in chosen and not refusal
            planned.append(Planned(rung.name, rung.level, rung.cost, refusal, taken))
        return planned

    def climb(
        self,
        diagnosis: Diagnosis,
        only: Level | None = None,
        *,
        give_up: Callable[[], bool] = lambda: False,
    ) -> list[Attempt]:
        """Try rungs from `diagnosis.first` on, or those of level `only`, until one works; return
        the report. If none works, raises the error of the last one tried, or that of the first one
        if no precondition holds. give_up: called after a failure; returns True if no further rung
        can help."""
        self.attempts = []
        last: UgpuError | None = None
        for rung in self._chosen(diagnosis.first, only):
            begin = self._clock.now()
            try:
                with trace.step("rung", device=self.device, rung=rung.name):
                    done = climb(rung, self._clock)
            except UgpuError as error:
                refused = error.facts.get("phase") == "check"
                if last is None or not refused:
                    last = error
                self._record(rung, False, self._clock.now() - begin, str(error), refused=refused)
                if not refused and give_up():
                    break
                continue
            self._record(rung, True, done.seconds, proof=done.proof)
            log.warning("%s: reset: %s", self.device, outcome(self.attempts))
            return self.attempts
        assert last is not None
        tried = outcome(self.attempts) or "no rung is possible"
        log.error("%s: no reset helps: %s", self.device, tried)
        last.add_facts(tried=tried)
        raise last

    def _record(
        self,
        rung: Rung,
        worked: bool,
        seconds: float,
        detail: str = "",
        *,
        refused: bool = False,
        proof: dict[str, object] | None = None,
    ) -> None:
        attempt = Attempt(rung.name, rung.level, worked, seconds, detail, refused, proof or {})
        self.attempts.append(attempt)
        log.debug("%s: %s", self.device, attempt)


class PlainRung:
    """A rung made from functions."""

    def __init__(
        self,
        name: str,
        level: Level,
        cost: str,
        act: Callable[[], object],
        prove: Callable[[], dict[str, object]],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.name, self.level, self.cost = name, level, cost
        self._check, self._act, self._prove = check, act, prove

    def check(self) -> None:
        """See Rung."""
        self._check()

    def act(self) -> None:
        """See Rung."""
        self._act()

    def prove(self) -> dict[str, object]:
        """See Rung."""
        return self._prove()

    def __repr__(self) -> str:
        return f"<rung {self.name} ({self.level.label})>"
