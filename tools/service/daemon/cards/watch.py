"""Watch cards for slow decay: degraded links and memory errors.

Earlier values are kept in the history's file, so that a card is compared with its own state before
a restart. When the GPU is idle, a link falls to a low speed, on some boards also to fewer lanes
(dynamic link speed, ASPM). Therefore the link's state is compared only while the GPU is busy. The
capability of both ends (LnkCap) is compared at any time. LOOKS successive checks must agree. A best
value that was not reached for KEPT_S is forgotten, so that a card that was moved to a narrower slot
is not reported forever.

Source: PCI Express Base Specification 6.0, 7.5.3.6 (Link Capabilities), 7.5.3.8 (Link Status);
Linux drivers/gpu/drm/amd/pm, pp_dpm_pcie (link levels of an idle GPU).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.telemetry import Telemetry
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import Hop, LinkState, hops, target_speed
from ugpu.hcq.transport.system import System
from ugpu.tools.base.events import (
    ECC_TREND,
    ECC_UNCORRECTED,
    LINK_DEGRADED,
    LINK_RESTORED,
    Kind,
    tell,
)
from ugpu.tools.base.ledger import Ledger

log = logging.getLogger(__name__)

LOOKS = 3  # successive checks until a link is reported as degraded
BUSY = 0.5  # usage from which a GPU counts as busy
FRESH_S = 10.0  # greatest age of sensor values that are judged
KEPT_S = 7 * 86400.0
DAY_S, HOUR_S = 86400.0, 3600.0
LEAST_ERRORS = 10  # up to this many corrected errors a day are not a trend; as in alerts.yml
_REFRESH_S = 3600.0
_SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)  # GT/s, by generation
_LOST = ("lost", "uncorrected")
TABLES = """
CREATE TABLE IF NOT EXISTS link (
    card TEXT NOT NULL, kind TEXT NOT NULL, lanes INTEGER NOT NULL, generation INTEGER NOT NULL,
    time REAL NOT NULL, PRIMARY KEY (card, kind));
CREATE TABLE IF NOT EXISTS ecc_last (
    card TEXT NOT NULL, label TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (card, label));
CREATE TABLE IF NOT EXISTS ecc (
    card TEXT NOT NULL, hour INTEGER NOT NULL, corrected REAL NOT NULL, lost REAL NOT NULL,
    PRIMARY KEY (card, hour));
CREATE TABLE IF NOT EXISTS present (card TEXT PRIMARY KEY, time REAL NOT NULL);
"""


@dataclass(frozen=True)
class Link:
    """Lanes and PCIe generation of a link."""

    lanes: int
    generation: int

    def __str__(self) -> str:
        return f"x{self.lanes} generation {self.generation}"

    def reaches(self, other: Link) -> bool:
        """Return whether the link is as wide and as fast as the other one."""
        return self.lanes >= other.lanes and self.generation >= other.generation


@dataclass(frozen=True)
class Links:
    """The links of a card. now: the narrowest and slowest link between host and card. most: what
    the links' ends support. None: not known. limit: what keeps a link below that, if known."""

    now: Link | None = None
    most: Link | None = None
    limit: str = ""


def links(name: str, telemetry: Telemetry, system: System) -> Links:
    """Read a PCI card's links from sysfs, another card's from its sensors."""
    if name.startswith("pci:"):
        with contextlib.suppress(UgpuError, OSError):
            way = [
                hop
                for hop in hops(PciFunction(system, name.removeprefix("pci:")))
                if not hop.tunnelled
            ]
            now = _narrowest([hop.current for hop in way])
            return Links(now, _narrowest([hop.expected for hop in way]), _limit(way))
    lanes, generation = telemetry.value("link_lanes"), telemetry.value("link_generation")
    return Links(Link(int(lanes), int(generation)) if lanes and generation else None)


def _limit(way: list[Hop]) -> str:
    """Return the ports whose target speed is below what their link supports."""
    ports_below = []
    for hop in way:
        speed = 0.0
        with contextlib.suppress(UgpuError):  # this user may not read the register
            speed = target_speed(hop.upper)
        if 0 < speed < hop.expected.speed:
            ports_below.append(f"{hop.upper.address} is set to {speed:g} GT/s (Link Control 2)")
    return ", ".join(ports_below)


def _narrowest(states: list[LinkState]) -> Link | None:
    reported = [state for state in states if state.width and state.speed]
    if not reported:
        return None
    speed = min(state.speed for state in reported)
    return Link(min(state.width for state in reported), sum(speed >= listed for listed in _SPEEDS))


class Watch:
    """The watch over cards. wall: seconds since 1970. For each card one thread at a time calls
    `look`; any thread may call `troubles`."""

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self._ledger = Ledger(path, TABLES, private=True)
        self._wall = wall
        self._worse: Counter[tuple[str, str]] = Counter()
        self._best: dict[tuple[str, str], tuple[Link, float]] = {}
        self._last: dict[str, dict[str, float]] = {}  # ECC counters, by card and label
        self._told: dict[str, float] = {}  # when a card was last stored as expected
        self._troubles: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def troubles(self, name: str) -> dict[str, str]:
        """Return the present troubles of a card: texts by kind of event."""
        with self._lock:
            return dict(self._troubles.get(name, {}))

    def look(self, name: str, serial: str, telemetry: Telemetry, link: Links) -> None:
        """Judge a working card by its sensors and link."""
        card = f"{name} {serial}".strip()
        age = telemetry.samples_age_s
        if telemetry.state != "ok":
            return
        for kind, state, comparable in (
            ("most", link.most, True),
            ("now", link.now, age is not None and age < FRESH_S and _busy(telemetry)),
        ):
            if state is not None and comparable:
                self._compare(name, serial, card, kind, state, link.limit)
        self._count_errors(name, serial, card, telemetry)

    # ---- expected cards ----------------------------------------------------------------------

    def expect(self, name: str) -> None:
        """Record that a card is present: it is expected after a restart, for KEPT_S."""
        row = name, self._wall()
        self._told[name] = row[1]
        self._ledger.write(
            lambda database: database.execute("INSERT OR REPLACE INTO present VALUES (?, ?)", row)
        )

    def refresh(self, name: str) -> None:
        """Renew the record of a card that is still present. RACE: the card may have been forgotten
        meanwhile; then it stays forgotten."""
        now = self._wall()
        if now - self._told.get(name, now) < _REFRESH_S:
            return
        self._told[name] = now
        self._ledger.write(
            lambda database: database.execute(
                "UPDATE present SET time = ? WHERE card = ?", (now, name)
            )
        )

    def forget(self, name: str) -> None:
        """Stop expecting a card that left while it was watched."""
        self._told.pop(name, None)
        self._ledger.write(
            lambda database: database.execute("DELETE FROM present WHERE card = ?", (name,))
        )

    def expected(self) -> list[str]:
        """Return the cards that were present when ugpud ended."""
        since = self._wall() - KEPT_S
        rows = self._read("SELECT card FROM present WHERE time > ? ORDER BY card", since)
        return [str(name) for (name,) in rows]

    # ---- implementation ----------------------------------------------------------------------

    def _read(self, query: str, *values: object) -> list[tuple[Any, ...]]:  # Any: SQLite's values
        if not self._ledger.path.is_file():
            return []
        try:
            with self._ledger.opened() as database:
                return database.execute(query, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            log.debug("%s cannot be read: %s", self._ledger.path, error)
            return []

    def _compare(
        self, name: str, serial: str, card: str, kind: str, state: Link, limit: str
    ) -> None:
        now, (best, when) = self._wall(), self._best_of(card, kind)
        if best is not None and not state.reaches(best) and when > now - KEPT_S:
            self._worse[card, kind] += 1
            if self._worse[card, kind] == LOOKS:
                self._link_is_worse(name, serial, kind, state, best, limit)
            return
        if best is None or state != best or when < now - _REFRESH_S:
            self._best[card, kind] = state, now
            row = card, kind, state.lanes, state.generation, now
            self._ledger.write(
                lambda database: database.execute(
                    "INSERT OR REPLACE INTO link VALUES (?, ?, ?, ?, ?)", row
                )
            )
        self._worse[card, kind] = 0
        if all(self._worse[card, moment] < LOOKS for moment in ("now", "most")) and self._clear(
            name, LINK_DEGRADED
        ):
            why = "again" if best is not None and state.reaches(best) else "for a week: accepted"
            tell(log, LINK_RESTORED, f"{name}: its link is {state} {why}", device=name,
                 serial=serial, link=state)  # fmt: skip

    def _best_of(self, card: str, kind: str) -> tuple[Link | None, float]:
        """Return the best link so far, and when it was last seen."""
        if (card, kind) not in self._best:
            query = "SELECT lanes, generation, time FROM link WHERE card = ? AND kind = ?"
            rows = self._read(query, card, kind)
            if not rows:
                return None, 0.0
            lanes, generation, when = rows[0]
            self._best[card, kind] = Link(int(lanes), int(generation)), float(when)
        return self._best[card, kind]

    def _link_is_worse(
        self, name: str, serial: str, kind: str, state: Link, best: Link, limit: str
    ) -> None:
        what = "its link at work is" if kind == "now" else "its link can do no more than"
        text = f"{name}: {what} {state}, it was {best}" + (f"; {limit}" if limit else "")
        self._set(name, LINK_DEGRADED, text)
        tell(log, LINK_DEGRADED, text, device=name, serial=serial, link=state, was=best)

    def _count_errors(self, name: str, serial: str, card: str, telemetry: Telemetry) -> None:
        samples = [sample for sample in telemetry.samples if sample.name == "ecc_errors"]
        if not samples:
            return
        if card not in self._last:
            rows = self._read("SELECT label, value FROM ecc_last WHERE card = ?", card)
            self._last[card] = {str(label): float(value) for label, value in rows}
        last = self._last[card]
        corrected = lost = 0.0
        for sample in samples:
            before = last.get(sample.label, sample.value)
            # A counter below its last value was reset: its whole value is new.
            more = sample.value - before if sample.value >= before else sample.value
            if any(word in sample.label for word in _LOST):
                lost += more
            else:
                corrected += more
        values = [(card, sample.label, sample.value) for sample in samples]
        if any(last.get(label) != value for _, label, value in values):
            self._ledger.write(lambda database: self._store(database, values, corrected, lost))
            self._last[card] = {label: value for _, label, value in values}
        if lost:
            text = f"{name}: {lost:.0f} errors of memory that ECC could not correct"
            tell(log, ECC_UNCORRECTED, text, device=name, serial=serial, count=f"{lost:.0f}")
        self._judge_errors(name, serial, card)

    def _store(
        self,
        database: sqlite3.Connection,
        values: list[tuple[str, str, float]],
        corrected: float,
        lost: float,
    ) -> None:
        card, hour = values[0][0], int(self._wall() // HOUR_S)
        database.executemany("INSERT OR REPLACE INTO ecc_last VALUES (?, ?, ?)", values)
        database.execute(
            "INSERT INTO ecc VALUES (?, ?, ?, ?) ON CONFLICT (card, hour) DO UPDATE SET "
            "corrected = corrected + excluded.corrected, lost = lost + excluded.lost",
            (card, hour, corrected, lost),
        )
        database.execute("DELETE FROM ecc WHERE hour < ?", (hour - KEPT_S / HOUR_S,))

    def _judge_errors(self, name: str, serial: str, card: str) -> None:
        day = self._errors(card, 0)
        before = self._errors(card, 1)
        if day[1]:
            self._set(name, ECC_UNCORRECTED, f"{day[1]:.0f} uncorrected errors within a day")
        else:
            self._clear(name, ECC_UNCORRECTED)
        if day[0] > LEAST_ERRORS and day[0] > 2 * before[0]:
            text = f"{name}: {day[0]:.0f} corrected errors of memory in a day, {before[0]:.0f} "
            text += "in the day before"
            if self._set(name, ECC_TREND, text):
                tell(log, ECC_TREND, text, device=name, serial=serial, count=f"{day[0]:.0f}",
                     was=f"{before[0]:.0f}")  # fmt: skip
        else:
            self._clear(name, ECC_TREND)

    def _errors(self, card: str, days: int) -> tuple[float, float]:
        """Return corrected and uncorrected errors of the 24 hours that ended `days` days ago."""
        end = self._wall() - days * DAY_S
        query = "SELECT total(corrected), total(lost) FROM ecc "
        query += "WHERE card = ? AND hour BETWEEN ? AND ?"
        rows = self._read(query, card, (end - DAY_S) // HOUR_S + 1, end // HOUR_S)
        corrected, lost = rows[0] if rows else (0.0, 0.0)
        return float(corrected), float(lost)

    def _set(self, name: str, kind: Kind, text: str) -> bool:
        """Record a trouble; return whether it is new."""
        with self._lock:
            held = self._troubles.setdefault(name, {})
            new = kind.name not in held
            held[kind.name] = text
            return new

    def _clear(self, name: str, kind: Kind) -> bool:
        """Remove a trouble; return whether there was one."""
        with self._lock:
            return self._troubles.get(name, {}).pop(kind.name, None) is not None


def _busy(telemetry: Telemetry) -> bool:
    usage = telemetry.value("usage_ratio", "gfx")
    return telemetry.queue_depth > 0 if usage is None else usage >= BUSY
