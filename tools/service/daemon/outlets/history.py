"""History of the daemon's cards over months: service, leases, failures, in one SQLite file.

Mean time between failures (MTBF) is the time in service divided by the failures. Mean time to
recover (MTTR) counts only failures that were recovered. The flake rate is failures divided by
leases.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ugpu.tools.base.ledger import Ledger

# Random number that Linux draws at boot. Source: random(4).
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TABLES = """
CREATE TABLE IF NOT EXISTS service (
    device TEXT NOT NULL, since REAL NOT NULL, until REAL NOT NULL, leases INTEGER NOT NULL,
    PRIMARY KEY (device, since));
CREATE TABLE IF NOT EXISTS incident (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, time REAL NOT NULL, reason TEXT NOT NULL,
    ended REAL, outcome TEXT NOT NULL, tried TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS reboot (time REAL NOT NULL, device TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS quarantine (
    device TEXT PRIMARY KEY, time REAL NOT NULL, reason TEXT NOT NULL, operator INTEGER NOT NULL,
    boot TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS incident_device ON incident(device);
"""


@dataclass(frozen=True)
class Record:
    """One card's history. None: there is no data to compute the value from."""

    failures: int = 0
    leases: int = 0
    service_s: float = 0.0
    mtbf_s: float | None = None
    mttr_s: float | None = None
    flake_ratio: float | None = None

    def to_map(self) -> dict[str, object]:
        """Return the record for clients."""
        return asdict(self)


@dataclass(frozen=True)
class Quarantine:
    """Why a card is not used. operator: an operator ordered it; otherwise recovery failed."""

    reason: str
    operator: bool


class CardHistory:
    """wall: seconds since 1970, which may jump. steady: a clock for durations. boot: identifies
    this boot of the machine. Thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        wall: Callable[[], float] = time.time,
        boot: str = "",
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._boot = boot
        self._wall = wall
        self._steady = steady
        self._since = wall()
        self._started = steady()
        self._failed: dict[int, float] = {}  # steady time of each failure that is being treated

    @staticmethod
    def at(path: Path) -> CardHistory:
        """Return the history in a file, which need not exist."""
        try:
            boot = _BOOT_ID.read_text("ascii").strip()
        except OSError:
            boot = ""
        return CardHistory(Ledger(path, TABLES, private=True), boot=boot)

    @property
    def trouble(self) -> str:
        """Why the last write failed; empty if it succeeded."""
        return self._ledger.trouble

    def serve(self, leases: Iterable[tuple[str, int]]) -> None:
        """Record that cards have been in service until now. leases: name of each card and number of
        its leases since the daemon started."""
        until = self._since + self._steady() - self._started
        rows = [(name, self._since, until, count) for name, count in leases]
        self._ledger.write(
            lambda database: database.executemany(
                "INSERT OR REPLACE INTO service VALUES (?, ?, ?, ?)", rows
            )
        )

    def failed(self, device: str, reason: str) -> int | None:
        """Record a failure; return its number for `ended`, None if it cannot be written."""
        number = self._ledger.write(
            lambda database: (
                database.execute(
                    "INSERT INTO incident VALUES (NULL, ?, ?, ?, NULL, '', '')",
                    (device, self._wall(), reason),
                ).lastrowid
            )
        )
        if number is not None:
            self._failed[number] = self._steady()
        return number

    def ended(self, number: int | None, outcome: str, tried: str) -> None:
        """Record the outcome of a failure, "recovered" or "quarantined", and what was tried."""
        if number is not None:
            now = self._steady()
            passed = now - self._failed.pop(number, now)
            self._ledger.write(
                lambda database: database.execute(
                    "UPDATE incident SET ended = time + ?, outcome = ?, tried = ? WHERE id = ?",
                    (passed, outcome, tried, number),
                )
            )

    def quarantine(self, device: str, reason: str, *, operator: bool) -> bool:
        """Store a quarantine until `lift`; return False if it cannot be written."""
        row = device, self._wall(), reason, operator, self._boot
        written = self._ledger.write(
            lambda database: database.execute(
                "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?)", row
            )
        )
        return written is not None

    def lift(self, device: str) -> bool:
        """Remove a stored quarantine; return False if it cannot be written."""
        written = self._ledger.write(
            lambda database: database.execute("DELETE FROM quarantine WHERE device = ?", (device,))
        )
        return written is not None

    def quarantines(self) -> dict[str, Quarantine]:
        """Return the stored quarantines by device. A quarantine after a failed recovery does not
        outlast the machine's boot, because a reboot is the ladder's last rung."""
        if not self._ledger.path.is_file():
            return {}
        rows = self._ledger.write(
            lambda database: database.execute(
                "SELECT device, reason, operator FROM quarantine WHERE operator OR boot = ?",
                (self._boot,),
            ).fetchall()
        )
        return {device: Quarantine(reason, bool(by)) for device, reason, by in rows or ()}

    def may_reboot(self, device: str, reason: str, every_s: float) -> bool:
        """Record a reboot of the machine and return True. Return False if the last reboot is less
        than `every_s` ago, or if this one cannot be written: it might be repeated forever."""
        now = self._wall()

        def take(database: sqlite3.Connection) -> bool:
            (last,) = database.execute("SELECT max(time) FROM reboot").fetchone()
            if last is not None and abs(now - last) < every_s:  # the clock may have gone back
                return False
            database.execute("INSERT INTO reboot VALUES (?, ?, ?)", (now, device, reason))
            return True

        return bool(self._ledger.write(take))

    def records(self) -> dict[str, Record]:
        """Return the history of each card; empty if it cannot be read."""
        records: dict[str, Record] = {}
        if not self._ledger.path.is_file():
            return records
        with contextlib.suppress(sqlite3.Error, OSError), self._ledger.opened() as database:
            service = database.execute(
                "SELECT device, sum(max(0, until - since)), sum(leases) "
                "FROM service GROUP BY device"
            )
            rows = {name: (seconds, leases) for name, seconds, leases in service}
            incidents = database.execute(
                "SELECT device, count(*), sum(max(0, ended - time)), "
                "avg(CASE outcome WHEN 'recovered' THEN max(0, ended - time) END) "
                "FROM incident GROUP BY device"
            )
            bad = {name: rest for name, *rest in incidents}
            for name in rows.keys() | bad.keys():
                seconds, leases = rows.get(name, (0.0, 0))
                failures, down, repair = bad.get(name, (0, 0.0, None))
                up = max(0.0, seconds - (down or 0.0))
                records[name] = Record(
                    failures,
                    leases,
                    up,
                    up / failures if failures else None,
                    repair,
                    failures / leases if leases else None,
                )
        return records
