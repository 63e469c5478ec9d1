"""Errors and reports of resets over the wire, so that a client gets what the server found."""

from __future__ import annotations

from typing import Any

from ugpu.hcq import errors
from ugpu.hcq.errors import TransportError, UgpuError
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level, Planned
from ugpu.hcq.state.text import lines
from ugpu.hcq.work.recovery import Recovery

_TEXT = 4096  # characters of a message or fact, at most
_DEPTH = 3


def to_wire(error: UgpuError) -> list[object]:
    """Return the arguments of an "error" message. A class that is not in hcq.errors is sent as its
    nearest base class that is."""
    facts = {name: _plain(value) for name, value in error.facts.items()}
    kind = next(base for base in type(error).__mro__ if hasattr(errors, base.__name__))
    return [kind.__name__, error.message[:_TEXT], facts]


def from_wire(kind: str, message: str, facts: dict[str, Any]) -> UgpuError:
    """Return the error that the server raised; a class that this version does not have becomes a
    TransportError."""
    error_class = getattr(errors, kind, None)
    if not isinstance(error_class, type) or not issubclass(error_class, UgpuError):
        error_class, message = TransportError, f"{kind}: {message}"
    # A fact must not replace a part of the error itself.
    kept = {
        name: _shown(value)
        for name, value in facts.items()
        if name.isidentifier()
        and name not in ("self", "message")
        and not hasattr(error_class, name)
    }
    error: UgpuError = error_class(lines(message), **kept)
    return error


def _shown(value: object) -> object:
    return lines(value) if isinstance(value, str) else value


def _plain(value: object, depth: int = 0) -> object:
    """Convert a fact to a type that msgpack supports."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else hex(value)
    if isinstance(value, dict) and depth < _DEPTH:
        return {str(key)[:_TEXT]: _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [_plain(part, depth + 1) for part in value[:100]]
    return str(value)[:_TEXT]


def facts_of(properties: dict[str, object]) -> dict[str, object]:
    """Return facts (`info`, `diagnose`) as a message's argument."""
    return {str(name): _plain(value) for name, value in properties.items()}


def recovery_to_wire(recovery: Recovery) -> list[object]:
    """Return a report: the diagnosis, attempts, placements that lost their content."""
    attempts = [
        [a.name, int(a.level), a.worked, a.seconds, a.detail[:_TEXT], a.refused, facts_of(a.proof)]
        for a in recovery.attempts
    ]
    lost = sorted(placement.value for placement in recovery.lost_placements)
    diagnosis = recovery.diagnosis
    return [int(diagnosis.first), diagnosis.reason[:_TEXT], attempts, lost]


def attempts_from_wire(report: list[Any]) -> tuple[Diagnosis, tuple[Attempt, ...]]:
    """Return the diagnosis and attempts of a report."""
    first, reason, attempts = report[:3]
    tried = tuple(Attempt(name, Level(level), *rest) for name, level, *rest in attempts)
    return Diagnosis(Level(first), reason), tried


def plan_to_wire(plan: tuple[Diagnosis, list[Planned]]) -> list[object]:
    """Return a plan: level and reason of the diagnosis, rungs."""
    diagnosis, rungs = plan
    rows = [[p.name, int(p.level), p.cost, p.refusal, p.taken] for p in rungs]
    return [int(diagnosis.first), diagnosis.reason[:_TEXT], rows]


def plan_from_wire(plan: list[Any]) -> tuple[Diagnosis, list[Planned]]:
    """Return the argument of `plan_to_wire`."""
    first, reason, rows = plan
    rungs = [Planned(name, Level(level), *rest) for name, level, *rest in rows]
    return Diagnosis(Level(first), reason), rungs
