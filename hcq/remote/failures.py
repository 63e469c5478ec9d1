"""Errors over the wire: class, message and facts, so that a client raises what the server did."""

from __future__ import annotations

from typing import Any

from hcq import errors
from hcq.errors import TransportError, UgpuError

_TEXT = 4096  # characters of a message or fact, at most
_DEPTH = 3


def to_wire(error: UgpuError) -> list[object]:
    """Return the arguments of an "error" message."""
    facts = {name: _plain(value) for name, value in error.facts.items()}
    return [type(error).__name__, error.message[:_TEXT], facts]


def from_wire(kind: str, message: str, facts: dict[str, Any]) -> UgpuError:
    """Return the error that the server raised; a class that this version does not have is a
    TransportError."""
    made = getattr(errors, kind, None)
    if not isinstance(made, type) or not issubclass(made, UgpuError):
        return TransportError(f"{kind}: {message}", **facts)
    found: UgpuError = made(message, **{n: v for n, v in facts.items() if n.isidentifier()})
    return found


def _plain(value: object, depth: int = 0) -> object:
    """What msgpack carries of a fact."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else hex(value)
    if isinstance(value, dict) and depth < _DEPTH:
        return {str(key)[:_TEXT]: _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [_plain(each, depth + 1) for each in value[:100]]
    return str(value)[:_TEXT]


def facts_of(found: dict[str, object]) -> dict[str, object]:
    """Return facts (`info`, `diagnose`) as a message's argument."""
    return {str(name): _plain(value) for name, value in found.items()}
