"""Failures of calls."""

from __future__ import annotations

import threading
from typing import Protocol

from ugpu.virtual.adreno.planted import FaultPlan
from ugpu.virtual.node.refusal import refused


class Planned(Protocol):
    """A machine with planned failures."""

    lock: threading.RLock
    plan: FaultPlan


def strike(machine: Planned, call: str) -> None:
    """Raise the failure that a test has planted for a call."""
    with machine.lock:
        code = machine.plan.refusal(call)
    if code:
        raise refused(code, f"{call} (planted)")
