"""Stages of a start: named, measured, and named in the errors that are raised in them; and the
named states of units, which show how far a chip in any state is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.errors import FirmwareSilent, NotRecorded, UgpuError, UnitTimeout
from ugpu.hcq.registers.fields import BoundRegister
from ugpu.hcq.state import trace
from ugpu.hcq.state.ladder import Diagnosis, Level

log = logging.getLogger(__name__)

StageHook = Callable[[str, float], None]


class Stages:
    """Runs stages, measures them, reports them to subscribers. done: (name, seconds) in order.

    An error raised in a stage gets the stage's name as the fact `stage`. Errors, the demo, the
    ladder of first contact and recordings use the same names.
    """

    def __init__(self, hook: StageHook | None = None) -> None:
        """hook(name, seconds) is called after each stage; an exception from it ends the start."""
        self.done: list[tuple[str, float]] = []
        self.hook = hook

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the block as stage `name`. A stage that raises is not in `done`."""
        start = time.perf_counter()
        log.debug("stage %s", name)
        with trace.step("boot", stage=name):
            try:
                yield
            except UgpuError as error:
                error.add_facts(stage=name)
                raise
        seconds = time.perf_counter() - start
        self.done.append((name, seconds))
        if self.hook is not None:
            self.hook(name, seconds)


@contextmanager
def or_silent(
    text: str, state: Callable[[], Mapping[str, object]] = dict, **facts: object
) -> Iterator[None]:
    """Raise FirmwareSilent(text) where a wait in the block reaches its limit, with the facts of the
    wait. state: reads what explains it, after the limit; facts: known before."""
    try:
        yield
    except UnitTimeout as error:
        raise FirmwareSilent(text, **{**error.facts, **facts, **state()}) from error


@dataclass(frozen=True)
class State:
    """The state of one `unit`. name: for people and programs. ok: the unit works, or waits to be
    booted; None: not known, because a recording lacks it. registers: the values it was read from.
    """

    unit: str
    name: str
    ok: bool | None
    meaning: str
    remedy: str
    registers: dict[str, int]


def states_of(
    chip: BareChip, looks: Callable[[], Iterable[tuple[str, Callable[[], Iterator[State]]]]]
) -> list[State]:
    """Return the states of a chip's units; one state if the chip does not answer at all. looks:
    yields each unit and the function that finds its states."""
    try:
        lost = chip.lost()
    except NotRecorded:
        lost = False
    if not lost:
        return [state for unit, look in looks() for state in tried(unit, look)]
    if chip.unplaced():
        meaning = "a reset of its slot cleared the addresses of its BARs; nothing restored them"
        return [State("link", "no addresses", False, meaning, remedies.PLACES, {})]
    meaning = "the card has left the bus"
    if chip.transport.present():
        meaning = (
            "registers read as ones but configuration space answers: the link sleeps or memory "
            "decoding is off"
        )
    return [State("link", "no answer", False, meaning, remedies.LINK, {})]


def needs(states: Iterable[State], levels: Mapping[tuple[str, str], Level]) -> list[Diagnosis]:
    """Return the resets that states require. levels: the mildest that can help, by unit and
    name."""
    return [
        Diagnosis(level, f"{state.unit}: {state.name}: {state.meaning}")
        for state in states
        if not state.ok and (level := levels.get((state.unit, state.name))) is not None
    ]


def mildest(found: Sequence[Diagnosis]) -> Diagnosis:
    """Return the mildest reset that can help a card that no process drives. found: see `needs`."""
    if found:
        return max(found, key=lambda need: need.first)
    return Diagnosis(Level.WARM, "no unit reports a fault: opening the device may be enough")


def tried(unit: str, look: Callable[[], Iterator[State]]) -> Iterator[State]:
    """Yield the states that `look` finds; if it cannot read one, yield the reason."""
    try:
        yield from look()
    except NotRecorded as error:
        lacking = error.message.removeprefix("not recorded: ")
        yield State(unit, "not recorded", None, lacking, "", {})
    except UgpuError as error:
        yield State(unit, "unreadable", False, str(error), remedies.LINK, {})


def shown_with(registers: dict[str, int], **more: BoundRegister) -> dict[str, int]:
    """Add further registers, which are only shown, to `registers`; of a recording, those it has."""
    for name, register in more.items():
        with suppress(NotRecorded):
            registers[name] = int(register.read())
    return registers
