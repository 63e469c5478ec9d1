"""Objections of the virtual chip, classified by a board's behaviour for the same access or packet.

fault
    The board fails: it drops the access, hangs the queue, reports an error, or damages data. The
    model does the same, and records why.
violation
    The board forgives it, as a driver that is proven on boards shows, or the vendor's document
    forbids it without telling what follows. The model goes on as boards do, counts it and shows it.
note
    Boards accept it; drivers that are proven on boards do it. Worth a look where something else
    fails.

A driver that works on boards runs on the model with violations at most. Evidence for a level is
named where an objection is raised; without evidence an objection that changes what the model does
is a fault, and one that does not is a violation.
"""

from __future__ import annotations

import enum
import logging

log = logging.getLogger(__name__)
MOST = 1000  # texts kept of each level


class Level(enum.Enum):
    """Behaviour of a board on an access to which the model objects; see the module."""

    FAULT = "fault"
    VIOLATION = "violation"
    NOTE = "note"


# The driver reports what a board fails at by itself.
_LOGGED = {Level.FAULT: logging.INFO, Level.VIOLATION: logging.WARNING, Level.NOTE: logging.DEBUG}


class Objections:
    """All objections of a chip since it was built: each text once, with how often it was raised.

    violations: texts of faults and violations, in the order of their first appearance; notes: those
    of notes, and of faults that the chip reports to its driver and that may be a kernel's doing.
    Both lists may be cleared by a caller who begins anew. Called under the chip's lock.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.notes: list[str] = []
        self._counts: dict[Level, dict[str, int]] = {level: {} for level in Level}

    def record(self, level: Level, text: str, *, reported: bool = False) -> None:
        """Count an objection; log it when it comes for the first time.

        reported: the chip tells the driver of this fault by itself.
        """
        counts = self._counts[level]
        listed = self.notes if reported or level is Level.NOTE else self.violations
        if text in counts:
            counts[text] += 1
        elif len(counts) < MOST:
            counts[text] = 1
            log.log(_LOGGED[level], "%s: %s", level.value, text)
        else:
            return
        if text not in listed:
            listed.append(text)

    def of(self, level: Level) -> dict[str, int]:
        """Return the texts of a level with how often each was raised."""
        return dict(self._counts[level])

    def summary(self) -> str:
        """Say how many there are, "" without any but notes: for the end of a chip's life."""
        faults, violations = self._counts[Level.FAULT], self._counts[Level.VIOLATION]
        if not faults and not violations:
            return ""
        parts = [
            f"{sum(counts.values())} {name} of {len(counts)} kinds (first: {next(iter(counts))})"
            for name, counts in (("faults", faults), ("violations", violations))
            if counts
        ]
        return "; ".join(parts)
