"""Failures of calls."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from ugpu.virtual.adreno.planted import Plan


class Planned(Protocol):
    """A machine with planned failures."""

    lock: threading.RLock
    plan: Plan


def refused(code: int, why: str) -> OSError:
    """Return the exception of a failed call of the kernel driver."""
    return OSError(code, f"{os.strerror(code)}: {why}")


def strike(machine: Planned, call: str) -> None:
    """Raise the failure that a test has planted for a call."""
    with machine.lock:
        code = machine.plan.refusal(call)
    if code:
        raise refused(code, f"{call} (planted)")
