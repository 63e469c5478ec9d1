"""The history in a thread of its own: the daemon neither waits for the disk nor for a lock of the
file while it serves clients.

Writes are carried out in the order of the calls. Reads return what the thread has read last.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

from ugpu.tools.service.daemon.outlets.history import CardHistory, Quarantine, Record

log = logging.getLogger(__name__)

Result = TypeVar("Result")
# TIMEOUT: how long an admin's request waits until the disk has its quarantine, and how long the end
# of ugpud waits for the last entries; our choice
STORED_S = 1.0
LAST_S = 5.0
READ_S = 0.05  # our choice: a write takes 1 ms


class Scribe:
    """A card's history, written by one thread. Thread-safe; only `stored`, `may_reboot` and `close`
    wait."""

    def __init__(self, history: CardHistory) -> None:
        self._history = history
        self._pool = ThreadPoolExecutor(1, "ugpud history")
        self._records = history.records()
        self._last: Future[Any] = self._pool.submit(lambda: None)
        self._tickets = itertools.count(1)
        self._numbers: dict[int, int | None] = {}  # of incidents, by ticket; history thread only
        self._unsaved: dict[str, Quarantine | None] = {}  # history thread only; None: lifted

    @property
    def trouble(self) -> str:
        """Why the last write failed; empty if it succeeded."""
        return self._history.trouble

    def quarantines(self) -> dict[str, Quarantine]:
        """Return the stored quarantines by device. Reads the file: for the start."""
        return self._history.quarantines()

    def records(self) -> dict[str, Record]:
        """Return the history of each card, as of the last write. Waits READ_S for pending writes:
        not to be called with the daemon's lock."""
        wait([self._last], READ_S)
        return self._records

    def serve(self, leases: Iterable[tuple[str, int]]) -> None:
        """See CardHistory."""
        rows = list(leases)
        self._submit(lambda: self._history.serve(rows))

    def failed(self, device: str, reason: str) -> int | None:
        """Record a failure; return a ticket for `ended`."""
        ticket = next(self._tickets)

        def note() -> None:
            self._numbers[ticket] = self._history.failed(device, reason)

        self._submit(note)
        return ticket

    def ended(self, number: int | None, outcome: str, tried: str) -> None:
        """See CardHistory. number: the ticket of `failed`."""
        if number is not None:
            self._submit(
                lambda: self._history.ended(self._numbers.pop(number, None), outcome, tried)
            )

    def quarantine(self, device: str, reason: str, *, operator: bool) -> Future[bool]:
        """Store a quarantine until `lift`. A quarantine that cannot be written is tried again with
        the next write. For the result see `stored`."""
        return self._submit(lambda: self._keep(device, Quarantine(reason, operator)))

    def lift(self, device: str) -> Future[bool]:
        """Remove a stored quarantine; as `quarantine`."""
        return self._submit(lambda: self._keep(device, None))

    def may_reboot(self, device: str, reason: str, every_s: float) -> bool:
        """See CardHistory. Waits for the history's thread; never called with the daemon's lock."""
        return self._submit(lambda: self._history.may_reboot(device, reason, every_s)).result()

    def close(self) -> None:
        """Write what is left, for up to LAST_S. Idempotent."""
        try:
            self._pool.submit(lambda: None).result(LAST_S)
        except (NotYet, RuntimeError):  # RuntimeError: of a pool that is already shut down
            log.debug("history: entries are left")
        self._pool.shutdown(cancel_futures=True)

    def _keep(self, device: str, barred: Quarantine | None) -> bool:
        if barred is None:
            done = self._history.lift(device)
        else:
            done = self._history.quarantine(device, barred.reason, operator=barred.operator)
        self._unsaved.pop(device, None)
        if not done:
            self._unsaved[device] = barred
        return done

    def _submit(self, work: Callable[[], Result]) -> Future[Result]:
        def run() -> Result:
            try:
                for device, barred in list(self._unsaved.items()):
                    if not self._keep(device, barred):
                        break
                return work()
            except BaseException:
                log.exception("the history's thread failed")
                raise
            finally:
                self._records = self._history.records()

        future = self._last = self._pool.submit(run)
        return future


def stored(results: Iterable[Future[bool]], limit_s: float = STORED_S) -> bool:
    """Return whether all of the results of `quarantine` or `lift` were written within `limit_s`."""
    try:
        return all(result.result(limit_s) for result in results)
    except NotYet:
        return False
