"""Failures of calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.virtual.adreno.machine import VirtualMachine


def refused(code: int, why: str) -> OSError:
    """Return the exception of a failed call of the kernel driver."""
    return OSError(code, f"{os.strerror(code)}: {why}")


def strike(machine: VirtualMachine, call: str) -> None:
    """Raise the failure that a test has planted for a call."""
    with machine.lock:
        code = machine.plan.refusal(call)
    if code:
        raise refused(code, f"{call} (planted)")
