"""Values in a server's replies, checked before they are used: the server is not trusted either."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.wire import WireError, is_number
from ugpu.hcq.state.checks import option_types

_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


@contextlib.contextmanager
def checked(operation: str) -> Iterator[None]:
    """Turn any error of reading a reply in a `with` block into a WireError."""
    try:
        yield
    except UgpuError as error:
        raise WireError(f"the daemon's reply to {operation!r} is malformed: {error}") from None
    except _DAMAGE as error:
        raise WireError(f"the daemon's reply to {operation!r} is malformed: {error}") from None


def number(value: object) -> int:
    """Return an integer from 0 to 2^64 - 1; ValueError."""
    if not is_number(value) or not isinstance(value, int):
        raise ValueError(f"expected a number, got {str(value)[:40]!r}")
    return value


def text(value: object) -> str:
    """Return a text; ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value


def real(value: object) -> float:
    """Return a finite number; ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, got {str(value)[:40]!r}")
    return float(value)


def facts(value: object) -> dict[str, object]:
    """Return facts by name; ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a map, got {type(value).__name__}")
    return {text(name): fact for name, fact in value.items()}


def fields(kind: type, values: dict[str, object]) -> None:
    """Raise BadArgument unless the values have the types that a dataclass declares; ints are
    numbers as well."""
    option_types(kind, values)
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
            raise ValueError(f"{name} is out of range")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
