"""The result of one check of `ugpu doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing looked at. state: "ok", "missing" (stops hardware from working) or "note"."""

    check: str
    state: str
    detail: str
    remedy: str = ""
