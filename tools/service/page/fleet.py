"""The data shown by the page: a daemon's cards with their telemetry, leases, bundles and verdicts.

Calls may block on a card; the server makes them in threads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from ugpu.hcq.disk import bundle
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.config import config
from ugpu.tools.ci.report.history import History
from ugpu.tools.service.daemon.cards.readings import Readings, shown_values
from ugpu.tools.service.daemon.clients.leases import Card
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.daemon import Daemon

LISTED = 50  # most bundles, and most verdicts


class Fleet:
    """The daemon as the page shows it. pool: threads for calls that may block; crashes: the folder
    of bundles (default: the configured one)."""

    def __init__(
        self,
        daemon: Daemon,
        pool: Executor,
        verdicts: Path | None = None,
        crashes: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.daemon = daemon
        self.readings = Readings(daemon, pool, now)
        self._verdicts = verdicts
        self._crashes = crashes
        self._manifests: dict[Path, dict[str, object]] = {}

    def state(self, rights: Rights) -> dict[str, object]:
        """Return the cards, leases and waiters. Only cards that the rights cover have telemetry."""
        cards = self.daemon.devices()
        for card in cards:
            name = str(card["name"])
            card["telemetry"] = self._brief(name) if self._covers(name, rights) else None
        return {"cards": cards, **self.daemon.listed()}

    def _brief(self, name: str) -> dict[str, object] | None:
        last = self.readings.last(name)
        if last is None:
            return None
        telemetry, age_s = last
        return {
            "time": telemetry["time"],
            "age_s": age_s,
            "state": telemetry["state"],
            "failure": telemetry["failure"],
            "queue_depth": telemetry["queue_depth"],
            "launches": telemetry["launches"],
            "errors": sum(telemetry["errors"].values()),
            "resets": telemetry["resets"],
            "values": shown_values(telemetry),
        }

    def past(self, rights: Rights) -> dict[str, object]:
        """Return what the plots show at first: by card, the times (seconds since the epoch) and, by
        sensor, a value or None at each."""
        plots: dict[str, object] = {}
        for owned in list(self.daemon.owned):
            if not rights.covers(owned.card):
                continue
            moments = self.readings.past(owned.name)
            kinds = {kind for _, values in moments for kind in values}
            plots[owned.name] = {
                "times": [round(when, 1) for when, _ in moments],
                "values": {
                    kind: [values.get(kind) for _, values in moments] for kind in sorted(kinds)
                },
            }
        return plots

    def card(self, name: str, rights: Rights) -> dict[str, object]:
        """Return all data of one card: its telemetry, its facts, and the states of its firmware if
        its driver knows them. BadArgument, AccessDenied."""
        telemetry: object = None
        trouble = ""
        try:
            telemetry = json.loads(self.daemon.telemetry(name, rights))
        except Closed as error:
            trouble = str(error)
        owned = next(candidate for candidate in self.daemon.owned if candidate.name == name)
        view: dict[str, object] = {
            "name": name,
            "telemetry": telemetry,
            "trouble": trouble,
            "facts": {},
            "firmware": None,
        }
        if owned.is_open:
            view["facts"] = {key: str(value) for key, value in owned.info().items()}
            view["firmware"] = owned.firmware_states()
        return view

    def _covers(self, name: str, rights: Rights) -> bool:
        return any(owned.name == name and rights.covers(owned.card) for owned in self.daemon.owned)

    # ---- stored data -------------------------------------------------------------------------

    def bundles(self, rights: Rights) -> list[dict[str, object]]:
        """Return the newest bundles of evidence of devices that the rights cover, newest first.
        card: the daemon's card that it is of; empty for a device of another program."""
        rows = []
        for path in self._bundle_paths()[::-1][:LISTED]:
            if path not in self._manifests:
                self._manifests[path] = _manifest(path)
            card = self._shown_device(self._manifests[path])
            if rights.covers(card):
                ours = any(owned.card is card for owned in self.daemon.owned)
                rows.append(self._manifests[path] | {"card": card.name if ours else ""})
        return rows

    def bundle(self, name: str, rights: Rights) -> bytes:
        """Return a bundle's file; BadArgument if no bundle has that name, AccessDenied."""
        path = next(
            (candidate for candidate in self._bundle_paths() if candidate.name == name), None
        )
        if path is None:
            raise BadArgument(f"bundle {name!r} does not exist")
        rights.check("download", self._shown_device(_manifest(path)))
        try:
            return path.read_bytes()
        except OSError as error:
            raise BadArgument(f"{name} cannot be read: {error.strerror}") from None

    def _shown_device(self, manifest: dict[str, object]) -> Card:
        """Return the card of a bundle. A card that the daemon does not have, or several of whose
        name it has, has only the name in the bundle."""
        name = str(manifest["device"])
        named = [
            owned.card for owned in self.daemon.owned if name in (owned.name, *owned.card.labels)
        ]
        return named[0] if len(named) == 1 else Card(name)

    def _bundle_paths(self) -> list[Path]:
        folder = self._crashes or config().crash_folder
        return bundle.bundles(folder) if folder is not None else []

    def verdicts(self) -> dict[str, object]:
        """Return the last verdicts of hardware CI, flaky tests and weak devices; empty lists if no
        history is configured or written."""
        if self._verdicts is None:
            return {"configured": False, "recent": [], "flaky": [], "weak": []}
        history = History(self._verdicts)
        return {
            "configured": True,
            "recent": history.recent(LISTED),
            "flaky": [vars(verdict) for verdict in history.flaky()[:LISTED]],
            "weak": [vars(verdict) for verdict in history.weak()[:LISTED]],
        }


def _manifest(path: Path) -> dict[str, object]:
    row: dict[str, object] = {"name": path.name, "size": 0}
    try:
        row["size"] = path.stat().st_size
        manifest: Any = bundle.read(path).manifest
    except (BadArgument, OSError) as error:
        return row | {"error": "", "message": str(error), "device": "", "when": ""}
    failed = manifest["error"]
    return row | {
        "when": manifest["when"],
        "device": manifest["device"],
        "error": failed["class"],
        "message": failed["message"],
    }
