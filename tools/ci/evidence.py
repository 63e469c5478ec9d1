"""Evidence of a failed run: an exception, or an exit code and crash bundles."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ugpu.hcq import errors
from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import BadArgument, DeviceHang
from ugpu.tools.ci.health import DEVICE_ERRORS
from ugpu.tools.ci.pool import Loan, Pool
from ugpu.tools.ci.verdict import Attempt

SKIPPED = 77  # exit code of a command that skips itself, as in automake and Meson
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Evidence:
    """The outcome of a run. error: class and message; empty if the run did not fail. The other
    attributes are those of `Attempt`."""

    error: str = ""
    device_error: bool = False
    hang: bool = False
    bundle: str = ""
    void: str = ""


def of_error(error: BaseException | None) -> Evidence:
    """Return the evidence of an exception; None: the run passed."""
    if error is None:
        return Evidence()
    return Evidence(
        f"{type(error).__name__}: {line(str(error))}".rstrip(": "),
        isinstance(error, DEVICE_ERRORS),
        isinstance(error, DeviceHang),
        str(getattr(error, "facts", {}).get("bundle", "")),
    )


def of_exit(code: int, *, expired_s: float | None, bundles: Iterable[Path]) -> Evidence:
    """Return the evidence of a command. code: as subprocess reports it. expired_s: the time limit
    that ended it, None if it ended by itself. bundles: those that it wrote; the first belongs to
    the first failure. Bundles of a command that passed belong to failures that the command
    expects."""
    if expired_s is None and code in (0, SKIPPED):
        return Evidence(void=f"it skipped itself (exit code {SKIPPED})" if code else "")
    if expired_s is not None:
        told = f"still ran after {expired_s:g} s"
    elif code < 0:
        told = f"ended by {signal.Signals(-code).name}"
    else:
        told = f"exit code {code}"
    for path in bundles:
        try:
            failed: Any = bundle.read(path).manifest["error"]
            name, message = str(failed["class"]), str(failed["message"])
        except (BadArgument, KeyError, TypeError):
            continue  # damaged: the exit code remains
        kind = getattr(errors, name, None)
        error_class = kind if isinstance(kind, type) else Exception
        return Evidence(
            f"{told}; {name}: {line(message)}",
            issubclass(error_class, DEVICE_ERRORS),
            expired_s is not None or issubclass(error_class, DeviceHang),
            str(path),
        )
    return Evidence(told, hang=expired_s is not None)


def attempt(loan: Loan, evidence: Evidence, pool: Pool) -> Attempt:
    """Return the outcome of a run. The devices of a failed run are tested."""
    if not evidence.error:
        return Attempt(loan.names, void=evidence.void)
    return Attempt(
        loan.names,
        evidence.error,
        evidence.device_error,
        pool.examine(loan),
        evidence.bundle,
        evidence.hang,
    )


def line(text: str) -> str:
    """Return a text's first line that is not empty; a long one is cut between two words."""
    first = next((candidate.strip() for candidate in text.splitlines() if candidate.strip()), "")
    if len(first) <= _MOST_CHARACTERS:
        return first
    words = first[: _MOST_CHARACTERS - 3]
    cut = words if first[len(words)].isspace() else words.rpartition(" ")[0] or words
    return f"{cut.rstrip()} ..."
