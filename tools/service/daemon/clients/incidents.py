"""Faults and resets of a lease, told as events with the lease, its holder and the kernel.

A client that faults in a loop is told of once in EVERY_S; the next event reports how many were left
out, so that its events do not push those of others out of the feed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.text import one_line
from ugpu.hcq.work.recovery import Recovery
from ugpu.tools.base.events import LEASE_FAULT, LEASE_RESET, Kind, tell

log = logging.getLogger(__name__)

EVERY_S = 1.0  # between two events of one kind of one lease


class Incidents:
    """What happens to the work of one lease. Thread-safe only in so far as the log is: two threads
    may both tell."""

    def __init__(
        self, device: str, lease: int, holder: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._device = device
        self._lease = lease
        self._holder = holder
        self._now = now
        self._told: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def fault(self, error: UgpuError) -> None:
        """Tell that the lease's work failed."""
        kernel = error.facts.get("kernel")
        self._tell(LEASE_FAULT, f"{type(error).__name__}: {error.message}", error, kernel=kernel)

    def reset(self, recovery: Recovery) -> None:
        """Tell that the holder had the device reset."""
        self._tell(
            LEASE_RESET, f"its holder had the device reset ({recovery.attempts[-1].name})", None
        )

    def _tell(self, kind: Kind, what: str, error: UgpuError | None, **fields: object) -> None:
        now = self._now()
        last = self._told.get(kind.name)
        if last is not None and now - last < EVERY_S:
            self._silent[kind.name] = self._silent.get(kind.name, 0) + 1
            return
        self._told[kind.name] = now
        more = self._silent.pop(kind.name, 0)
        left_out = f" ({more} more since the last one)" if more else ""
        holder = one_line(self._holder)
        tell(
            log,
            kind,
            f"{self._device}: lease {self._lease} of {holder}: {one_line(what)}{left_out}",
            device=self._device,
            lease=self._lease,
            holder=holder,
            error=error,
            **fields,
        )
