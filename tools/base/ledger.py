"""A SQLite file that several processes append to. A full disk or a damaged file costs only history:
the fault is stored and reported once, and the program continues."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.tools.base.events import HISTORY_LOST, tell

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_BUSY_S = 10.0  # how long another process' write may take
_PRIVATE_BUSY_S = 2.0  # the same, for a file that only this program writes


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_S)


def _connect_private(path: Path) -> sqlite3.Connection:
    """Connect so that no reader delays a write: write-ahead log. Source: sqlite.org/wal.html"""
    database = sqlite3.connect(path, timeout=_PRIVATE_BUSY_S)
    try:
        database.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        database.close()
        raise
    return database


class Ledger:
    """The database at `path`, created if it is missing. tables: SQL that creates them. private: no
    other user may read or write it, or own its folder. Thread-safe: each use has a connection of
    its own. trouble: why the last write failed; empty if it succeeded."""

    def __init__(
        self,
        path: Path,
        tables: str,
        connect: Callable[[Path], sqlite3.Connection] | None = None,
        *,
        private: bool = False,
    ) -> None:
        self.path = path
        self._private = private
        self.trouble = ""
        self._tables = tables
        self._connect = connect or (_connect_private if private else _connect)

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Yield the database in a transaction; raises sqlite3.Error, OSError."""
        if self._private:
            ownfolder.make_private(self.path.parent)
            os.close(ownfolder.open_private(self.path))
        with contextlib.closing(self._connect(self.path)) as database:
            database.executescript(self._tables)
            with database:
                yield database

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """Run `work` in a transaction, and return its result; None if it cannot be written."""
        try:
            if not self._private:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.opened() as database:
                result = work(database)
        except (sqlite3.Error, OSError) as error:
            trouble = f"{self.path}: {error}"
            if trouble != self.trouble:
                tell(log, HISTORY_LOST, f"history is not written: {trouble}", reason=trouble)
            self.trouble = trouble
            return None
        self.trouble = ""
        return result
