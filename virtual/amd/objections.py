"""Objections of the virtual chip, classified by a board's behaviour for the same access or packet.

fault
    The board fails: it drops the access, hangs the queue, reports an error, or damages data. The
    model does the same and records the reason.
violation
    The board tolerates it, as shown by a driver that is proven on boards, or the vendor's document
    forbids it without stating the consequence. The model continues as boards do, and counts and
    logs the violation.
note
    Boards accept it, and drivers that are proven on boards do it. Check notes when something else
    fails.

A driver that works on boards causes at most violations on the model. The evidence for a level is
named where the objection is raised. Without evidence, an objection that changes the model's
behaviour is a fault, and any other is a violation.
"""

from __future__ import annotations

import enum
import logging

log = logging.getLogger(__name__)
MOST = 1000  # texts kept for each level


class Level(enum.Enum):
    """A board's behaviour for an access that the model objects to; see the module docstring."""

    FAULT = "fault"
    VIOLATION = "violation"
    NOTE = "note"


# Faults are logged only at INFO, because the driver reports a failure of the board itself.
_LOGGED = {Level.FAULT: logging.INFO, Level.VIOLATION: logging.WARNING, Level.NOTE: logging.DEBUG}


class Objections:
    """All objections of a chip since it was built: each distinct text with its count.

    violations: texts of faults and violations, in the order of their first appearance. notes: texts
    of notes, and of faults that the chip reports to its driver and that a kernel may have caused.
    A caller may clear both lists to start afresh. Called under the chip's lock.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.notes: list[str] = []
        self._counts: dict[Level, dict[str, int]] = {level: {} for level in Level}

    def record(self, level: Level, text: str, *, reported: bool = False) -> None:
        """Count an objection, and log it the first time it is raised.

        reported: the chip itself reports this fault to the driver.
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
        """Return the texts of a level, each with its count."""
        return dict(self._counts[level])

    def summary(self) -> str:
        """Summarise faults and violations for the log at the chip's close; "" if there are none."""
        faults, violations = self._counts[Level.FAULT], self._counts[Level.VIOLATION]
        if not faults and not violations:
            return ""
        parts = [
            f"{sum(counts.values())} {name} of {len(counts)} kinds (first: {next(iter(counts))})"
            for name, counts in (("faults", faults), ("violations", violations))
            if counts
        ]
        return "; ".join(parts)
