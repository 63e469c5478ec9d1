"""A ugpud's cards and leases as metric families: states, leases, failures, MTBF, MTTR.

A thread of its own queries the daemon: a scrape returns the known data and never waits.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

from prometheus_client.core import Metric

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.address import parse
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state import threads
from ugpu.hcq.state.config import config
from ugpu.tools.base.events import TROUBLES
from ugpu.tools.service.daemon.clients.leases import State
from ugpu.tools.service.metrics.families import Families

LIMIT_S = 2.0  # TIMEOUT: how long a daemon may take for its lists
#: devices and leases, as in `ugpu lease ls --json`
Found = tuple[list[dict[str, Any]], dict[str, Any]]


def leases(answer: Found | None, age_s: float) -> Iterator[Metric]:
    """Yield the metrics of one query of a daemon; None: it did not answer."""
    metrics = Families()
    text = "1 while ugpud answers."
    metrics.gauge("ugpu_daemon_up", text, float(answer is not None))
    if answer is not None:
        metrics.gauge("ugpu_daemon_age_seconds", "Age of what ugpud told.", age_s)
        cards, listed = answer
        for card in cards:
            _card(metrics, card)
        held = Counter((lease["device"], lease["kind"]) for lease in listed["leases"])
        for (device, kind), count in sorted(held.items()):
            metrics.gauge("ugpu_leases", "Leases that are held.", count, device=device, kind=kind)
        metrics.gauge("ugpu_waiting", "Requests that wait for a lease.", len(listed["waiting"]))
    yield from metrics.by_name.values()


def _card(metrics: Families, card: dict[str, Any]) -> None:
    name, history = card["name"], card["history"]
    for state in State:
        text = "1 for the state of a card of ugpud."
        metrics.gauge("ugpu_card_state", text, float(card["state"] == state.value), device=name,
                   state=state.value)  # fmt: skip
    text = "1 while a card of ugpud rests: parts of it may have no power until they are needed."
    metrics.gauge("ugpu_card_resting", text, float(card.get("resting", False)), device=name)
    text = "1 while the history cannot be written."
    metrics.gauge("ugpu_card_history_trouble", text, float(bool(card["trouble"])), device=name)
    held = card.get("troubles", {})  # none: an older ugpud
    for kind in TROUBLES:
        text = "1 while this holds of a card; see the event of this name."
        metrics.gauge("ugpu_card_trouble", text, float(kind.name in held), device=name,
                   kind=kind.name.removeprefix("card."))  # fmt: skip
    metrics.counter("ugpu_card_leases", "Leases served.", history["leases"], device=name)
    metrics.counter("ugpu_card_failures", "Failures of the card.", history["failures"], device=name)
    metrics.counter(
        "ugpu_card_service_seconds", "Time in service.", history["service_s"], device=name
    )
    for key, family, text in (
        ("mtbf_s", "ugpu_card_mtbf_seconds", "Mean time between failures."),
        ("mttr_s", "ugpu_card_mttr_seconds", "Mean time to recover."),
        ("flake_ratio", "ugpu_card_flake_ratio", "Failures by leases."),
    ):
        if history[key] is not None:
            metrics.gauge(family, text, history[key], device=name)


class Desk:
    """Query a ugpud repeatedly; prometheus_client's collector. A context manager."""

    def __init__(
        self, where: str | None, interval_s: float = 2.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = parse(where)
        self._interval_s = interval_s
        self._now = now
        self._found: tuple[Found, float] | None = None
        self._asked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud metrics", daemon=True)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client; waits for the first answer only, for up to LIMIT_S."""
        self._asked.wait(LIMIT_S)
        answer = self._found
        yield from leases(*(None, 0.0) if answer is None else (answer[0], self._now() - answer[1]))

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with Connection(self._address, config().token or None) as connection:
                    while not self._stopped.is_set():
                        cards = connection.call("devices", limit_s=LIMIT_S).arguments[0]
                        listed = connection.call("leases", limit_s=LIMIT_S).arguments[0]
                        self._found = (cards, listed), self._now()
                        self._asked.set()
                        self._stopped.wait(self._interval_s)
            except UgpuError:
                self._found = None
            self._asked.set()
            self._stopped.wait(self._interval_s)

    def __enter__(self) -> Self:
        threads.start(self._thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(2 * LIMIT_S)
