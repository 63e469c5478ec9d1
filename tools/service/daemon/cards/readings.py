"""The last telemetry of a daemon's cards, read by threads, and what it was in the last minutes.

A card that does not answer delays only itself: its last telemetry is kept, with its age.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from ugpu.hcq.errors import UgpuError
from ugpu.tools.service.daemon.cards.ward import Ward

log = logging.getLogger(__name__)

# Sensors that are kept for plots; of several with one name (clocks, temperatures) the highest.
SHOWN = (
    "usage_ratio",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "power_watts",
    "clock_hertz",
)
KEPT_S = 600.0
STEP_S = 2.0  # at least between two moments that are kept
Moment = tuple[float, Mapping[str, float]]  # seconds since the epoch, values by sensor


def shown_values(telemetry: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a telemetry's sensors in SHOWN."""
    values: dict[str, float] = {}
    for sample in telemetry["samples"]:
        kind = sample["name"]
        if kind in SHOWN:
            values[kind] = max(sample["value"], values.get(kind, sample["value"]))
    return values


class Readings:
    """The last telemetry by card. pool: threads for reads that may block. Thread-safe."""

    def __init__(
        self, ward: Ward, pool: Executor, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ward = ward
        self._pool = pool
        self._now = now
        self._guard = threading.Lock()
        self._asked: set[str] = set()
        self._read: dict[str, tuple[dict[str, Any], float]] = {}
        self._past: dict[str, deque[Moment]] = {}

    def ask(self) -> None:
        """Start reading the telemetry of all open cards, each in a thread, unless it is under
        way."""
        for owned in list(self._ward.owned):
            with self._guard:
                if not owned.is_open or owned.name in self._asked:
                    continue
                self._asked.add(owned.name)
            self._pool.submit(self._take, owned.name, owned.telemetry)

    def last(self, name: str) -> tuple[dict[str, Any], float] | None:
        """Return a card's telemetry as a JSON map (hcq.state.telemetry) and its age in seconds;
        None if there is none yet."""
        with self._guard:
            reading = self._read.get(name)
        return None if reading is None else (reading[0], self._now() - reading[1])

    def past(self, name: str) -> list[Moment]:
        """Return the moments of a card in the last KEPT_S, oldest first; KEPT_S / STEP_S at
        most."""
        with self._guard:
            return list(self._past.get(name, ()))

    def _keep(self, name: str, telemetry: Mapping[str, Any]) -> None:
        """Keep a moment for plots. The guard is held."""
        past = self._past.setdefault(name, deque(maxlen=int(KEPT_S / STEP_S)))
        when = float(telemetry["time"])
        if past and when < past[-1][0]:
            past.clear()  # the clock was set back
        while past and past[0][0] < when - KEPT_S:
            past.popleft()
        if not past or when >= past[-1][0] + STEP_S:
            past.append((when, shown_values(telemetry)))

    def _take(self, name: str, read: Callable[[], bytes]) -> None:
        try:
            telemetry = json.loads(read())
            with self._guard:
                self._read[name] = telemetry, self._now()
                self._keep(name, telemetry)
        except UgpuError as error:
            log.debug("%s provides no telemetry: %s", name, error)  # its state names the fault
        except Exception:
            log.exception("%s provides no telemetry", name)
        finally:
            with self._guard:
                self._asked.discard(name)
