"""History of tests and devices over many runs: one SQLite file.

A full disk or a damaged file costs only history: the fault is reported and the run continues.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu.tools.base.ledger import Ledger
from ugpu.tools.ci.verdict import Attempt, Judgement, Verdict

_TABLES = """
CREATE TABLE IF NOT EXISTS judged (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, run TEXT NOT NULL, test TEXT NOT NULL,
    verdict TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempt (
    judged INTEGER NOT NULL REFERENCES judged(id), number INTEGER NOT NULL, device TEXT NOT NULL,
    passed INTEGER NOT NULL, sick INTEGER NOT NULL, error TEXT NOT NULL, trouble TEXT NOT NULL,
    bundle TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS judged_test ON judged(test);
CREATE INDEX IF NOT EXISTS attempt_device ON attempt(device);
"""


@dataclass(frozen=True)
class Line:
    """A test or a device. runs: number of its runs; bad: flaky verdicts of a test, or runs in which
    a device was sick."""

    name: str
    runs: int
    bad: int


class History:
    """The database at `path`, created if it is missing. Several processes may write at the same
    time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ledger = Ledger(path, _TABLES)

    @property
    def trouble(self) -> str:
        """Why writing has stopped."""
        return self._ledger.trouble

    def add(
        self, run: str, test: str, attempts: Sequence[Attempt], judgement: Judgement, time: float
    ) -> None:
        """Write one test's runs. A failure is reported once and stops further writing."""

        def insert(database: sqlite3.Connection) -> None:
            number = database.execute(
                "INSERT INTO judged (time, run, test, verdict, reason) VALUES (?, ?, ?, ?, ?)",
                (time, run, test, judgement.verdict.value, judgement.reason),
            ).lastrowid
            database.executemany(
                "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (number, place, device, tried.passed, tried.sick, tried.error, tried.trouble,
                     tried.bundle)
                    for place, tried in enumerate(attempts) for device in tried.devices
                ],
            )  # fmt: skip

        if not self.trouble:
            self._ledger.write(insert)

    def recent(self, most: int) -> list[dict[str, object]]:
        """Return the last `most` verdicts, newest first, each with the devices of its attempts."""
        if not self.path.is_file():
            return []
        with self._ledger.opened() as database:
            rows = database.execute(
                "SELECT time, run, test, verdict, reason, group_concat(DISTINCT device) "
                "FROM judged LEFT JOIN attempt ON judged.id = judged "
                "GROUP BY judged.id ORDER BY judged.id DESC LIMIT ?",
                (most,),
            )
            names = ("time", "run", "test", "verdict", "reason", "devices")
            return [dict(zip(names, row, strict=True)) for row in rows]

    def flaky(self) -> list[Line]:
        """Return tests with flaky verdicts, worst first."""
        return self._lines(
            "SELECT test, count(*), sum(verdict = ?) AS bad FROM judged GROUP BY test "
            "HAVING bad > 0 ORDER BY 1.0 * bad / count(*) DESC, test",
            (Verdict.FLAKY.value,),
        )

    def weak(self) -> list[Line]:
        """Return devices that were sick in a run, worst first."""
        return self._lines(
            "SELECT device, count(*), sum(sick) AS bad FROM attempt GROUP BY device "
            "HAVING bad > 0 ORDER BY 1.0 * bad / count(*) DESC, device",
        )

    def _lines(self, query: str, values: Sequence[object] = ()) -> list[Line]:
        if not self.path.is_file():
            return []
        with self._ledger.opened() as database:
            return [Line(*row) for row in database.execute(query, values)]
