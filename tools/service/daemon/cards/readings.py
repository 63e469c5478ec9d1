"""The last telemetry of a daemon's cards, read by threads.

A card that does not answer delays only itself: its last telemetry is kept, with its age.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from ugpu.hcq.errors import UgpuError
from ugpu.tools.service.daemon.cards.ward import Ward

log = logging.getLogger(__name__)


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
            found = self._read.get(name)
        return None if found is None else (found[0], self._now() - found[1])

    def _take(self, name: str, read: Callable[[], bytes]) -> None:
        try:
            found = json.loads(read())
            with self._guard:
                self._read[name] = found, self._now()
        except UgpuError as error:
            log.debug("%s provides no telemetry: %s", name, error)  # its state names the fault
        except Exception:
            log.exception("%s provides no telemetry", name)
        finally:
            with self._guard:
                self._asked.discard(name)
